# SPDX-License-Identifier: Apache-2.0
"""Signs to look up and combined bags, with stock ops.

The values of a bag are summed in the same order as in the custom ops, so that
the results are bit-identical.
"""

import itertools
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._signs import to_signs
from tf_ext.ops._stock import ragged, singles
from tf_ext.ops._stock.checks import check

_MAX = "max"


class Unique(typing.NamedTuple):
    """The result of `ops.unique_by_shard`."""

    unique: typing.Any
    counts: typing.Any
    inverse: typing.Any
    split_sizes: typing.Any


def unique_by_shard(
    signs: tf.Tensor, num_shards: int = 1, name: str | None = None
) -> Unique:
    """Replaces `ops.unique_by_shard`, but does not remove duplicates.

    Finding duplicates takes as long as looking up all signs.

    Args:
      signs: int64 `[n]`.
      num_shards: int, must be 1: exported tables are not sharded.
      name: is not used.

    Returns:
      Unique. If all columns have exactly one value per sample, `unique` is in
      sample-major order.

    Raises:
      ValueError: if `num_shards` is not 1.
    """
    if num_shards != 1:
        raise ValueError(
            "Argument `num_shards` of unique_by_shard must be 1 where only "
            f"stock ops are allowed. Received: num_shards={num_shards}"
        )
    del name
    signs = to_signs(signs, "unique_by_shard")
    shape = tf.shape(signs)
    places = tf.range(shape[0])
    columns = singles.columns_of_singles(signs) or 1
    if columns > 1:
        signs = _transposed(signs, [columns, -1])
        places = _transposed(places, [-1, columns])
    singles.mark_order(places, columns)
    return Unique(
        signs,
        tf.ones(shape, tf.int64),
        places,
        tf.shape(signs, tf.int64),
    )


def unique_by_shard_each(
    signs: Sequence[tf.Tensor], num_shards: int = 1, name: str | None = None
) -> Unique:
    """Replaces `bag_ops.unique_by_shard_each`; a Unique of lists."""
    found = [unique_by_shard(each, num_shards, name) for each in signs]
    return Unique(*map(list, zip(*found)))


def route_gradient(
    rows: tf.Tensor,
    shadow: tf.Tensor,
    signs: tf.Tensor,
    name: str | None = None,
) -> tf.Tensor:
    """Replaces `ops.route_gradient`: the rows, as nothing is trained."""
    del shadow, signs, name
    return tf.convert_to_tensor(rows)


def cut_bags(
    signs: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    columns: int,
    runs: Sequence[tuple[int, int]],
    weighted: Sequence[bool],
    name: str | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Replaces `bag_ops.cut_bags`."""
    del name
    batch = (tf.size(row_splits, tf.int64) - 1) // columns
    is_single = singles.columns_of_singles(row_splits) is not None
    parts = []
    for (begin, end), has_weights in zip(runs, weighted, strict=True):
        splits = row_splits[begin * batch : end * batch + 1]
        values = slice(splits[0], splits[-1])
        part = signs[values], splits - splits[0]
        if is_single:
            singles.mark_singles(part, end - begin)
        parts.append((*part, weights[values if has_weights else slice(0)]))
    its_signs, its_splits, its_weights = map(list, zip(*parts))
    return its_signs, its_splits, its_weights


def _transposed(values: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Transposes a matrix of the given shape; `values` and result are flat."""
    return tf.reshape(tf.transpose(tf.reshape(values, shape)), [-1])


class _Bags(typing.NamedTuple):
    """The bags of some adjacent columns.

    Attributes:
      combiners: the combiner of each column.
      inverse: int32 `[n]`, the index of each value's row; None if row i is that
        of value i.
      counts: int64 `[columns, batch_size]`, the number of values in each bag.
      weights: float32 `[n]`, or None.
    """

    combiners: list[str]
    inverse: tf.Tensor | None
    counts: tf.Tensor
    weights: tf.Tensor | None


def combine_bags(
    rows: tf.Tensor,
    inverse: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor | None = None,
    *,
    combiners: Sequence[str],
    name: str | None = None,
) -> tf.Tensor:
    """Replaces `ops.combine_bags`.

    Args:
      rows: float32 `[u, dim]`.
      inverse: int32 `[n]`.
      row_splits: int64 `[len(combiners) * batch_size + 1]`.
      weights: float32 `[n]`; `[0]` or None for weights of 1. "max" does not
        allow weights.
      combiners: list of strings.
      name: is not used.

    Returns:
      float32 `[batch_size, len(combiners) * dim]`.

    Raises:
      tf.errors.InvalidArgumentError: if tensors are inconsistent, or "max" has
        weights.
    """
    del name
    rows = tf.convert_to_tensor(rows, tf.float32)
    inverse = tf.convert_to_tensor(inverse, tf.int32)
    row_splits = tf.convert_to_tensor(row_splits, tf.int64)
    if _MAX in combiners:
        with tf.control_dependencies(_check_no_weights(weights)):
            rows, weights = tf.identity(rows), None
    weights = _weights_or_none(weights, inverse)
    columns = len(combiners)
    bags = _Bags(
        list(combiners),
        None if singles.columns_in_order(inverse) == 1 else inverse,
        _counts(row_splits, columns),
        weights,
    )
    if weights is None and singles.columns_of_singles(row_splits) == columns:
        return _singles(rows, inverse, bags)
    if weights is not None:
        return _combine(rows, bags, row_splits)
    # Most features have one value per sample, so their bags need no sums.
    alone = tf.logical_and(
        tf.equal(tf.size(inverse), tf.size(bags.counts)),
        tf.reduce_all(tf.equal(bags.counts, 1)),
    )
    return tf.cond(
        alone,
        lambda: _values_alone(rows, bags),
        lambda: _combine(rows, bags, row_splits),
    )


def _counts(row_splits: tf.Tensor, columns: int) -> tf.Tensor:
    """int64 `[columns, batch_size]`, the number of values in each bag."""
    counts = tf.reshape(row_splits[1:] - row_splits[:-1], [columns, -1])
    batch = (row_splits.shape[0] or 0) - 1
    if batch >= 0:
        counts.set_shape([columns, batch // columns])
    return counts


def _singles(rows: tf.Tensor, inverse: tf.Tensor, bags: _Bags) -> tf.Tensor:
    """Combines bags that are marked as having one value each."""
    columns = len(bags.combiners)
    if singles.columns_in_order(inverse) == columns:
        return _of_samples(bags, rows, _dim_of(rows), -1)
    return _values_alone(rows, bags)


def _values_alone(rows: tf.Tensor, bags: _Bags) -> tf.Tensor:
    """Combines bags of one value each."""
    columns, batch = len(bags.combiners), tf.shape(bags.counts)[1]
    # Not a transpose, which would not fit the static shapes of larger bags.
    places = tf.range(columns)[tf.newaxis] * batch
    places += tf.range(batch)[:, tf.newaxis]
    if bags.inverse is not None:
        places = tf.gather(bags.inverse, places)
    return _of_samples(bags, tf.gather(rows, places), _dim_of(rows))


def _rows_of_values(rows: tf.Tensor, bags: _Bags) -> tf.Tensor:
    """The row of each value, float32 `[n, dim]`."""
    return rows if bags.inverse is None else tf.gather(rows, bags.inverse)


def _combine(rows: tf.Tensor, bags: _Bags, row_splits: tf.Tensor) -> tf.Tensor:
    """Combines bags of any size."""
    outputs, first = [], 0
    columns = len(bags.combiners)
    for is_max, run in itertools.groupby(bags.combiners, lambda c: c == _MAX):
        names = list(run)
        some, values = bags._replace(combiners=names), rows
        if len(names) < columns:
            some, values = _side_by_side(some, rows, row_splits, first)
        outputs.append((_largest if is_max else _sums)(values, some))
        first += len(names)
    return outputs[0] if len(outputs) == 1 else tf.concat(outputs, 1)


def _check_no_weights(weights: tf.Tensor | None) -> list[tf.Operation]:
    if weights is None:
        return []
    weights = tf.convert_to_tensor(weights, tf.float32)
    if weights.shape == [0]:
        return []
    return check(
        tf.equal(tf.size(weights), 0),
        "Argument `weights` of combine_bags must be None or empty for max.",
    )


def _weights_or_none(
    weights: tf.Tensor | None, inverse: tf.Tensor
) -> tf.Tensor | None:
    """The weights, or None if there are none; a dynamic `[0]` means ones."""
    if weights is None:
        return None
    weights = tf.convert_to_tensor(weights, tf.float32)
    if weights.shape == [0]:
        return None
    if weights.shape.is_fully_defined():
        return weights
    absent = tf.cast(tf.equal(tf.size(weights), 0), tf.int32)
    return tf.concat([weights, tf.ones([absent * tf.size(inverse)])], 0)


def _side_by_side(
    bags: _Bags, rows: tf.Tensor, row_splits: tf.Tensor, first: int
) -> tuple[_Bags, tf.Tensor]:
    """Selects the columns from `first` on, one for each combiner of `bags`.

    Returns:
      `(bags, rows)` of these columns.
    """
    last = first + len(bags.combiners)
    batch = tf.shape(bags.counts, tf.int64)[1]
    values = slice(row_splits[first * batch], row_splits[last * batch])
    some = _Bags(
        bags.combiners,
        None if bags.inverse is None else bags.inverse[values],
        bags.counts[first:last],
        None if bags.weights is None else bags.weights[values],
    )
    return some, rows[values] if bags.inverse is None else rows


def _bag_of_values(bags: _Bags) -> tuple[tf.Tensor, tf.Tensor]:
    """The index of each value's bag in the output, and the number of bags.

    The output is in sample-major order, so that it need not be transposed.
    """
    columns = len(bags.combiners)
    batch = tf.shape(bags.counts, tf.int64)[1]
    samples = tf.range(batch) * columns
    places = samples[tf.newaxis] + tf.range(columns, dtype=tf.int64)[:, None]
    counts = tf.reshape(bags.counts, [-1])
    return ragged.repeat(tf.reshape(places, [-1]), counts), batch * columns


def _of_samples(
    bags: _Bags, values: tf.Tensor, dim: typing.Any, batch: typing.Any = None
) -> tf.Tensor:
    """Reshapes `[bags, dim]` to `[batch_size, columns * dim]`."""
    columns = len(bags.combiners)
    if batch is None:
        batch = tf.shape(bags.counts)[1]
    output = tf.reshape(values, [batch, columns * dim])
    width = columns * dim if isinstance(dim, int) else None
    output.set_shape([bags.counts.shape[1], width])
    return output


def _dim_of(rows: tf.Tensor) -> typing.Any:
    return tf.shape(rows)[1] if rows.shape[1] is None else rows.shape[1]


def _largest(rows: tf.Tensor, bags: _Bags) -> tf.Tensor:
    places, number = _bag_of_values(bags)
    most = tf.math.unsorted_segment_max(
        _rows_of_values(rows, bags), places, number
    )
    counts = tf.reshape(tf.transpose(bags.counts), [-1, 1])
    most = tf.where(counts > 0, most, tf.zeros([], tf.float32))
    return _of_samples(bags, most, _dim_of(rows))


def _sums(rows: tf.Tensor, bags: _Bags) -> tf.Tensor:
    places, number = _bag_of_values(bags)
    values = _rows_of_values(rows, bags)
    if bags.weights is not None:
        values = bags.weights[:, tf.newaxis] * values
    sums = tf.math.unsorted_segment_sum(values, places, number)
    divisors = _divisors(bags, places, number)
    if divisors is not None:
        sums = tf.math.divide_no_nan(sums, divisors)
    return _of_samples(bags, sums, _dim_of(rows))


def _divisors(
    bags: _Bags, places: tf.Tensor, number: tf.Tensor
) -> tf.Tensor | None:
    """The divisors of the bags' sums, `[bags, 1]`; None if all are 1."""
    kinds = sorted(set(bags.combiners))
    if kinds == ["sum"]:
        return None
    found = {k: _divisors_of(k, bags, places, number) for k in kinds}
    divisors = found[kinds[0]]
    columns = len(bags.combiners)
    for kind in kinds[1:]:
        chosen = tf.constant([name == kind for name in bags.combiners])
        divisors = tf.where(
            chosen,
            tf.reshape(found[kind], [-1, columns]),
            tf.reshape(divisors, [-1, columns]),
        )
    return tf.reshape(divisors, [-1, 1])


def _divisors_of(
    kind: str, bags: _Bags, places: tf.Tensor, number: tf.Tensor
) -> tf.Tensor:
    """The divisors if all columns had the combiner `kind`: float32 `[bags]`."""
    if kind == "sum":
        return tf.ones(tf.reshape(number, [1]), tf.float32)
    if bags.weights is None:
        counts = tf.cast(tf.transpose(bags.counts), tf.float32)
        counts = tf.reshape(counts, [-1])
        return counts if kind == "mean" else tf.sqrt(counts)
    weights = tf.cast(bags.weights, tf.float64)
    if kind == "mean":
        sums = tf.math.unsorted_segment_sum(weights, places, number)
    else:
        sums = tf.sqrt(
            tf.math.unsorted_segment_sum(weights * weights, places, number)
        )
    return tf.cast(sums, tf.float32)
