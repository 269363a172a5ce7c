# SPDX-License-Identifier: Apache-2.0
"""What regimes and tables are to each other.

The package of tables builds on this one, which names none of its classes.
"""

import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Chunk: typing.TypeAlias = tuple[
    npt.NDArray[np.int64], dict[str, npt.NDArray[typing.Any]]
]
"""Rows outside of TensorFlow: `(signs [n], {field: [n, count]})`."""


class ShardDevices(typing.NamedTuple):
    """Where the shards of a table are.

    Attributes:
      devices: list of strings, of the shards that this process can ask.
      owner: as of `tf_ext.distribute.strategy.table_owner`, on parameter
        servers, or None.
    """

    devices: list[str]
    owner: tuple[str, str] | None = None


class Field(typing.NamedTuple):
    """A field of a row.

    Attributes:
      name: string.
      dtype: the type in which it is stored.
      count: int, the number of values.
    """

    name: str
    dtype: tf.DType
    # Instead of the method of tuples.
    count: int  # type: ignore[assignment]


class Exports(typing.Protocol):
    """What can be copied out a chunk at a time: rows of a shard, or counters.

    See `tf_ext.tables.shard.TableShard`.
    """

    def export(
        self, cursor: int | tf.Tensor = 0, limit: int = -1
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """`(signs [n], next_cursor [], {field: [n, count]})`."""


class Shard(Exports, typing.Protocol):
    """The rows of a table on one device."""

    @property
    def device(self) -> str:
        """The device that holds them."""

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle, for the ops on tables."""


class Rows(typing.Protocol):
    """The rows of a table; see `tf_ext.tables.rows.TableRows`."""

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards that this process accesses."""

    @property
    def num_shards(self) -> int:
        """The number of all shards."""

    @property
    def records_seconds(self) -> bool:
        """Whether rows store the time of their last push in seconds."""


class Table(typing.Protocol):
    """A table in a step; see `tf_ext.SparseTable`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def dim(self) -> int:
        """The number of weights in a row."""

    @property
    def trainable(self) -> bool:
        """Whether rows are made and updated."""

    @property
    def statistics_width(self) -> int:
        """How many statistics a push has for each sign."""

    @property
    def shared_rows(self) -> int:
        """How many rows the signs without one share; 0: none."""

    @property
    def shadow(self) -> tf.Variable:
        """The variable that represents it in Keras."""

    @property
    def rows(self) -> Rows:
        """Its rows."""


TableSlices: typing.TypeAlias = list[tuple[Table, tf.IndexedSlices]]
"""The gradients of tables as they come from a tape."""

Slices: typing.TypeAlias = Sequence[tuple[tf.Tensor, tf.Tensor]]
"""`(indices, values [n, dim])` of each of a table's gradients."""

Parts: typing.TypeAlias = Sequence[tuple[Table, Slices]]
"""The gradients of each table, which `Exchange.merge` sums."""
