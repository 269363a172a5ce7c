"""Features of a batch to the signs of all columns at once."""

import collections
import typing

import numpy as np
import tensorflow as tf

from tf_ext import ops
from tf_ext._op_errors import in_own_words
from tf_ext.feature_column.batch_checks import BatchChecks

_AS_INT64 = (tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32)
_AS_IS = (tf.string, tf.int32, tf.int64)


class Bags(typing.NamedTuple):
    """The signs of a batch, column after column, in bags.

    Bag b of column c is the signs from `row_splits[c * batch_size + b]` to
    before `row_splits[c * batch_size + b + 1]`.

    Attributes:
      signs: int64 `[m]`.
      row_splits: int64 `[number of columns * batch_size + 1]`.
      weights: float32 `[m]`, 1 for columns without; or `[0]` if none has any.
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

    def batch_size(self):
        if self.row_splits is None:
            # 0 for a scalar, which the op refuses in its own words.
            return tf.reduce_sum(tf.shape(self.values, tf.int64)[:1])
        return tf.size(self.row_splits, tf.int64) - 1


def columns_to_bags(columns, inputs, name=None):
    """Hashes the features of a batch, for all columns in one op.

    Args:
      columns: list of columns of `category_column` and `crossed_column`.
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
        SparseTensor are not in order, or weights have another structure than
        their values.

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
        # Eagerly there are no ops to wait for.
        with tf.control_dependencies(checks.assertions()), in_own_words():
            found = ops.hash_category(**arguments)
        return Bags(found.signs, found.sign_splits, found.sign_weights)


def columns_to_bags_or_error(columns, inputs, name=None):
    """The same as `columns_to_bags`, with a batch's errors as a value.

    For workers that train in step: one that raised alone would leave the others
    waiting for it, so it has to tell them first.

    Args:
      columns: as for `columns_to_bags`.
      inputs: as for `columns_to_bags`.
      name: optional name of the operation.

    Returns:
      `(bags, error)`: `Bags`, and a string scalar, "" if all is well, or else
      the sentence that `columns_to_bags` raises. With an error the bags are
      empty: signs and weights `[0]`, row_splits zeros `[number of columns *
      batch_size + 1]`, where batch_size is that of the first input that shows
      one, or 0 if none does or there would be more than 2^31 - 1 bags.

    Raises:
      ValueError: a feature is missing, or of a type or rank that the column
        does not take: what every worker finds.

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


def check_inputs(columns, inputs):
    """Checks what is known of features before there are any.

    Args:
      columns: list of columns.
      inputs: dict of what has a dtype, such as `keras.Input`, by key.

    Raises:
      ValueError: a feature is missing, or of a type that a column does not
        take.
    """
    _check_mapping(inputs)
    for column in columns:
        for part in column.parts:
            _check_present(part, inputs)
            if part.key in inputs:
                dtype = tf.as_dtype(inputs[part.key].dtype)
                _check_type(part, _op_type(part.key, dtype))


def _check_mapping(inputs):
    if not isinstance(inputs, collections.abc.Mapping):
        raise ValueError(
            "Argument `inputs` must be a dict of features by key. Received: "
            f"{type(inputs).__name__}"
        )


def _empty_unless(fine, bags):
    """The bags, or with an error as many empty ones."""
    signs = bags.signs[: tf.where(fine, tf.size(bags.signs), 0)]
    row_splits = bags.row_splits * tf.cast(fine, tf.int64)
    weights = bags.weights
    if weights.shape != [0]:
        weights = weights[: tf.where(fine, tf.size(weights), 0)]
    return Bags(signs, row_splits, weights)


def _op_arguments(columns, inputs, checks):
    """The arguments of `ops.hash_category`; adds to checks what must hold."""
    columns = list(columns)
    if not columns:
        raise ValueError("Argument `columns` must not be empty.")
    _check_mapping(inputs)
    places, op_inputs = _read_inputs(columns, inputs, checks)
    return {
        "values": [one.values for one in op_inputs],
        "row_splits": [one.row_splits for one in op_inputs],
        "weights": [one.weights for one in op_inputs],
        **_describe(columns, places),
    }


def _read_inputs(columns, inputs, checks):
    """The op's inputs, and for each part of all columns the place of its own.

    A feature is converted once, however many columns read it.
    """
    parts = [part for column in columns for part in column.parts]
    found = {}
    for part in parts:
        _check_present(part, inputs)
        source = _source(part, inputs)
        if source is not None and source not in found:
            found[source] = _read(part, inputs, checks)
        if source is not None:
            _check_type(part, found[source].values.dtype)
    if not found:
        raise ValueError(
            "The batch size cannot be told, because the features of all "
            f"columns are missing: {', '.join(sorted({p.key for p in parts}))}."
            f" Present are: {_names(inputs)}. At least one has to be there."
        )
    batch_size = None
    for part in parts:
        if _source(part, inputs) is None:
            if batch_size is None:
                batch_size = next(iter(found.values())).batch_size()
            dtype = _type_of_absent(part)
            found[dtype] = _Input(
                tf.zeros([0], dtype),
                tf.zeros([batch_size + 1], tf.int64),
                None,
            )
    place = {source: i for i, source in enumerate(found)}
    places = [
        place[_source(part, inputs) or _type_of_absent(part)] for part in parts
    ]
    return places, list(found.values())


def _source(part, inputs):
    """What tells inputs apart; None if the feature is missing."""
    return (part.key, part.weights) if part.key in inputs else None


def _type_of_absent(part):
    """A type that the part takes, whatever its `missing` is."""
    if part.boundaries is not None:
        return tf.float32
    return tf.int64 if part.hashing == "identity" else tf.string


def _names(inputs):
    return ", ".join(sorted(map(repr, inputs))) or "none"


def _check_present(part, inputs):
    if part.key not in inputs:
        if not part.optional:
            raise ValueError(
                f"The feature {part.key!r} of column {part.name!r} is missing "
                f"from the inputs. Present are: {_names(inputs)}. Pass it, or "
                "make the column with optional=True for an empty bag."
            )
    elif part.weights is not None and part.weights not in inputs:
        raise ValueError(
            f"The weights {part.weights!r} of column {part.name!r} are missing "
            f"from the inputs. Present are: {_names(inputs)}."
        )


def _read(part, inputs, checks):
    feature = _to_tensor(part.key, inputs[part.key])
    values, row_splits = _split(part.key, feature, checks)
    values = tf.cast(values, _op_type(part.key, values.dtype))
    if part.weights is None:
        return _Input(values, row_splits, None)
    weights = _to_tensor(part.weights, inputs[part.weights])
    weights = _align(part, feature, weights, checks)
    return _Input(values, row_splits, weights)


def _to_tensor(key, feature):
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


def _split(key, feature, checks):
    """A feature's values, and its row_splits or None."""
    rank = feature.shape.rank
    if isinstance(feature, tf.Tensor):
        if rank == 0:
            raise ValueError(
                f"The feature {key!r} must have a batch dimension, but is a "
                "scalar."
            )
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


def _sparse_row_splits(key, feature, checks):
    rows = feature.indices[:, 0]
    checks.add(
        tf.reduce_all(rows[:-1] <= rows[1:]),
        f"The indices of the SparseTensor of feature {key!r} must be in "
        "row-major order: use tf.sparse.reorder.",
    )
    bags = tf.range(feature.dense_shape[0] + 1)
    return tf.searchsorted(rows, bags, out_type=tf.int64)


def _op_type(key, dtype):
    """What the op takes values of a type as."""
    if dtype in _AS_IS:
        return dtype
    if dtype in _AS_INT64:
        return tf.int64
    if dtype.is_floating:
        return tf.float32
    raise ValueError(
        f"The feature {key!r} must be of strings, of integers that fit in "
        f"int64, or of floats, but is of {dtype.name}: cast it to one of them."
    )


def _check_type(part, dtype):
    if dtype == tf.float32 and part.boundaries is None:
        raise ValueError(
            f"The feature {part.key!r} is of floats, which are no ids, and "
            f"column {part.name!r} has no boundaries: give it some, or cast "
            "the feature to integers or strings."
        )
    if dtype == tf.string and part.boundaries is not None:
        raise ValueError(
            f"The feature {part.key!r} is of strings, but column {part.name!r} "
            "has boundaries, which need numbers: use tf.strings.to_number."
        )
    if dtype == tf.string and part.hashing == "identity":
        raise ValueError(
            f"The feature {part.key!r} is of strings, but column {part.name!r} "
            'has hashing="identity", which needs integers.'
        )


def _align(part, feature, weights, checks):
    """The weights of a feature's values, in the same order."""
    wrong = (
        f"The weights {part.weights!r} must have the structure of the feature "
        f"{part.key!r}"
    )
    if not weights.dtype.is_floating:
        raise ValueError(
            f"The weights {part.weights!r} of column {part.name!r} must be "
            f"floats, but are of {weights.dtype.name}."
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


def _check_shapes(wrong, wanted, found, checks):
    if found.is_compatible_with(wanted):
        return
    message = f"{wrong}, whose shape is {wanted}, but their shape is {found}."
    if found.rank != wanted.rank:
        raise ValueError(message)
    checks.fail(message)


def _are_equal(found, wanted):
    """Whether two tensors are, whose lengths may differ."""
    if found.shape.is_fully_defined() and wanted.shape.is_fully_defined():
        if found.shape != wanted.shape:
            return tf.constant(False)
        return tf.reduce_all(tf.equal(found, wanted))
    # Equal refuses other lengths, but for 1, which it would stretch.
    lengths = [tf.shape(tensor)[0] for tensor in (found, wanted)]
    common = tf.minimum(*lengths)
    return tf.logical_and(
        tf.equal(*lengths),
        tf.reduce_all(tf.equal(found[:common], wanted[:common])),
    )


def _describe(columns, places):
    """The op's attributes for columns whose parts read inputs at `places`."""
    parts = [part for column in columns for part in column.parts]
    crossed = [
        len(column.parts) > 1 for column in columns for _ in column.parts
    ]
    boundaries = [part.boundaries or () for part in parts]
    return {
        "namespaces": [column.namespace for column in columns],
        "bucket_sizes": [column.bucket_size or 0 for column in columns],
        "identity": [
            len(column.parts) == 1 and column.parts[0].hashing == "identity"
            for column in columns
        ],
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


def _missing_text(missing):
    """The text that the op reads back as the same number, float or integer."""
    if missing is None:
        return ""
    if isinstance(missing, float):
        if missing.is_integer():
            return str(int(missing))
        return str(np.float32(missing))
    return str(missing)
