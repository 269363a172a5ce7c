# SPDX-License-Identifier: Apache-2.0
"""Tables of stock TensorFlow ops: a hash table and a variable of rows."""

import itertools
import math
import pathlib
import typing
import uuid
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_ext import _core, hashing
from tf_ext._compat.graphs import in_other_function
from tf_ext.ops._stock.initial_rows import initial_rows
from tf_ext.regimes.plan import shared_signs
from tf_ext.serving import row_dtypes
from tf_ext.serving.row_dtypes import Array
from tf_ext.serving.variable_files import ValueFile
from tf_ext.tables.config import parse_config
from tf_ext.tables.sparse_table import SparseTable

# Rows may not fit into the memory of other devices.
_CPU = "/CPU:0"

# Initializers that give all signs the same weights; a constant may be rounded
# to another value for each sign if weights are small.
_SAME_FOR_ALL = {
    "float32": ("zeros", "constant"),
    "float16": ("zeros",),
    "bfloat16": ("zeros",),
}

# The number of a row is int32 where its scale is stored with it.
_MOST_SCALED_ROWS = 2**31 - 1


class _Index(tf.saved_model.experimental.TrackableResource):
    """A hash table that maps signs to the numbers of their rows.

    It is initialized from variables when the SavedModel is loaded: constants in
    a graph would be limited to 2 GB. The process that exports never initializes
    it.

    Sessions run the node of the handle in each call, so theirs has a name,
    unique to the export. Python's loader calls a function once, and passes the
    handle that it returns to all functions: this handle counts its references,
    so the hash table lives as long as a function that uses it, and no longer,
    even if the loaded object is gone. TensorFlow's StaticHashTable is not used:
    it has a name there, too, and stays until the process ends.

    Args:
      signs: variable, int64 `[n]`.
      scales: variable, float32 `[1 + n]`, the scales of the rows; or None.
    """

    def __init__(self, signs: tf.Variable, scales: tf.Variable | None) -> None:
        super().__init__()
        self._signs = signs
        self._scales = scales
        self._name = f"tf_ext_{uuid.uuid4().hex}"
        with tf.init_scope():
            # Created now; otherwise each traced function would create its own.
            self._handle = self.resource_handle

    def _create_resource(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return self._anonymous()
        if tf.compat.v1.get_default_graph().building_function:
            with tf.device(_CPU):
                return self._kept()
        return tf.raw_ops.HashTableV2(
            key_dtype=tf.int64, value_dtype=tf.int64, shared_name=self._name
        )

    def _anonymous(self) -> tf.Tensor:
        return tf.raw_ops.AnonymousHashTable(
            key_dtype=tf.int64, value_dtype=tf.int64
        )

    def _kept(self) -> tf.Tensor:
        """A handle that counts references, the same in each call of a session.

        A SavedModel that was loaded and saved again has this function for
        sessions, too, which call it each time. What keeps the handle is
        destroyed with the loaded object in Python.
        """
        keeper = self._keeper()

        def create() -> tf.Tensor:
            table = self._anonymous()
            made = tf.raw_ops.AssignVariableOp(resource=keeper, value=table)
            with tf.control_dependencies([made]):
                return tf.identity(table)

        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=keeper),
            lambda: tf.raw_ops.ReadVariableOp(
                resource=keeper, dtype=tf.resource
            ),
            create,
        )

    def _keeper(self) -> tf.Tensor:
        """A variable whose value is a handle."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.resource, shape=[], shared_name=self._name
        )

    def _destroy_resource(self) -> None:
        with tf.device(_CPU):
            tf.raw_ops.DestroyResourceOp(
                resource=self._keeper(), ignore_lookup_error=True
            )

    def _initialize(self) -> None:
        # The op needs at least one key: sign 0, with the number of absent ones.
        keys, values = tf.cond(
            tf.size(self._signs) > 0,
            lambda: (self._signs.read_value(), self._values()),
            lambda: (tf.zeros([1], tf.int64), tf.zeros([1], tf.int64)),
        )
        tf.raw_ops.InitializeTableV2(
            table_handle=self.resource_handle, keys=keys, values=values
        )

    def _values(self) -> tf.Tensor:
        """The values of the signs in the hash table, int64 `[n]`."""
        size = tf.size(self._signs, tf.int64)
        if self._scales is None:
            return 1 + tf.range(size)
        numbers = 1 + tf.range(tf.cast(size, tf.int32))
        return _with_scales(numbers, self._scales.read_value()[1:])

    def find(self, signs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Looks up the numbers and the scales of rows.

        Args:
          signs: int64 `[n]`.

        Returns:
          `(numbers, scales)`: integers `[n]`, 0 for absent signs; and float32
          `[n]`, or None. The hash table stores a row's scale with its number,
          because reading it elsewhere would be one more cache miss.
        """
        absent = tf.constant(0, tf.int64)
        if self._scales is not None:
            zero = tf.zeros([], tf.int32)
            absent = _with_scales(zero, tf.gather(self._scales, 0))
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self.resource_handle,
            keys=signs,
            default_value=absent,
        )
        if self._scales is None:
            return found, None
        numbers, bits = tf.unstack(tf.bitcast(found, tf.int32), 2, -1)
        return numbers, tf.bitcast(bits, tf.float32)


def _with_scales(numbers: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """Packs int32 numbers and float32 scales into int64 values."""
    bits = tf.bitcast(scales, tf.int32)
    return tf.bitcast(tf.stack([numbers, bits], -1), tf.int64)


class StockTable(tf.Module):
    """The rows of a table, looked up with stock TensorFlow ops.

    Args:
      config: string, the table's configuration.
      dtype: one of `row_dtypes.NAMES`.
      unknown: "zeros", or None for what the configuration says.
      statistics: list of strings, the statistics that follow the weights in the
        rows that fill it.

    Attributes:
      table_name: string; `name` is that of the module.
      dim: int, the number of weights in a row.
      dtype: string, the type in which the rows are stored.
      signs: variable, int64 `[n]`. In the process that exports, it is empty, as
        are those that follow.
      rows: variable of `dtype`, `[1 + n, dim]`: the row of absent signs,
        followed by the rows of `signs`.
      scales: variable, float32 `[1 + n]`, if `dtype` is int8; else None.
      statistics: variable, float32 `[1 + n, s]`, whatever `dtype` is, 0 for
        absent signs; or None.
    """

    def __init__(
        self,
        config: str,
        dtype: str,
        unknown: str | None,
        statistics: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._names = list(statistics)
        self._config = config
        self._entries = dict(parse_config(config))
        self._unknown = unknown or self._entries.get("unknown")
        self._shared_rows = 0
        if self._unknown == "shared":
            self._shared_rows = int(self._entries.get("unknown.buckets", 1))
        self.table_name = self._entries["name"]
        self.dim = int(self._entries["dim"])
        # The scale of a single weight would take more memory than int8 saves.
        scaled = dtype == "int8" and self.dim > 1
        self.dtype = "float16" if dtype == "int8" and not scaled else dtype
        # If all absent signs have the same row, it is stored instead.
        self._computes_unknown = (
            self._unknown is None
            and self._entries["initializer"]
            not in _SAME_FOR_ALL[self._entries["dtype"]]
        )
        with tf.device(_CPU):
            self.signs = _variable([None], "int64", "signs")
            self.rows = _variable([None, self.dim], self.dtype, "rows")
            self.scales = None
            if scaled:
                self.scales = _variable([None], "float32", "scales")
            self.statistics = None
            if self._names:
                shape = [None, len(self._names)]
                self.statistics = _variable(shape, "float32", "statistics")
        self._index = _Index(self.signs, self.scales)

    def unknown_rows(self, signs: Array) -> Array:
        """The rows of absent signs int64 `[n]`: float32 `[n, dim + s]`."""
        rows = np.zeros((len(signs), self.dim + len(self._names)), np.float32)
        if self._unknown != "zeros":
            rows[:, : self.dim] = hashing.initial_rows(self._config, signs)
        return rows

    def shared_signs(self, signs: Array) -> Array:
        """The signs whose rows signs int64 `[n]` read that are absent."""
        if not self._shared_rows:
            return signs
        return hashing.shared_signs(self._config, signs)

    def fill(
        self,
        chunks: Iterable[tuple[Array, Array]],
        at_most: int,
        folder: pathlib.Path,
    ) -> tuple[dict[str, ValueFile], dict[str, typing.Any]]:
        """Writes rows to files as they come.

        Args:
          chunks: iterable of `(signs int64 [n], rows float32 [n, dim + s])`,
            with each row once.
          at_most: int, an upper bound of the number of rows.
          folder: pathlib.Path of a folder for the files, which this creates.

        Returns:
          `(files, description)`: the values of the variables, by name; and what
          a manifest says of the table.

        Raises:
          RuntimeError: if there are more rows; the table is being trained.
          ValueError: if `dtype` cannot represent a weight, or an int8 table
            has too many rows.
        """
        if self.scales is not None and at_most > _MOST_SCALED_ROWS:
            raise ValueError(
                'Argument `dtype` of serving.export must not be "int8" for '
                f"more than {_MOST_SCALED_ROWS} rows. Received: table "
                f"{self.table_name!r} of {at_most} rows"
            )
        default = self.unknown_rows(np.zeros(1, np.int64))
        if self._computes_unknown:
            default[:] = 0  # Never read.
        folder.mkdir(parents=True)
        files: dict[str, ValueFile] = {}
        count = 0
        first = (np.zeros(0, np.int64), default)
        chunks = self._with_all_shared(chunks)
        for signs, rows in itertools.chain([first], chunks):
            count += len(signs)
            if count > at_most + self._shared_rows:
                raise RuntimeError(
                    f"Table {self.table_name!r} had {at_most} rows, and has "
                    "more now: export it while it is not being trained."
                )
            for name, values in self._encoded(signs, rows).items():
                if name not in files:
                    files[name] = ValueFile(folder / name, getattr(self, name))
                files[name].append(values)
        return files, self._description(count)

    def _with_all_shared(
        self, chunks: Iterable[tuple[Array, Array]]
    ) -> Iterator[tuple[Array, Array]]:
        """Yields the chunks, and shared rows that are not among them."""
        absent = _core.FIRST_SHARED_SIGN + np.arange(self._shared_rows)
        for signs, rows in chunks:
            yield signs, rows
            if len(absent):
                absent = np.setdiff1d(absent, signs, assume_unique=True)
        if len(absent):
            yield absent, self.unknown_rows(absent)

    def _encoded(self, signs: Array, rows: Array) -> dict[str, Array]:
        """The values of the variables for some rows, by name."""
        weights, statistics = rows[:, : self.dim], rows[:, self.dim :]
        stored, scales = row_dtypes.encode(weights, self.dtype, self.table_name)
        values = {"signs": signs, "rows": stored}
        if scales is not None:
            values["scales"] = scales
        if self._names:
            values["statistics"] = statistics
        return values

    def _description(self, count: int) -> dict[str, typing.Any]:
        """What a manifest says of the table with a number of rows."""
        variables = [self.signs, self.rows, self.scales, self.statistics]
        size = sum(
            one.dtype.size * math.prod(one.shape[1:])
            for one in variables
            if one is not None
        )
        statistics = {"statistics": self._names} if self._names else {}
        return {
            "name": self.table_name,
            "rows": count,
            "dim": self.dim,
            "dtype": self.dtype,
            "bytes": count * size,
            "unknown": self._unknown or "initial",
            "hash_version": int(self._entries["hash_version"]),
            **statistics,
        }

    def lookup(self, signs: tf.Tensor, statistics: int = 0) -> tf.Tensor:
        """The rows of signs int64 `[n]`.

        Args:
          signs: int64 `[n]`.
          statistics: int, how many statistics follow the weights: 0, or all.

        Returns:
          float32 `[n, dim + statistics]`.
        """
        numbers, scales = self._index.find(signs)
        weights = self._weights(
            signs, *self._with_shared(signs, numbers, scales)
        )
        if not statistics:
            return weights
        more = tf.gather_nd(self.statistics, numbers[:, tf.newaxis])
        rows = tf.concat([weights, more], 1)
        rows.set_shape([None, self.dim + statistics])
        return rows

    def _with_shared(
        self, signs: tf.Tensor, numbers: tf.Tensor, scales: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """`(numbers, scales)`, of absent signs those of the shared rows."""
        if not self._shared_rows:
            return numbers, scales

        def find() -> list[tf.Tensor]:
            places = tf.where(tf.equal(numbers, 0))
            absent = tf.gather_nd(signs, places)
            found = self._index.find(shared_signs(absent, self._shared_rows))
            return [
                tf.tensor_scatter_nd_update(before, places, after)
                for before, after in zip((numbers, scales), found)
                if after is not None
            ]

        found = tf.cond(
            tf.reduce_any(tf.equal(numbers, 0)),
            find,
            lambda: [one for one in (numbers, scales) if one is not None],
        )
        return found[0], None if scales is None else found[1]

    def _weights(
        self, signs: tf.Tensor, numbers: tf.Tensor, scales: tf.Tensor | None
    ) -> tf.Tensor:
        # For rows scattered over memory, this takes three quarters of the time
        # of `tf.gather`. The variable must not be read by any other op: this
        # one sets its copy-on-read mode, in which others copy all of it.
        rows = tf.gather_nd(self.rows, numbers[:, tf.newaxis])
        rows = tf.cast(rows, tf.float32)
        if scales is not None:
            rows *= scales[:, tf.newaxis]
        if self._computes_unknown:
            found = rows
            rows = tf.cond(
                tf.equal(tf.reduce_min(numbers), 0),
                lambda: self._with_initial_rows(found, signs, numbers),
                lambda: found,
            )
        # Neither what looks numbers up nor tf.cond knows it.
        rows.set_shape([None, self.dim])
        return rows

    def _with_initial_rows(
        self, rows: tf.Tensor, signs: tf.Tensor, numbers: tf.Tensor
    ) -> tf.Tensor:
        places = tf.where(tf.equal(numbers, 0))
        initial = initial_rows(
            self._config, tf.gather_nd(signs, places), self.dim
        )
        return tf.tensor_scatter_nd_update(rows, places, initial)


class StockTables:
    """What takes the places of a model's tables in what is traced for serving.

    Args:
      tables: the model's tables.
      dtype: as of StockTable.
      unknown: as of StockTable.

    Attributes:
      of: dict from the tables, in the same order, to their StockTables.
      hidden: string, the name of a table that was read where the reading would
        last longer than the trace; None if none was.
    """

    def __init__(
        self, tables: Sequence[SparseTable], dtype: str, unknown: str | None
    ) -> None:
        self.of = {
            table: StockTable(
                table.rows.config,
                dtype,
                unknown,
                table.rows.served.names[1:],
            )
            for table in tables
        }
        self.hidden: str | None = None

    def lookup(
        self,
        graph: typing.Any,
        table: SparseTable,
        signs: tf.Tensor,
        statistics: int,
    ) -> tf.Tensor:
        """Rows in place of a table's, as `BatchSource.lookup` has to return.

        Args:
          graph: FuncGraph of the function that is traced.
          table: one of the tables.
          signs: as of `StockTable.lookup`.
          statistics: as of `StockTable.lookup`.

        Raises:
          RuntimeError: if another tf.function would keep the rows.
        """
        if in_other_function(graph):
            self.hidden = table.name
            raise RuntimeError(f"{table.name} in another function")
        return self.of[table].lookup(signs, statistics)


def _variable(
    shape: list[int | None], dtype: typing.Any, name: str
) -> tf.Variable:
    empty = tf.zeros([size or 0 for size in shape], dtype)
    return tf.Variable(empty, trainable=False, name=name, shape=shape)
