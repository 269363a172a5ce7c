# SPDX-License-Identifier: Apache-2.0
"""Checks that a snapshot fits the table that it is read for.

Needs no TensorFlow.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable

from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.manifest import NAME, Manifest, row_fields
from tf_ext.snapshot.sealed_json import DamagedSnapshotError

_LOG = logging.getLogger("tf_ext")

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


def lost_weights(
    table: str, fields: Collection[str], given: Collection[str] = ()
) -> str:
    """What happens to weights that are set without what they come from.

    Args:
      table: string, the name of the table whose rows get weights.
      fields: the names of the fields of its rows.
      given: the names of those that are set, too.

    Returns:
      string, a sentence; "" if the weights stay.
    """
    # What it is for given weights depends on the learning rate of the next
    # push, which only training knows.
    if "linear" not in fields or "linear" in given:
        return ""
    return (
        f"Table {table!r} gets weights without the slot 'linear', from which "
        "FTRL computes the weights of a row in each push: they are lost at "
        "its next one. To train them further, use another rule, such as "
        "\"adagrad\", or set 'linear', too: see "
        "tf_ext.optimizers.SparseFtrl."
    )


def warn_of_lost_weights(
    table: str, fields: Collection[str], given: Collection[str] = ()
) -> None:
    """Logs what `lost_weights` returns, if there is anything."""
    lost = lost_weights(table, fields, given)
    if lost:
        _LOG.warning("%s", lost)


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
