# SPDX-License-Identifier: Apache-2.0
"""Tables of a version: the rows of signs, also of those that have none."""

import typing
from collections.abc import Mapping

import numpy as np

from tf_ext import hashing
from tf_ext.serving.lookups.features import Array, Signs
from tf_ext.serving.lookups.row_store import RowStore, table_name
from tf_ext.serving.sinks import row_bytes
from tf_ext.serving.sinks.sink import FoundRows, Manifest, SinkError


class Table(typing.NamedTuple):
    """A table of a version.

    Attributes:
      name: string, what the store calls it.
      dim: int.
      dtype: string, of `row_bytes.DTYPES`.
      config: string, the table's configuration.
      shares: bool, whether signs without a row share some.
    """

    name: str
    dim: int
    dtype: str
    config: str
    shares: bool

    @property
    def width(self) -> int:
        """The bytes of a row."""
        return row_bytes.width(self.dtype, self.dim)

    def weights(self, signs: Signs, found: FoundRows) -> Array:
        """The weights of signs int64 `[n]`, float32 `[n, dim]`."""
        if len(found.rows) and found.rows.shape[1] != self.width:
            raise SinkError(
                f"Rows of {self.name} have {found.rows.shape[1]} bytes, but "
                f"should have {self.width}."
            )
        if found.found.all():
            return self._decoded(found)
        weights = np.empty([len(signs), self.dim], np.float32)
        if len(found.rows):
            weights[found.found] = self._decoded(found)
        absent = ~found.found
        weights[absent] = hashing.initial_rows(self.config, signs[absent])
        return weights

    def _decoded(self, found: FoundRows) -> Array:
        if not len(found.rows):
            return np.empty([0, self.dim], np.float32)
        return row_bytes.decode(found.rows, self.dtype)


def read_tables(manifest: Manifest) -> dict[str, Table]:
    """The tables that a manifest describes, by file.

    Raises:
      KeyError, TypeError, ValueError: it is damaged.
    """
    tables = {}
    for about in manifest["tables"]:
        dtype = about.get("dtype", "float32")
        if dtype not in row_bytes.DTYPES:
            raise ValueError(f"the type of rows is {dtype!r}")
        config, dim = about["config"], about["dim"]
        # Also checks the configuration.
        if hashing.initial_rows(config, [0]).shape != (1, dim):
            raise ValueError(f"the dim of {about['file']} is {dim!r}")
        lines = config.splitlines()
        if f"hash_version={hashing.HASH_VERSION}" not in lines:
            raise ValueError(f"{about['file']} has another hash_version")
        tables[about["file"]] = Table(
            table_name(about), dim, dtype, config, "unknown=shared" in lines
        )
    return tables


def find_weights(
    store: RowStore, tables: Mapping[str, Table], signs: Mapping[str, Signs]
) -> dict[str, Array]:
    """Reads the weights of signs, in one round trip.

    Args:
      store: RowStore.
      tables: dict of Table, by name.
      signs: dict from names of tables to int64 `[n]`, distinct.

    Returns:
      dict from the names to float32 `[n, dim]`.
    """
    asked, shared = dict(signs), {}
    for name, its in signs.items():
        if tables[name].shares:
            shared[name] = hashing.shared_signs(tables[name].config, its)
            asked[name] = np.union1d(its, shared[name])
    found = store.find(asked)
    weights = {}
    for name, its in signs.items():
        table = tables[name]
        if name not in shared:
            weights[name] = table.weights(its, found[name])
            continue
        # The weights of all, and whether each has a row of its own.
        every = table.weights(asked[name], found[name])
        places = np.searchsorted(asked[name], its)
        others = np.searchsorted(asked[name], shared[name])
        own = found[name].found[places]
        weights[name] = every[np.where(own, places, others)]
    return weights
