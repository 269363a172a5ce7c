# SPDX-License-Identifier: Apache-2.0
"""Two numbers for each bag, from the statistics of its ids.

"CVM" is the continuous value model of PaddlePaddle's operators `cvm` and
`fused_seqpool_cvm`. Their rows begin with show and click, which are pooled like
the embedding, and then become log(show + 1) and log(click + 1) - log(show + 1).
"""

import typing
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import refuse
from tf_ext.feature_column import Bags
from tf_ext.feature_column.column import Column
from tf_ext.tables.sparse_table import SparseTable

STATISTICS = ["show", "click"]

COUNT = 2
"""How many numbers follow an embedding, and statistics the weights of a row."""


def check(
    cvm: object, columns_of: Mapping[SparseTable, Sequence[Column]]
) -> None:
    """Raises ValueError unless the argument `cvm` suits tables and columns."""
    if not isinstance(cvm, bool):
        refuse("EmbeddingFeatures", "cvm", "True or False", cvm)
    if not cvm:
        return
    for table, columns in columns_of.items():
        statistics = list(table.statistics)
        if statistics != STATISTICS:
            raise ValueError(
                "Argument `cvm` of EmbeddingFeatures must be False unless all "
                'tables have statistics=["show", "click"]. Received: cvm=True, '
                f"and table {table.name!r} with "
                f"statistics={statistics or None}"
            )
        for column in columns:
            if column.combiner is None:
                raise ValueError(
                    "Argument `cvm` of EmbeddingFeatures must be False for "
                    "columns without a combiner: their bags have no embedding "
                    "that the numbers could follow. Received: cvm=True, and "
                    f"column {column.name!r} with combiner=None"
                )


def numbers(
    statistics: tf.Tensor,
    inverse: tf.Tensor,
    bags: Bags,
    columns: Sequence[Column],
) -> tf.Tensor:
    """The numbers of a batch's bags.

    Statistics are combined as the embedding is, but without the weights of the
    values, which may be negative, and with which ids are not counted either.

    Args:
      statistics: float32 `[u, 2]`, show and click of the distinct ids.
      inverse: int32 `[n]`.
      bags: Bags of the columns.
      columns: list of columns.

    Returns:
      float32 `[batch_size, len(columns) * 2]`, without a gradient.
    """
    combiners: list[typing.Any] = [column.combiner for column in columns]
    combined = ops.combine_bags(
        statistics, inverse, bags.row_splits, combiners=combiners
    )
    logs = tf.reshape(tf.math.log1p(combined), [-1, len(columns), COUNT])
    show, click = tf.unstack(logs, COUNT, axis=2)
    pairs = tf.stack([show, click - show], 2)
    return tf.stop_gradient(tf.reshape(pairs, [-1, len(columns) * COUNT]))


def append(
    combined: Iterable[tuple[Sequence[Column], tf.Tensor]],
    added: tf.Tensor,
) -> list[tuple[Sequence[Column], tf.Tensor]]:
    """Appends the numbers to the embeddings of columns.

    Args:
      combined: list of `(columns, output)`, as of `combining.combine`.
      added: float32 `[batch_size, columns * 2]`, `numbers` of all columns.

    Returns:
      The same list, with `dim + 2` instead of `dim` values of each column.
    """
    outputs, begin = [], 0
    for run, output in combined:
        count = len(run)
        its = added[:, COUNT * begin : COUNT * (begin + count)]
        begin += count
        width = output.shape[1] + COUNT * count
        parts = [
            tf.reshape(one, [-1, count, one.shape[1] // count])
            for one in (output, its)
        ]
        joined = tf.reshape(tf.concat(parts, 2), [-1, width])
        outputs.append((run, joined))
    return outputs
