# SPDX-License-Identifier: Apache-2.0
"""Processes that hold shards: how they agree, fail and save together."""

import contextlib
import typing
from collections.abc import Callable, Generator, Mapping, Sequence

import tensorflow as tf

from tf_ext.distribute.collectives import Collectives
from tf_ext.regimes.table_interface import Chunk, Exports, Field

_T = typing.TypeVar("_T")


class Processes:
    """One process that reaches all shards; a base class.

    Attributes:
      count: int, how many processes hold shards of a table.
      rank: int, the index of this process. The first writes files for all.
      workers: Collectives of the processes that share out the rows, or None.
    """

    count: int = 1
    rank: int = 0
    workers: Collectives | None = None

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Gathers int64 `[n]` of all processes: `[count, n]`."""
        return values[tf.newaxis]

    def gather_json(self, value: typing.Any) -> list[typing.Any]:
        """Gathers a value of all processes in a list; outside of graphs.

        Args:
          value: a value that JSON can hold.
        """
        return [value]

    def from_first(
        self,
        value: _T,
        encode: Callable[[_T], typing.Any] | None = None,
        decode: Callable[[typing.Any], _T] | None = None,
    ) -> _T:
        """Returns the first process's value on all; outside of graphs.

        Args:
          value: anything.
          encode: function to a value that JSON can hold; None if it is one.
          decode: the inverse function.
        """
        del encode, decode
        return value

    def int_of_first(self, number: int) -> int:
        """Returns the first process's int on all; outside of graphs."""
        return number

    def present(self) -> int | None:
        """The seconds since 1970 to which those of pushes are compared.

        Returns:
          An int, the same on all processes; None for the clock of each device
          that holds rows. It is called outside of graphs.
        """
        return None

    def check_same(
        self, what: str, values: Callable[[], Mapping[str, typing.Any]]
    ) -> None:
        """Raises ValueError unless all processes have the same values.

        Args:
          what: string, what they are of, for the message.
          values: function to a nested dict of what JSON can hold, by the names
            in messages. Nothing is compared if it needs a method that an
            object of the user does not have.
        """
        del what, values

    def together(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A context after which all processes raise if one did.

        Args:
          what: string, what the block does, for the message.
        """
        del what
        return contextlib.nullcontext()

    # Saving

    def file_of_all(
        self, filepath: str
    ) -> contextlib.AbstractContextManager[str]:
        """A context with the path that this process saves a model to.

        All processes enter it at the same time; the file of the first remains.

        Args:
          filepath: string, the path that the user gave.

        Raises:
          RuntimeError: another process failed; its own error says why.
        """
        return contextlib.nullcontext(filepath)

    def chunks(
        self, shards: Sequence[Exports], fields: Sequence[Field], limit: int
    ) -> Generator[Chunk, None, None]:
        """Yields all rows of a table in chunks, on the first process.

        Other processes have to iterate as well, and to close it if they stop
        early; they get no chunks.

        Args:
          shards: list of TableShard, those that this process reaches.
          fields: tuple of Field.
          limit: int, the most rows per chunk.

        Yields:
          `(signs [n], {field: [n, count]})`, NumPy arrays.
        """
        del fields
        for shard in shards:
            cursor = 0
            while cursor >= 0:
                signs, cursor, values = shard.export(cursor, limit)
                cursor = int(cursor)
                yield signs.numpy(), {k: v.numpy() for k, v in values.items()}

    def checkpoint_part(
        self, shard: Exports, fields: Sequence[Field], limit: int
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The part of a shard in this process's checkpoint.

        Args:
          shard: TableShard.
          fields: tuple of Field.
          limit: int, the most rows sent at a time.

        Returns:
          `(signs [n], {field: [n, count]})`.
        """
        del fields, limit
        signs, _, values = shard.export()
        return signs, values
