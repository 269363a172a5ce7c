# SPDX-License-Identifier: Apache-2.0
"""Converts the features of a batch to the signs of all columns."""

import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import check_mapping, listed, refuse
from tf_ext._compat.op_errors import in_own_words
from tf_ext.feature_column import bag_blocks, sequences, structure
from tf_ext.feature_column.bag_blocks import Bags
from tf_ext.feature_column.batch_checks import BatchChecks
from tf_ext.feature_column.column import Column, describe
from tf_ext.feature_column.part import Part

_Inputs = Mapping[str, typing.Any]


class _Input(typing.NamedTuple):
    """An input of the op; without row_splits the first dimension is the batch.

    Attributes:
      values: string, int64, int32 or float32.
      row_splits: int64 or None.
      weights: float32 or None.
    """

    values: tf.Tensor
    row_splits: tf.Tensor | None
    weights: tf.Tensor | None

    def batch_size(self) -> tf.Tensor:
        if self.row_splits is None:
            # 0 for a scalar, for which the op raises an error.
            return tf.reduce_sum(tf.shape(self.values, tf.int64)[:1])
        return tf.size(self.row_splits, tf.int64) - 1


class HashedBatch(typing.NamedTuple):
    """A batch of all columns.

    Attributes:
      bags: Bags. Those of a sequence hold the ids that are in its output.
      masks: dict of the sequences' masks, bool `[batch_size, length]`, by
        column: as often True as there are signs.
      lengths: dict of the lengths of their rows, int64 `[batch_size]`; what
        follows is padding of the batch.
      error: string scalar, "" if there is no error, or none is returned.
    """

    bags: Bags
    masks: dict[Column, tf.Tensor]
    lengths: dict[Column, tf.Tensor]
    error: tf.Tensor


def columns_to_bags(
    columns: Sequence[Column], inputs: _Inputs, name: str | None = None
) -> Bags:
    """Hashes the features of a batch.

    All columns but sequences share one op.

    Args:
      columns: list of `Column`, such as those of `category_column` and
        `crossed_column`. The bags of a `sequence_category_column` hold the ids
        that remain after truncation.
      inputs: dict of features by key: dense `[batch_size, ...]`, where the
        other dimensions are the bag, `tf.SparseTensor` `[batch_size, n]` with
        indices in row-major order, or `tf.RaggedTensor` `[batch_size, None]`;
        of strings, integers or, for columns with boundaries, floats. Other
        keys are ignored.
      name: optional name of the operation.

    Returns:
      `Bags`.

    Raises:
      ValueError: a feature is missing, or of a type that the column does not
        take.
      tf.errors.InvalidArgumentError: batch sizes differ, the indices of a
        SparseTensor are not in order (or of a sequence, have gaps), or weights
        have a different structure from their values.

    Example:
      >>> tags = tf_ext.feature_column.category_column("tags")
      >>> bags = tf_ext.feature_column.columns_to_bags(
      ...     [tags], {"tags": tf.ragged.constant([["a", "b"], [], ["a"]])})
      >>> bags.row_splits.numpy()
      array([0, 2, 2, 3])
      >>> bool(bags.signs[0] == bags.signs[2])
      True
    """
    return hash_batch(columns, inputs, False, name).bags


def hash_batch(
    columns: Sequence[Column],
    inputs: _Inputs,
    return_error: bool,
    name: str | None = None,
    batch_size: tf.Tensor | None = None,
) -> HashedBatch:
    """Bags and masks of a batch; `columns_to_bags` describes arguments.

    Args:
      columns: as for `columns_to_bags`.
      inputs: as for `columns_to_bags`.
      return_error: bool, whether errors of a batch are returned instead of
        raised: if a synchronous worker raised alone, the others would wait for
        it, so it has to send them the error first. Errors that are the same on
        all workers, as those of types and ranks, are raised in any case.
      name: optional name of the operation.
      batch_size: int64 scalar, if no column has a feature that is present.
        None: it is that of the features.

    Returns:
      HashedBatch, whose `error` is a string scalar, "" without an error. With
      one the bags are empty: signs and weights `[0]`, row_splits zeros `[number
      of columns * batch_size + 1]`, where batch_size is that of the first input
      with a valid one, or 0 if no input has one or there would be more than
      2^31 - 1 bags.
    """
    columns = list(columns)
    if not columns:
        refuse("columns_to_bags", "columns", "a non-empty sequence", columns)
    check_mapping("columns_to_bags", inputs)
    with tf.name_scope(name or "columns_to_bags"):
        inputs = {**inputs, **_tensors(columns, inputs)}
        for column in columns:
            column.check(inputs)
        checks = BatchChecks(return_error)
        if any(column.sequence is not None for column in columns):
            hashed = _hash_with_sequences(columns, inputs, checks, batch_size)
        else:
            arguments = _op_arguments(columns, inputs, checks, batch_size)
            [found] = _hash([arguments], checks)
            hashed = HashedBatch(_bags(found), {}, {}, found.error)
        if not return_error or not checks:
            return hashed
        error = checks.first_error(hashed.error)
        bags = _empty_unless(tf.equal(error, ""), hashed.bags)
        return hashed._replace(bags=bags, error=error)


def _hash(
    calls: Sequence[dict[str, typing.Any]], checks: BatchChecks
) -> list[typing.Any]:
    """Runs the op with each of some arguments, after all checks."""
    if checks.return_error:
        return [ops.hash_category(**one, return_error=True) for one in calls]
    # In eager mode there are no ops to wait for.
    with tf.control_dependencies(checks.assertions()), in_own_words():
        return [ops.hash_category(**one) for one in calls]


def _hash_with_sequences(
    columns: list[Column],
    inputs: _Inputs,
    checks: BatchChecks,
    batch_size: tf.Tensor | None,
) -> HashedBatch:
    """Hashes sequences, one op for each, beside the other columns."""
    layouts = {c: c.sequence for c in columns if c.sequence is not None}
    pooled = [c for c in dict.fromkeys(columns) if c not in layouts]
    runs = {
        c: sequences.positions_of(c.name, c.parts, inputs, checks)
        for c in layouts
    }
    present = {c: run for c, run in runs.items() if run is not None}
    batch = _check_batch_sizes(list(present.values()), checks)
    batch = batch_size if batch is None else batch
    calls = [
        _op_arguments([column], run.features, checks)
        for column, run in present.items()
    ]
    if pooled or not present:
        calls.append(_op_arguments(pooled or columns, inputs, checks, batch))
    found = _hash(calls, checks)
    blocks = []
    if pooled:
        blocks.append(_bags(found[-1]))
        batch = (tf.size(blocks[0].row_splits, tf.int64) - 1) // len(pooled)
    of_run = dict(zip(present, found))
    kept = {
        c: layouts[c].keep_none(batch, c.is_weighted)
        if run is None
        else layouts[c].keep(run, _bags(of_run[c]), c.is_weighted)
        for c, run in runs.items()
    }
    blocks += [one.bags(batch) for one in kept.values()]
    bags = bag_blocks.concatenate(blocks, any(c.is_weighted for c in columns))
    places = {column: i for i, column in enumerate([*pooled, *kept])}
    bags = bag_blocks.select(
        bags, [c.is_weighted for c in places], [places[c] for c in columns]
    )
    error = found[0].error
    for one in found[1:]:
        error = tf.where(tf.equal(error, ""), one.error, error)
    masks = {c: one.mask for c, one in kept.items()}
    lengths = {c: one.lengths for c, one in kept.items()}
    return HashedBatch(bags, masks, lengths, error)


def _check_batch_sizes(
    runs: Sequence[sequences.Positions], checks: BatchChecks
) -> tf.Tensor | None:
    """The batch size of the sequences, or None if there are none."""
    for one in runs[1:]:
        _check_batch_size(one.batch_size(), runs[0].batch_size(), checks)
    return runs[0].batch_size() if runs else None


def _check_batch_size(
    found: tf.Tensor, wanted: tf.Tensor, checks: BatchChecks
) -> None:
    checks.add(
        tf.equal(found, wanted),
        "All features must have the same batch size, but that of a sequence "
        "differs.",
    )


def _bags(found: typing.Any) -> Bags:
    return Bags(found.signs, found.sign_splits, found.sign_weights)


def _empty_unless(fine: tf.Tensor, bags: Bags) -> Bags:
    """The bags, or the same number of empty bags if there is an error."""
    signs = bags.signs[: tf.where(fine, tf.size(bags.signs), 0)]
    row_splits = bags.row_splits * tf.cast(fine, tf.int64)
    weights = bags.weights
    if weights.shape != [0]:
        weights = weights[: tf.where(fine, tf.size(weights), 0)]
    return Bags(signs, row_splits, weights)


def _op_arguments(
    columns: Sequence[Column],
    inputs: _Inputs,
    checks: BatchChecks,
    batch_size: tf.Tensor | None = None,
) -> dict[str, typing.Any]:
    """The arguments of `ops.hash_category`; adds the checks to `checks`.

    Args:
      columns: list of Column.
      inputs: dict of tensors by key, which the columns have checked.
      checks: BatchChecks.
      batch_size: int64 scalar, if it is known otherwise; or None.
    """
    places, op_inputs = _read_inputs(columns, inputs, checks, batch_size)
    return {
        "values": [one.values for one in op_inputs],
        "row_splits": [one.row_splits for one in op_inputs],
        "weights": [one.weights for one in op_inputs],
        **describe(columns, places),
    }


def _tensors(
    columns: Sequence[Column], inputs: _Inputs
) -> dict[str, structure.Feature]:
    """The features and weights that the columns read, if present."""
    parts = [part for column in columns for part in column.parts]
    keys = dict.fromkeys(key for part in parts for key in part.keys)
    return {
        key: structure.to_tensor(key, inputs[key])
        for key in keys
        if key in inputs
    }


def _read_inputs(
    columns: Sequence[Column],
    inputs: _Inputs,
    checks: BatchChecks,
    batch_size: tf.Tensor | None,
) -> tuple[list[int], list[_Input]]:
    """The op's inputs, and the index of its input for each column's part.

    A feature is converted once, however many columns read it.
    """
    parts = [part for column in columns for part in column.parts]
    found: dict[object, _Input] = {}
    sources = [_source(part, inputs) for part in parts]
    for part, source in zip(parts, sources):
        if source is not None and source not in found:
            found[source] = _read(part, inputs, checks)
    if found and batch_size is not None:
        size = next(iter(found.values())).batch_size()
        _check_batch_size(size, batch_size, checks)
    if not found and batch_size is None:
        raise ValueError(
            "The batch size is unknown, because the features of all "
            f"columns are missing: {', '.join(sorted({p.key for p in parts}))}."
            f" Present are: {listed(inputs)}. Pass at least "
            "one."
        )
    for part, source in zip(parts, sources):
        if source is None:
            if batch_size is None:
                batch_size = next(iter(found.values())).batch_size()
            dtype = part.type_of_absent()
            found[dtype] = _Input(
                tf.zeros([0], dtype),
                tf.zeros([batch_size + 1], tf.int64),
                None,
            )
    place = {source: i for i, source in enumerate(found)}
    places = [
        place[source or part.type_of_absent()]
        for part, source in zip(parts, sources)
    ]
    return places, list(found.values())


def _source(
    part: Part, inputs: _Inputs
) -> tuple[str, str | None, str, tf.DType] | None:
    """A key that identifies an input; None if the feature is missing."""
    if part.key not in inputs:
        return None
    dtype = part.converted_type(inputs[part.key].dtype)
    return part.key, part.weights, part.conversion, dtype


def _read(part: Part, inputs: _Inputs, checks: BatchChecks) -> _Input:
    feature = inputs[part.key]
    values, row_splits = structure.split(part.key, feature, checks)
    if part.reference is not None:
        reference = structure.repeat(
            part.reference,
            inputs[part.reference],
            (part.key, values, row_splits),
            checks,
        )
        values = part.relate(values, reference)
    values = part.convert(values)
    if part.weights is None:
        return _Input(values, row_splits, None)
    weights = structure.align(
        part.key, feature, part.weights, inputs[part.weights], checks
    )
    return _Input(values, row_splits, weights)
