# SPDX-License-Identifier: Apache-2.0
"""Checks that a snapshot fits the table that it is read for.

Needs no TensorFlow.
"""

import dataclasses
from collections.abc import Callable, Iterable

from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.manifest import NAME, Manifest, row_fields
from tf_ext.snapshot.sealed_json import DamagedSnapshotError

# The fields whose type does not depend on the configuration.
_NOT_SLOTS = ("last_seen", "show", "click")


def fields_of_dtypes(
    fields: Iterable[tuple[str, str, int]], config: str
) -> list[tuple[str, str, int]]:
    """The fields that rows would have with the types of another table.

    Args:
      fields: list of `(name, dtype, count)`, without the sign.
      config: string, the configuration of the other table.

    Returns:
      The list with the dtypes of weights and slots in the other table.
    """
    entries = entries_of(config)
    slots = entries.get("slot_dtype", "float32")
    return [
        (
            name,
            entries.get("dtype", "float32")
            if name == "weights"
            else dtype
            if dtype == "int32" or name in _NOT_SLOTS
            else slots,
            count,
        )
        for name, dtype, count in fields
    ]


def check_fields(
    path: str,
    manifest: Manifest,
    fields: Iterable[tuple[str, str, int]],
    and_others: bool = False,
) -> None:
    """Raises unless rows have the fields of a table of their configuration.

    Args:
      path: string, the snapshot's directory.
      manifest: its Manifest.
      fields: list of `(name, dtype, count)`, without the sign.
      and_others: bool, whether rows may have other fields, too.

    Raises:
      DamagedSnapshotError: they have not.
    """
    wanted = dataclasses.replace(manifest, fields=row_fields(fields)[0])
    found = manifest.fields
    if and_others:
        names = [field.name for field in wanted.fields]
        there = [field for field in found if field.name in names]
        found, _ = row_fields((f.name, f.dtype, f.count) for f in there[1:])
    if wanted.fields != found:
        raise DamagedSnapshotError(
            f"{path}/{NAME} is damaged: its member row.fields must be those "
            f"of a table of table.config, {wanted.described_fields}, but is "
            f"{manifest.described_fields}."
        )


def check_state(
    path: str, manifest: Manifest, check: Callable[[dict[str, str]], object]
) -> None:
    """Raises unless the optimizer's state can be restored.

    Args:
      path: string, the snapshot's directory.
      manifest: its Manifest.
      check: function of the state that raises ValueError.
    """
    try:
        check(manifest.state)
    except ValueError as error:
        raise DamagedSnapshotError(
            f"{path}/{NAME} is damaged: its member state must be that of a "
            f"table's optimizer, but {error}"
        ) from None
