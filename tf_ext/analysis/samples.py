# SPDX-License-Identifier: Apache-2.0
"""The samples of a dataset in memory, in other orders for some features."""

import typing
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse

_OWNER = "column_importance"
_Array = npt.NDArray[typing.Any]


class _Rows:
    """A dense or ragged feature of all samples, `[n, ...]`."""

    def __init__(self, rows: typing.Any) -> None:
        self._rows = rows

    def of(self, index: tf.Tensor) -> typing.Any:
        """The feature of some samples, int64 `[batch_size]`."""
        return tf.gather(self._rows, index)


class _SparseRows:
    """A sparse feature of all samples, as lists of places and values.

    Args:
      parts: list of tf.SparseTensor, of batches.
      nothing: bool, whether a sample without values follows the last one.
    """

    def __init__(self, parts: list[tf.SparseTensor], nothing: bool) -> None:
        whole = tf.sparse.concat(0, parts, expand_nonconcat_dims=True)
        self._shape = whole.dense_shape[1:].numpy()
        samples = whole.dense_shape[0] + int(nothing)
        self._places, self._values = (
            tf.RaggedTensor.from_value_rowids(
                values, whole.indices[:, 0], samples
            )
            for values in (whole.indices[:, 1:], whole.values)
        )

    def of(self, index: tf.Tensor) -> tf.SparseTensor:
        """The feature of some samples, int64 `[batch_size]`."""
        places = tf.gather(self._places, index)
        values = tf.gather(self._values, index)
        rows = values.value_rowids()[:, tf.newaxis]
        size = tf.shape(index, tf.int64)
        return tf.SparseTensor(
            tf.concat([rows, places.values], 1),
            values.values,
            tf.concat([size, self._shape], 0),
        )


class Samples:
    """All samples of a dataset.

    Args:
      data: tf.data.Dataset of batches, as of `column_importance`.
      output: name or index of the labels and weights; None if there is one.
      missing: dict from the names of dense features to the values of a sample
        that has none.

    Attributes:
      size: int, how many samples there are.
      names: tuple of strings, the features.
      optional: set of strings, the features that can be left out.
      labels: array, `[size, ...]`.
      weights: array, `[size, ...]`, or None.
    """

    def __init__(
        self,
        data: tf.data.Dataset,
        output: str | int | None,
        missing: Mapping[str, typing.Any],
    ) -> None:
        self.names = _check_data(data)
        for name in missing:
            self.check_name("missing", name)
        parts: dict[str, list[typing.Any]] = {name: [] for name in self.names}
        others: list[list[_Array]] = [[], []]
        for features, *rest in data:
            for name in self.names:
                parts[name].append(features[name])
            for found, values in zip(others, rest):
                found.append(one_of(values, output, "labels and weights"))
        self.size = sum(map(len, others[0]))
        if self.size < 2:
            refuse(_OWNER, "data", "of at least 2 samples", self.size)
        self.labels = np.concatenate(others[0])
        self.weights = np.concatenate(others[1]) if others[1] else None
        self._batch_size = max(map(len, others[0]))
        self.optional = {
            name
            for name in self.names
            if name in missing or not isinstance(parts[name][0], tf.Tensor)
        }
        for name in missing:
            if not isinstance(parts[name][0], tf.Tensor):
                allowed = "of dense features, as others have empty bags instead"
                refuse(_OWNER, "missing", allowed, name)
        self._stored = {
            name: _stored(name, parts.pop(name), missing) for name in self.names
        }
        self._features = tf.function(self._of)

    def check_name(self, argument: str, name: object) -> None:
        """Raises ValueError unless this is the name of a feature."""
        if name not in self.names:
            features = ", ".join(map(repr, self.names))
            refuse(_OWNER, argument, f"of the features {features}", name)

    def batches(
        self, names: Collection[str] = (), order: npt.ArrayLike | None = None
    ) -> tf.data.Dataset:
        """The features in batches as large as the first one of the data.

        Args:
          names: list of strings, features that are taken from other samples.
          order: int64 `[size]`, from which samples. `size` stands for a sample
            without the feature. None: their own.
        """
        own = tf.range(self.size, dtype=tf.int64)
        others = own if order is None else tf.constant(order, tf.int64)

        def features(begin: tf.Tensor) -> typing.Any:
            batch = slice(begin, begin + self._batch_size)
            index, other = own[batch], others[batch]
            return self._features(
                {n: other if n in names else index for n in self.names}
            )

        begins = tf.data.Dataset.range(0, self.size, self._batch_size)
        return begins.map(features).prefetch(1)

    def _of(self, indices: dict[str, tf.Tensor]) -> dict[str, typing.Any]:
        return {name: self._stored[name].of(indices[name]) for name in indices}


def _check_data(data: typing.Any) -> tuple[str, ...]:
    """The names of the features; raises ValueError for other data."""
    if not isinstance(data, tf.data.Dataset):
        refuse(_OWNER, "data", "a tf.data.Dataset", data)
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        refuse(_OWNER, "data", "finite: `data.take(n)` is", data)
    spec = data.element_spec
    if not (
        isinstance(spec, tuple)
        and len(spec) in (2, 3)
        and isinstance(spec[0], dict)
        and spec[0]
        and all(isinstance(each, tf.TypeSpec) for each in spec[0].values())
        and all(each.shape.rank != 0 for each in tf.nest.flatten(spec))
    ):
        allowed = (
            "of batches (features, labels) or (features, labels, weights), "
            "where features are a dict of tensors"
        )
        refuse(_OWNER, "data", allowed, spec)
    return tuple(spec[0])


def one_of(values: typing.Any, output: str | int | None, what: str) -> _Array:
    """The values of one output, as an array `[n, ...]`.

    Args:
      values: tensor or array, or dict, list or tuple of those of all outputs.
      output: name or index of the output, or None if there is one.
      what: string, what the values are.
    """
    several = isinstance(values, (dict, list, tuple))
    if several:
        try:
            values = values[output]
        except (IndexError, KeyError, TypeError):
            known = values if isinstance(values, dict) else range(len(values))
            allowed = (
                f"that of one of the {what}: {', '.join(map(repr, known))}"
            )
            refuse(_OWNER, "output", allowed, output)
    return np.asarray(values)


def _stored(
    name: str, parts: list[typing.Any], missing: Mapping[str, typing.Any]
) -> _Rows | _SparseRows:
    """A feature of all samples, and of one that has none if that exists."""
    first = next((part for part in parts if part.shape[0] != 0), parts[0])
    if isinstance(first, tf.SparseTensor):
        return _SparseRows(parts, nothing=True)
    if isinstance(first, tf.RaggedTensor):
        return _Rows(tf.concat([*parts, first[:1, :0]], 0))
    shapes = {str(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"The feature {name!r} must have one shape in all batches, but has "
            f"{' and '.join(sorted(shapes))} without the batch. Pad it to one "
            "length, or make it ragged."
        )
    if name not in missing:
        return _Rows(tf.concat(parts, 0))
    try:
        value = tf.constant(missing[name], first.dtype)
        nothing = tf.broadcast_to(value, [1, *first.shape[1:]])
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        allowed = f"values of the features: {first.dtype.name} for {name!r}"
        refuse(_OWNER, "missing", allowed, missing)
    return _Rows(tf.concat([*parts, nothing], 0))
