# SPDX-License-Identifier: Apache-2.0
"""The data among the arguments of `fit`, `evaluate` and `predict`."""

import typing

import tensorflow as tf

from tf_ext._checks import is_int, refuse
from tf_ext._keras import keras

DEFAULT_BATCH_SIZE = 32


class FitOptions(typing.NamedTuple):
    """The arguments of `Model.fit` that Keras's does not have.

    Attributes:
      max_inflight_steps: int or None.
      overlap_steps: bool.
      retry_steps: bool.
    """

    max_inflight_steps: int | None = None
    overlap_steps: bool = False
    retry_steps: bool = True

    def check(self) -> None:
        """Raises ValueError for values of other types."""
        limit = self.max_inflight_steps
        if limit is not None and not (is_int(limit) and limit >= 1):
            allowed = "a positive int or None"
            refuse("fit", "max_inflight_steps", allowed, limit)
        for name in ("overlap_steps", "retry_steps"):
            if not isinstance(getattr(self, name), bool):
                refuse("fit", name, "True or False", getattr(self, name))


def makes_dataset(x: typing.Any) -> bool:
    """Whether `x` of `fit` is a function that makes a dataset."""
    return callable(x) and not isinstance(x, tf.data.Dataset)


def make_dataset(
    x: typing.Any,
    y: typing.Any = None,
    sample_weight: typing.Any = None,
    batch_size: int | None = None,
    shuffle: bool = False,
    class_weight: dict[int, float] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """A dataset of batches from what `fit` is given.

    Args:
      x: tf.data.Dataset of batches, a function from
        `tf.distribute.InputContext` to one, or a structure of arrays.
      y: structure of arrays, if `x` is one.
      sample_weight: structure of arrays, if `x` is one.
      batch_size: int, if `x` is a structure of arrays.
      shuffle: whether arrays are shuffled before each epoch.
      class_weight: dict from class (int) to weight.
      steps: int, the number of batches of arrays if `batch_size` is None.
      seed: int, the seed of shuffling.
      context: tf.distribute.InputContext for `x`, if it is a function.

    Returns:
      tf.data.Dataset of `x`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
      ValueError: arguments that exclude each other; the message names them.
    """
    if makes_dataset(x):
        x = x(context or tf.distribute.InputContext())
    if isinstance(x, tf.data.Dataset):
        for name, value in (
            ("y", y),
            ("sample_weight", sample_weight),
            ("batch_size", batch_size),
        ):
            if value is not None:
                raise ValueError(
                    f"Argument `{name}` must be None where `x` is a dataset, "
                    "whose batches hold labels and weights. Received: "
                    f"{name}={value!r}"
                )
        dataset = x
    else:
        dataset = _from_arrays(
            x, y, sample_weight, batch_size, shuffle, steps, seed
        )
    if class_weight is not None:
        dataset = dataset.map(_ClassWeights(class_weight))
    return dataset


def check_same_spec(first: typing.Any, other: typing.Any, worker: int) -> None:
    """Raises ValueError if the batches of a worker differ from worker 0's.

    Args:
      first: element_spec of worker 0.
      other: that of another one.
      worker: int, which.
    """
    if other != first:
        raise ValueError(
            "The datasets of the function `x` must have the same "
            "element_spec on all workers. Received: "
            f"{first} on worker 0, {other} on worker {worker}"
        )


def _from_arrays(
    x: typing.Any,
    y: typing.Any,
    sample_weight: typing.Any,
    batch_size: int | None,
    shuffle: bool,
    steps: int | None,
    seed: int | None,
) -> tf.data.Dataset:
    if hasattr(x, "__next__") or isinstance(x, keras.utils.Sequence):
        raise ValueError(
            "Argument `x` must be a tf.data.Dataset, arrays or a function "
            "that makes a dataset, under this strategy. Received: "
            f"x={x!r}. Use tf.data.Dataset.from_generator."
        )
    # TensorFlow would convert a list to one array.
    arrays = [_tuples(part) for part in (x, y, sample_weight)]
    dataset = tf.data.Dataset.from_tensor_slices(
        keras.utils.pack_x_y_sample_weight(*arrays)
    )
    samples = int(dataset.cardinality())
    if batch_size is None:
        batch_size = -(-samples // steps) if steps else DEFAULT_BATCH_SIZE
    if shuffle:
        dataset = dataset.shuffle(max(samples, 1), seed)
    return dataset.batch(batch_size)


def _tuples(arrays: typing.Any) -> typing.Any:
    if isinstance(arrays, dict):
        return {name: _tuples(array) for name, array in arrays.items()}
    if isinstance(arrays, (list, tuple)) and hasattr(arrays[0], "shape"):
        return tuple(map(_tuples, arrays))
    return arrays


def split_arrays(arguments: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """The arguments of `fit` with `validation_split` applied.

    Args:
      arguments: dict of all arguments of `keras.Model.fit`.

    Returns:
      The same, with `validation_data` from the end of the arrays.

    Raises:
      ValueError: `validation_split` with a dataset.
    """
    fraction = arguments["validation_split"]
    if not fraction or arguments["validation_data"] is not None:
        return arguments
    names = ("x", "y", "sample_weight")
    arrays = [arguments[name] for name in names]
    leaves = [leaf for leaf in tf.nest.flatten(arrays) if leaf is not None]
    if not all(hasattr(leaf, "__getitem__") for leaf in leaves):
        raise ValueError(
            "Argument `validation_split` of fit must be 0 unless `x` is "
            f"arrays. Received: validation_split={fraction}, "
            f"x={arguments['x']!r}. Use `validation_data`."
        )
    first = int(len(leaves[0]) * (1 - fraction))

    def part(rows: slice) -> tuple[typing.Any, ...]:
        return tuple(
            tf.nest.map_structure(
                lambda leaf: None if leaf is None else leaf[rows], array
            )
            for array in arrays
        )

    trained = dict(zip(names, part(slice(None, first)), strict=True))
    validated = part(slice(first, None))
    return {**arguments, **trained, "validation_data": validated}


def dataset_of(
    arguments: dict[str, typing.Any], **options: typing.Any
) -> tf.data.Dataset:
    """The dataset of the arguments of `fit`, `evaluate` or `predict`.

    Args:
      arguments: dict of the method's arguments, `steps` among them.
      **options: further arguments of `make_dataset`.
    """
    names = (
        *("x", "y", "sample_weight", "batch_size", "shuffle"),
        *("class_weight", "steps"),
    )
    given: dict[str, typing.Any] = {name: arguments.get(name) for name in names}
    return make_dataset(**given, **options)


class _ClassWeights:
    """Multiplies the weights of samples by those of their classes."""

    def __init__(self, class_weight: dict[int, float] | None) -> None:
        if not isinstance(class_weight, dict):
            refuse(
                "fit",
                "class_weight",
                "a dict from class to weight",
                class_weight,
            )
        self._classes = list(class_weight.keys())
        self._weights = list(class_weight.values())

    def __call__(
        self, *batch: typing.Any
    ) -> tuple[typing.Any, typing.Any, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if not isinstance(y, tf.Tensor):
            raise ValueError(
                "Argument `class_weight` of fit must be None for models of "
                f"several outputs. Received: class_weight for y={y!r}"
            )
        classes = y
        if y.shape.rank > 1:
            classes = (
                tf.squeeze(y, -1) if y.shape[-1] == 1 else tf.argmax(y, -1)
            )
        if classes.dtype.is_floating:
            classes = tf.round(classes)
        matches = tf.equal(
            tf.cast(classes, tf.int64)[..., tf.newaxis],
            tf.constant(self._classes, tf.int64),
        )
        of_class = tf.where(matches, tf.constant(self._weights, tf.float32), 0)
        weights = tf.where(
            tf.reduce_any(matches, -1), tf.reduce_sum(of_class, -1), 1.0
        )
        if sample_weight is not None:
            # Of `[b]` and `[b, 1]`, the product would be `[b, b]`.
            rank = max(len(weights.shape), len(sample_weight.shape))
            weights = _of_rank(rank, weights)
            weights = tf.cast(weights, sample_weight.dtype)
            weights *= _of_rank(rank, sample_weight)
        return x, y, weights


def _of_rank(rank: int, values: tf.Tensor) -> tf.Tensor:
    """Values with further axes of one value at the end."""
    for _ in range(rank - len(values.shape)):
        values = values[..., tf.newaxis]
    return values
