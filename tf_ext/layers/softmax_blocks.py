# SPDX-License-Identifier: Apache-2.0
"""Logits of queries and candidates, and their logsumexp in bounded memory."""

import functools
import typing

import tensorflow as tf

# Of a masked logit: finite, because 0 * -inf in a loss would be NaN.
MASKED = -1e30
# Logits in memory at a time: 64 MB.
_BLOCK = 1 << 24

More: typing.TypeAlias = dict[str, tf.Tensor]
# What changes the logits of `b` queries and `n` candidates, all optional.
_ROWS = {
    "own": tf.TensorSpec([None], tf.int64),  # Codes of the queries' items.
    "mask": tf.TensorSpec([None, None], tf.bool),  # [b, n]: what counts.
}
_COLUMNS = {
    "bias": tf.TensorSpec([None], tf.float32),  # Subtracted.
    "codes": tf.TensorSpec([None], tf.int64),  # Codes of the candidates.
}


def logits_of(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    more: More,
    labels: tf.Tensor | None = None,
) -> tf.Tensor:
    """The logits `[b, n]`, `MASKED` where a candidate does not count.

    Args:
      queries: float32 `[b, dim]`, divided by the temperature.
      candidates: float32 `[n, dim]`.
      more: dict of what changes the logits. A candidate of the query's own
        code does not count.
      labels: int64 `[b]`, the columns in which it does; None for none.
    """
    logits = tf.matmul(queries, candidates, transpose_b=True)
    if "bias" in more:
        logits -= more["bias"]
    if "own" in more:
        hits = tf.equal(more["own"][:, tf.newaxis], more["codes"])
        if labels is not None:
            count = tf.shape(logits, tf.int64)[1]
            hits &= tf.not_equal(labels[:, tf.newaxis], tf.range(count))
        logits = tf.where(hits, MASKED, logits)
    if "mask" in more:
        logits = tf.where(more["mask"], logits, MASKED)
    return logits


def logsumexp_of(
    queries: tf.Tensor, candidates: tf.Tensor, more: More
) -> tf.Tensor:
    """The logsumexp of each row of `logits_of`, `[b]`.

    More logits than a block has are computed in blocks of rows, and once more
    for the gradient, so that memory does not grow with `b * n`. The gradient
    goes to the queries and the candidates. The arguments are those of
    `logits_of`.
    """
    given = tuple(sorted(more))
    # In int64: 65,536 queries and as many candidates have 2^32 logits.
    count = tf.shape(queries, tf.int64)[0] * tf.shape(candidates, tf.int64)[0]
    sums = tf.cond(
        count <= _BLOCK,
        lambda: tf.reduce_logsumexp(logits_of(queries, candidates, more), 1),
        lambda: _function(given)(queries, candidates, more),
    )
    return tf.ensure_shape(sums, queries.shape[:1])


@functools.cache
def _function(given: tuple[str, ...]) -> typing.Any:
    # A function of its own captures nothing: TensorFlow keeps the graph of a
    # custom gradient, and so the tables that a model's graph refers to, until
    # the process ends.
    vectors = tf.TensorSpec([None, None], tf.float32)
    specs = {**_ROWS, **_COLUMNS}
    signature = [vectors, vectors, {name: specs[name] for name in given}]

    @tf.function(input_signature=signature, autograph=False)
    def logsumexp(
        queries: tf.Tensor, candidates: tf.Tensor, more: More
    ) -> tf.Tensor:
        @tf.custom_gradient
        def blocked(queries: tf.Tensor, candidates: tf.Tensor) -> typing.Any:
            sums = _forward(queries, candidates, more)
            return sums, lambda gradient: _backward(
                queries, candidates, more, sums, gradient
            )

        return blocked(queries, candidates)

    return logsumexp


def _blocks(
    queries: tf.Tensor, candidates: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of a block, and the number of blocks: at least 1."""
    count = tf.maximum(tf.shape(candidates)[0], 1)
    rows = tf.maximum(_BLOCK // count, 1)
    total = tf.shape(queries)[0]
    return rows, tf.maximum((total + rows - 1) // rows, 1)


def _block(
    begin: tf.Tensor, end: tf.Tensor, queries: tf.Tensor, more: More
) -> tuple[tf.Tensor, More]:
    """What `logits_of` takes for some rows."""
    of_block = {
        name: value[begin:end] if name in _ROWS else value
        for name, value in more.items()
    }
    return queries[begin:end], of_block


def _forward(
    queries: tf.Tensor, candidates: tf.Tensor, more: More
) -> tf.Tensor:
    rows, blocks = _blocks(queries, candidates)
    found = tf.TensorArray(
        tf.float32, blocks, infer_shape=False, element_shape=[None]
    )

    def step(block: tf.Tensor, found: tf.TensorArray) -> typing.Any:
        begin = block * rows
        some, of_block = _block(begin, begin + rows, queries, more)
        sums = tf.reduce_logsumexp(logits_of(some, candidates, of_block), 1)
        return block + 1, found.write(block, sums)

    _, found = tf.while_loop(
        lambda block, _: block < blocks, step, (0, found), parallel_iterations=1
    )
    return found.concat()


def _backward(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    more: More,
    sums: tf.Tensor,
    gradient: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    rows, blocks = _blocks(queries, candidates)
    found = tf.TensorArray(
        tf.float32, blocks, infer_shape=False, element_shape=[None, None]
    )

    def step(
        block: tf.Tensor, found: tf.TensorArray, to_candidates: tf.Tensor
    ) -> typing.Any:
        begin, end = block * rows, (block + 1) * rows
        some, of_block = _block(begin, end, queries, more)
        logits = logits_of(some, candidates, of_block)
        shares = tf.exp(logits - sums[begin:end, tf.newaxis])
        shares *= gradient[begin:end, tf.newaxis]
        found = found.write(block, tf.matmul(shares, candidates))
        to_candidates += tf.matmul(shares, some, transpose_a=True)
        return block + 1, found, to_candidates

    _, found, to_candidates = tf.while_loop(
        lambda block, *_: block < blocks,
        step,
        (0, found, tf.zeros_like(candidates)),
        parallel_iterations=1,
    )
    return found.concat(), to_candidates
