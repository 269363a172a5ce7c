# SPDX-License-Identifier: Apache-2.0
"""Where the layers of a model find the batch of a call, and its rows.

This is the only context that they have beside their arguments. It has to be
one: a caller of a model cannot hand its layers anything, because Keras, and
code of users, stand between them. It is at the bottom, because ops and regimes
read it, too.
"""

import contextlib
import contextvars
import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf_ext._core import Setting


class Given(typing.NamedTuple):
    """The output of a column.

    Attributes:
      output: `[batch_size, *column.output_shape(dim)]`, ragged if the column
        is a ragged sequence.
      mask: bool `[batch_size, length]`, of a padded sequence; else None.
    """

    output: tf.Tensor | tf.RaggedTensor
    mask: tf.Tensor | None


class HashedColumns(typing.NamedTuple):
    """Columns that are hashed, and features that are not in the batch any more.

    Attributes:
      columns: as `feature_column.hashed_features.Hashed`.
      features: set of strings.
    """

    columns: Mapping[str, Mapping[str, typing.Any]]
    features: frozenset[str]


Give: typing.TypeAlias = Callable[
    [typing.Any, typing.Any, Mapping[str, typing.Any]], Given
]
"""`(table, column, features by key) -> Given`."""

Lookup: typing.TypeAlias = Callable[[typing.Any, tf.Tensor, int], tf.Tensor]
"""`(table, signs int64 [n], statistics) -> float32 [n, dim + statistics]`."""


class BatchSource(typing.NamedTuple):
    """Where the layers find a batch: among their inputs, unless it says else.

    Attributes:
      given: the outputs of columns are given, by a call for each, in the order
        of tables and columns; nothing is hashed or read. None: they are not.
      prepared: dict of `layers.pulling.Prepared` by layer, the batch of its
        next call, which takes it out: hashed, but not read.
      hashed: HashedColumns that are not among the inputs, as the layers of a
        functional model have only those that it was made with; or None.
      without_click: the layers that have zeros in place of the feature that
        holds clicks, as a functional model has to hand over all of its inputs.
      lookup: reads rows in place of tables, and only TensorFlow's own ops are
        traced. None: tables are read.
    """

    given: Give | None = None
    prepared: dict[typing.Any, typing.Any] | None = None
    hashed: HashedColumns | None = None
    without_click: frozenset[typing.Any] = frozenset()
    lookup: Lookup | None = None


_RAW = BatchSource()
_SOURCE: contextvars.ContextVar[BatchSource] = contextvars.ContextVar(
    "tf_ext_batch_source", default=_RAW
)


def batch_source() -> BatchSource:
    """Where layers that are called here find a batch."""
    return _SOURCE.get()


def source_with(
    **changes: typing.Any,
) -> contextlib.AbstractContextManager[None]:
    """A context in which layers find a batch elsewhere.

    Args:
      **changes: attributes of BatchSource; the others stay as they are.
    """
    return Setting(_SOURCE, _SOURCE.get()._replace(**changes))
