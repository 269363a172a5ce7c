# SPDX-License-Identifier: Apache-2.0
"""Whether a layer looks its embeddings up, or is given them."""

import contextlib
import contextvars
import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf_ext._core import Setting
from tf_ext.feature_column.column import Column
from tf_ext.tables.sparse_table import SparseTable


class Given(typing.NamedTuple):
    """The output of a column.

    Attributes:
      output: `[batch_size, *column.output_shape(dim)]`, ragged if the column
        is a ragged sequence.
      mask: bool `[batch_size, length]`, of a padded sequence; else None.
    """

    output: tf.Tensor | tf.RaggedTensor
    mask: tf.Tensor | None


Give: typing.TypeAlias = Callable[
    [SparseTable, Column, Mapping[str, typing.Any]], Given
]
"""`(table, column, features by key) -> Given`."""

_GIVE: contextvars.ContextVar[Give | None] = contextvars.ContextVar(
    "tf_ext_give_embeddings", default=None
)


def embeddings_given_by(give: Give) -> contextlib.AbstractContextManager[None]:
    """Makes EmbeddingFeatures take embeddings instead of looking them up.

    Args:
      give: what makes the output of a column on a table. It is called in the
        order of tables and columns, whenever a layer is.
    """
    return Setting(_GIVE, give)


def given_embeddings() -> Give | None:
    """What gives embeddings inside of `embeddings_given_by`; None outside."""
    return _GIVE.get()
