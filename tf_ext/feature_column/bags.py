"""Converts the features of a batch to the signs of all columns."""

import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext import ops
from tf_ext._checks import refuse
from tf_ext._compat.op_errors import in_own_words
from tf_ext.feature_column import features
from tf_ext.feature_column.batch_checks import BatchChecks
from tf_ext.feature_column.category_column import CategoryColumn
from tf_ext.feature_column.column import Column

_Inputs = Mapping[str, typing.Any]
_Feature: typing.TypeAlias = tf.Tensor | tf.SparseTensor | tf.RaggedTensor


class Bags(typing.NamedTuple):
    """The signs of a batch in bags, ordered by column and then by example.

    Bag b of column c holds the signs from `row_splits[c * batch_size + b]` up
    to, but not including, `row_splits[c * batch_size + b + 1]`.

    Attributes:
      signs: int64 `[m]`.
      row_splits: int64 `[number of columns * batch_size + 1]`.
      weights: float32 `[m]`, 1 for columns without weights; or `[0]` if no
        column has weights.
    """

    signs: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor


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


def columns_to_bags(
    columns: Sequence[Column], inputs: _Inputs, name: str | None = None
) -> Bags:
    """Hashes the features of a batch, for all columns in one op.

    Args:
      columns: list of `Column`, such as those of `category_column` and
        `crossed_column`.
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
        SparseTensor are not in order, or weights have a different structure
        from their values.

    Example:
      >>> tags = tf_ext.feature_column.category_column("tags")
      >>> bags = tf_ext.feature_column.columns_to_bags(
      ...     [tags], {"tags": tf.ragged.constant([["a", "b"], [], ["a"]])})
      >>> bags.row_splits.numpy()
      array([0, 2, 2, 3])
      >>> bool(bags.signs[0] == bags.signs[2])
      True
    """
    with tf.name_scope(name or "columns_to_bags"):
        checks = BatchChecks(return_error=False)
        arguments = _op_arguments(columns, inputs, checks)
        # In eager mode there are no ops to wait for.
        with tf.control_dependencies(checks.assertions()), in_own_words():
            found = ops.hash_category(**arguments)
        return Bags(found.signs, found.sign_splits, found.sign_weights)


def columns_to_bags_or_error(
    columns: Sequence[Column], inputs: _Inputs, name: str | None = None
) -> tuple[Bags, tf.Tensor]:
    """As `columns_to_bags`, but returns the errors of a batch.

    For synchronous workers: if one of them raised alone, the others would wait
    for it, so it has to send them the error first.

    Args:
      columns: as for `columns_to_bags`.
      inputs: as for `columns_to_bags`.
      name: optional name of the operation.

    Returns:
      `(bags, error)`: `Bags`, and a string scalar, "" without an error, or the
      message that `columns_to_bags` raises. With an error the bags are empty:
      signs and weights `[0]`, row_splits zeros `[number of columns * batch_size
      + 1]`, where batch_size is that of the first input with a valid one, or 0
      if no input has one or there would be more than 2^31 - 1 bags.

    Raises:
      ValueError: a feature is missing, or of a type or rank that the column
        does not take: these errors are the same on every worker.

    Example:
      >>> from tf_ext.feature_column.bags import columns_to_bags_or_error
      >>> bags, error = columns_to_bags_or_error(
      ...     [tf_ext.feature_column.category_column(key) for key in "ab"],
      ...     {"a": [1], "b": [2, 3]})
      >>> "must have one batch size" in error.numpy().decode()
      True
      >>> bags.row_splits.numpy()
      array([0, 0, 0])
    """
    with tf.name_scope(name or "columns_to_bags"):
        checks = BatchChecks(return_error=True)
        arguments = _op_arguments(columns, inputs, checks)
        found = ops.hash_category(**arguments, return_error=True)
        bags = Bags(found.signs, found.sign_splits, found.sign_weights)
        if not checks:
            return bags, found.error
        error = checks.first_error(found.error)
        return _empty_unless(tf.equal(error, ""), bags), error


def _empty_unless(fine: tf.Tensor, bags: Bags) -> Bags:
    """The bags, or the same number of empty bags if there is an error."""
    signs = bags.signs[: tf.where(fine, tf.size(bags.signs), 0)]
    row_splits = bags.row_splits * tf.cast(fine, tf.int64)
    weights = bags.weights
    if weights.shape != [0]:
        weights = weights[: tf.where(fine, tf.size(weights), 0)]
    return Bags(signs, row_splits, weights)


def _op_arguments(
    columns: Sequence[Column], inputs: _Inputs, checks: BatchChecks
) -> dict[str, typing.Any]:
    """The arguments of `ops.hash_category`; adds the checks to `checks`."""
    columns = list(columns)
    if not columns:
        refuse("columns_to_bags", "columns", "a non-empty sequence", columns)
    features.check_mapping("columns_to_bags", inputs)
    inputs = {**inputs, **_tensors(columns, inputs)}
    for column in columns:
        column.check(inputs)
    places, op_inputs = _read_inputs(columns, inputs, checks)
    return {
        "values": [one.values for one in op_inputs],
        "row_splits": [one.row_splits for one in op_inputs],
        "weights": [one.weights for one in op_inputs],
        **_describe(columns, places),
    }


def _tensors(columns: Sequence[Column], inputs: _Inputs) -> dict[str, _Feature]:
    """The features and weights that the columns read, if present."""
    parts = [part for column in columns for part in column.parts]
    keys: dict[typing.Any, None]
    keys = dict.fromkeys(key for p in parts for key in (p.key, p.weights))
    return {key: _to_tensor(key, inputs[key]) for key in keys if key in inputs}


def _read_inputs(
    columns: Sequence[Column], inputs: _Inputs, checks: BatchChecks
) -> tuple[list[int], list[_Input]]:
    """The op's inputs, and the index of its input for each column's part.

    A feature is converted once, however many columns read it.
    """
    parts = [part for column in columns for part in column.parts]
    found: dict[object, _Input] = {}
    for part in parts:
        source = _source(part, inputs)
        if source is not None and source not in found:
            found[source] = _read(part, inputs, checks)
    if not found:
        raise ValueError(
            "The batch size cannot be told, because the features of all "
            f"columns are missing: {', '.join(sorted({p.key for p in parts}))}."
            f" Present are: {features.names(inputs)}. At least one has to be "
            "there."
        )
    batch_size = None
    for part in parts:
        if _source(part, inputs) is None:
            if batch_size is None:
                batch_size = next(iter(found.values())).batch_size()
            dtype = features.type_of_absent(part)
            found[dtype] = _Input(
                tf.zeros([0], dtype),
                tf.zeros([batch_size + 1], tf.int64),
                None,
            )
    place = {source: i for i, source in enumerate(found)}
    places = [
        place[_source(part, inputs) or features.type_of_absent(part)]
        for part in parts
    ]
    return places, list(found.values())


def _source(
    part: CategoryColumn, inputs: _Inputs
) -> tuple[str, str | None] | None:
    """A key that identifies an input; None if the feature is missing."""
    return (part.key, part.weights) if part.key in inputs else None


def _read(part: CategoryColumn, inputs: _Inputs, checks: BatchChecks) -> _Input:
    feature = inputs[part.key]
    values, row_splits = _split(part.key, feature, checks)
    values = tf.cast(values, features.op_type(part.key, values.dtype))
    if part.weights is None:
        return _Input(values, row_splits, None)
    weights = _align(part, feature, inputs[part.weights], checks)
    return _Input(values, row_splits, weights)


def _to_tensor(key: str, feature: typing.Any) -> _Feature:
    if isinstance(feature, tf.SparseTensor | tf.RaggedTensor | tf.Tensor):
        return feature
    try:
        return tf.convert_to_tensor(feature)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The feature {key!r} must be a tensor, a tf.SparseTensor, a "
            "tf.RaggedTensor or an array. Received: "
            f"{type(feature).__name__} ({error})"
        ) from error


def _split(
    key: str, feature: _Feature, checks: BatchChecks
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A feature's values, and its row_splits or None."""
    rank = feature.shape.rank
    if isinstance(feature, tf.Tensor):
        return feature, None
    if isinstance(feature, tf.RaggedTensor):
        if rank != 2 or feature.ragged_rank != 1:
            raise ValueError(
                f"The feature {key!r} is a RaggedTensor of shape "
                f"{feature.shape}, but its shape must be [batch_size, None]: "
                "use merge_dims to make one bag of all inner dimensions."
            )
        return feature.flat_values, tf.cast(feature.row_splits, tf.int64)
    if rank not in (2, None):
        raise ValueError(
            f"The feature {key!r} is a SparseTensor of shape {feature.shape}, "
            "but its shape must be [batch_size, n]: use tf.sparse.reshape."
        )
    return feature.values, _sparse_row_splits(key, feature, checks)


def _sparse_row_splits(
    key: str, feature: tf.SparseTensor, checks: BatchChecks
) -> tf.Tensor:
    rows = feature.indices[:, 0]
    checks.add(
        tf.reduce_all(rows[:-1] <= rows[1:]),
        f"The indices of the SparseTensor of feature {key!r} must be in "
        "row-major order: use tf.sparse.reorder.",
    )
    bags = tf.range(feature.dense_shape[0] + 1)
    return tf.searchsorted(rows, bags, out_type=tf.int64)


def _align(
    part: CategoryColumn,
    feature: _Feature,
    weights: _Feature,
    checks: BatchChecks,
) -> tf.Tensor:
    """The weights of a feature's values, in the same order."""
    wrong = (
        f"The weights {part.weights!r} must have the structure of the feature "
        f"{part.key!r}"
    )
    for kind in (tf.SparseTensor, tf.RaggedTensor):
        if isinstance(feature, kind) != isinstance(weights, kind):
            raise ValueError(
                f"{wrong}, which is a {type(feature).__name__}, but are a "
                f"{type(weights).__name__}."
            )
    _check_shapes(wrong, feature.shape, weights.shape, checks)
    differ = f"{wrong}, but their indices or row_splits differ."
    if isinstance(feature, tf.SparseTensor):
        checks.add(_are_equal(weights.indices, feature.indices), differ)
        weights = weights.values
    elif isinstance(feature, tf.RaggedTensor):
        found, wanted = (
            tf.cast(ragged.row_splits, tf.int64)
            for ragged in (weights, feature)
        )
        checks.add(_are_equal(found, wanted), differ)
        weights = weights.flat_values
    return tf.cast(weights, tf.float32)


def _check_shapes(
    wrong: str,
    wanted: tf.TensorShape,
    found: tf.TensorShape,
    checks: BatchChecks,
) -> None:
    if found.is_compatible_with(wanted):
        return
    message = f"{wrong}, whose shape is {wanted}, but their shape is {found}."
    if found.rank != wanted.rank:
        raise ValueError(message)
    checks.fail(message)


def _are_equal(found: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Whether two tensors are equal; their lengths may differ."""
    if found.shape.is_fully_defined() and wanted.shape.is_fully_defined():
        if found.shape != wanted.shape:
            return tf.constant(False)
        return tf.reduce_all(tf.equal(found, wanted))
    # Equal refuses different lengths, except for 1, which it broadcasts.
    lengths = [tf.shape(tensor)[0] for tensor in (found, wanted)]
    common = tf.minimum(*lengths)
    return tf.logical_and(
        tf.equal(*lengths),
        tf.reduce_all(tf.equal(found[:common], wanted[:common])),
    )


def _describe(
    columns: Sequence[Column], places: Sequence[int]
) -> dict[str, typing.Any]:
    """The op's attributes for columns whose parts read inputs at `places`."""
    parts = [part for column in columns for part in column.parts]
    crossed = [
        len(column.parts) > 1 for column in columns for _ in column.parts
    ]
    boundaries = [part.boundaries or () for part in parts]
    return {
        "namespaces": [column.namespace for column in columns],
        "bucket_sizes": [column.bucket_size or 0 for column in columns],
        "identity": [column.takes_signs for column in columns],
        "part_counts": [len(column.parts) for column in columns],
        "part_inputs": places,
        "part_bucket_sizes": [
            part.bucket_size or 0 if is_crossed else 0
            for part, is_crossed in zip(parts, crossed)
        ],
        "part_has_missing": [part.missing is not None for part in parts],
        "part_missing": [_missing_text(part.missing) for part in parts],
        "part_boundary_counts": [len(b) for b in boundaries],
        "part_boundaries": [value for b in boundaries for value in b],
    }


def _missing_text(missing: str | int | float | None) -> str:
    """The text that the op reads back as the same number, float or integer."""
    if missing is None:
        return ""
    if isinstance(missing, float):
        if missing.is_integer():
            return str(int(missing))
        return str(np.float32(missing))
    return str(missing)
