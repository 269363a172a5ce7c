# SPDX-License-Identifier: Apache-2.0
"""Exact top-k of inner products, in blocks of candidates.

`tf.math.top_k` takes longer than the product of queries and candidates. So the
candidates of a block are divided into groups, and only the best groups are
searched: the best `k` candidates are in the `k` groups with the best maxima.
"""

import tensorflow as tf

# Candidates per group: the maxima are a pass over all scores, and the search
# reads `k` times as many scores as a group has.
_GROUP = 32
# How many times as many groups there must be as are searched.
_LEAST_SAVING = 4
# Candidates per block by default: few queries have more, because the ops of a
# block would take longer than their products.
_LEAST_BLOCK = 65_536
_LEAST_SCORES = 1 << 20

Top = tuple[tf.Tensor, tf.Tensor]
"""`(scores [b, m] float32, places or ids [b, m])`, scores descending."""


def blocked_top_k(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    k: tf.Tensor,
    block_size: int | None,
) -> Top:
    """The candidates with the highest inner products.

    Of equal products, that of the first candidate comes first.

    Args:
      queries: float32 `[b, dim]`.
      candidates: float32 `[n, dim]`.
      k: int32 scalar.
      block_size: int, candidates per block: scores of a block are in memory at
        the same time. None: 65,536, or as many as give 2^20 scores.

    Returns:
      Scores float32 and numbers of candidates int64, both `[b, min(k, n)]`.
    """
    batch, count = tf.shape(queries)[0], tf.shape(candidates)[0]
    if block_size is None:
        of_scores = _LEAST_SCORES // tf.maximum(batch, 1)
        wanted = tf.maximum(of_scores, _LEAST_BLOCK)
    else:
        wanted = tf.constant(max(block_size, _GROUP))
    block = wanted // _GROUP * _GROUP
    grouped = count // _GROUP * _GROUP

    def merge_block(
        begin: tf.Tensor, scores: tf.Tensor, places: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        end = tf.minimum(begin + block, grouped)
        products = tf.matmul(queries, candidates[begin:end], transpose_b=True)
        found, where = tf.cond(
            # Otherwise most groups would be searched.
            k < (end - begin) // _GROUP // _LEAST_SAVING,
            lambda: _top_of_groups(products, k),
            lambda: _top(products, k),
        )
        where = tf.cast(where, tf.int64) + tf.cast(begin, tf.int64)
        return end, *merge((scores, places), (found, where), k)

    any_size = tf.TensorShape([None, None])
    _, scores, places = tf.while_loop(
        lambda begin, *_: begin < grouped,
        merge_block,
        (0, tf.zeros([batch, 0]), tf.zeros([batch, 0], tf.int64)),
        shape_invariants=(tf.TensorShape([]), any_size, any_size),
        parallel_iterations=1,
    )
    rest = tf.matmul(queries, candidates[grouped:], transpose_b=True)
    found, where = _top(rest, k)
    where = tf.cast(where, tf.int64) + tf.cast(grouped, tf.int64)
    return merge((scores, places), (found, where), k)


def merge(first: Top, second: Top, k: tf.Tensor) -> Top:
    """The best `k` of two results; of equal ones, those of the first.

    The second elements of the results may be of any dtype.
    """
    both = tf.concat([first[1], second[1]], 1)
    scores, chosen = _top(tf.concat([first[0], second[0]], 1), k)
    return scores, tf.gather(both, chosen, batch_dims=1)


def drop(top: Top, excluded: tf.Tensor, k: tf.Tensor) -> Top:
    """The best `k` of a result without those of `excluded` bool `[b, m]`."""
    scores, chosen = _top(tf.where(excluded, -float("inf"), top[0]), k)
    return scores, tf.gather(top[1], chosen, batch_dims=1)


def fill(top: Top, k: int, missing: int | str) -> Top:
    """A result of width `k`: `-inf` and `missing` where there are fewer.

    A score of `-inf` is one of an excluded candidate.
    """
    scores, found = top
    more = [[0, 0], [0, k - tf.shape(scores)[1]]]
    scores = tf.pad(scores, more, constant_values=-float("inf"))
    missing = tf.constant(missing, found.dtype)
    absent = tf.fill([tf.shape(found)[0], more[1][1]], missing)
    found = tf.concat([found, absent], 1)
    found = tf.where(scores > -float("inf"), found, missing)
    return tf.ensure_shape(scores, [None, k]), tf.ensure_shape(found, [None, k])


def is_member(ids: tf.Tensor, sets: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """Whether the ids of a row are in the set of that row.

    Takes memory in proportion to both, not to their product.

    Args:
      ids: int64 or string `[b, m]`.
      sets: the same dtype, `[b, n]`, dense or ragged.

    Returns:
      bool `[b, m]`.
    """
    ragged = isinstance(sets, tf.RaggedTensor)
    members = sets.flat_values if ragged else tf.reshape(sets, [-1])
    flat = tf.reshape(ids, [-1])
    # Strings cannot be sorted, and numbers of distinct ids are exact.
    _, numbers = tf.unique(tf.concat([flat, members], 0))
    asked = tf.reshape(numbers[: tf.size(flat)], tf.shape(ids))
    found = numbers[tf.size(flat) :]
    if ragged:
        found = sets.with_flat_values(found).to_tensor(-1)
    else:
        found = tf.reshape(found, tf.shape(sets))
    # One more than the largest, so that no row is empty.
    found = tf.pad(found, [[0, 0], [0, 1]], constant_values=tf.int32.max)
    found = tf.sort(found, axis=1)
    places = tf.searchsorted(found, asked)
    return tf.equal(tf.gather(found, places, batch_dims=1), asked)


def are_members(
    ids: tf.Tensor, sets: tf.Tensor | tf.RaggedTensor, batch: tf.Tensor
) -> tf.Tensor:
    """Whether some ids are in the set of each row.

    Args:
      ids: int64 or string `[m]`.
      sets: the same dtype, `[b, n]`, dense or ragged.
      batch: int64 scalar, b.

    Returns:
      bool `[b, m]`.
    """
    if not isinstance(sets, tf.RaggedTensor):
        sets = tf.RaggedTensor.from_tensor(sets)
    _, numbers = tf.unique(tf.concat([ids, sets.flat_values], 0))
    count = tf.size(ids)
    asked, found = numbers[:count], numbers[count:]
    # Numbers are given in order: those of the ids come first.
    indexed = found < tf.reduce_max(tf.pad(asked + 1, [[0, 1]]))
    rows = tf.boolean_mask(tf.cast(sets.value_rowids(), tf.int64), indexed)
    places = tf.cast(tf.boolean_mask(found, indexed), tf.int64)
    hits = tf.tensor_scatter_nd_update(
        tf.zeros([batch, tf.cast(count, tf.int64)], tf.bool),
        tf.stack([rows, places], 1),
        tf.ones_like(rows, tf.bool),
    )
    return tf.gather(hits, asked, axis=1)


def _top(scores: tf.Tensor, k: tf.Tensor) -> Top:
    top = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
    return top.values, top.indices


def _top_of_groups(scores: tf.Tensor, k: tf.Tensor) -> Top:
    """The top of scores `[b, m]`, m divisible by the size of a group."""
    batch = tf.shape(scores)[0]
    groups = tf.shape(scores)[1] // _GROUP
    # Explicit sizes: there may be no query.
    scores = tf.reshape(scores, [batch, groups, _GROUP])
    wanted = tf.minimum(k, groups)
    best = tf.math.top_k(tf.reduce_max(scores, 2), wanted, sorted=False)
    # In their order, so that the first of equal scores stays the first.
    chosen = tf.sort(best.indices, axis=1)
    near = tf.reshape(
        tf.gather(scores, chosen, batch_dims=1), [batch, wanted * _GROUP]
    )
    found, places = _top(near, k)
    groups_of = tf.gather(chosen, places // _GROUP, batch_dims=1)
    return found, groups_of * _GROUP + places % _GROUP
