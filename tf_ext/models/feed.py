"""What `fit`, `evaluate` and `predict` read, as batches that can be sent.

A dataset is read by the coordinator and each batch is an argument of the step
that a worker runs. A batch of many features is many tensors, and each costs a
message of its own, so the tensors of a batch are joined, one by type, before
they leave, and taken apart again on the worker.
"""

import contextlib
import itertools

import tensorflow as tf

from tf_ext._keras import keras

DEFAULT_BATCH_SIZE = 32


class Feed:
    """Batches for the steps of one call of `fit`, `evaluate` or `predict`.

    Args:
      dataset: tf.data.Dataset of batches.
      steps: int, the steps of an epoch; None to read the dataset to its end.

    Attributes:
      element_spec: nested structure of `tf.TypeSpec`, a batch.
      signature: list of `tf.TensorSpec`, a packed batch.
      num_batches: int, of an epoch; None if that is not known beforehand.
    """

    def __init__(self, dataset, steps=None):
        self.element_spec = dataset.element_spec
        self._packing = Packing(self.element_spec)
        self.signature = self._packing.signature
        self._dataset = dataset.map(
            lambda *batch: self._packing.pack(
                batch if len(batch) > 1 else batch[0]
            )
        ).prefetch(tf.data.AUTOTUNE)
        self._steps = steps
        self._iterator = None
        self._read = 0
        self._rest = None  # of an epoch that was begun in another process
        self._cardinality = int(dataset.cardinality())
        self.num_batches = steps
        if steps is None and self._cardinality >= 0:
            self.num_batches = self._cardinality

    def unpack(self, packed):
        """A batch from what `epoch` yields; to be called in the step."""
        return self._packing.unpack(packed)

    @staticmethod
    def explaining_errors():
        """Nothing to explain: the coordinator knows where the data ends."""
        return contextlib.nullcontext()

    def epoch(self, first_step=0):
        """Yields the packed batches of the next epoch, each a tuple.

        With `steps` an epoch goes on where the last one ended, if there is
        data left, as in Keras; without, it starts at the beginning.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        if self._steps is None:
            left = self.num_batches and self.num_batches - first_step
            dataset, self._rest = self._rest or self._dataset, None
            yield from itertools.islice(dataset, left)
            return
        if self._iterator is None or self._read == self._cardinality:
            self._iterator = iter(self._dataset)
            self._read = 0
        for made in range(first_step, self._steps):
            batch = next(self._iterator, None)
            if batch is None:
                self._iterator = None
                _warn_of_end(made, self._steps)
                return
            self._read += 1
            yield batch

    def go_on(self, epoch, first_step):
        """Passes over what was read before a restart.

        Args:
          epoch: int, the epoch that is under way.
          first_step: int, steps of it that were made.

        Returns:
          `(epoch, first_step)`; of the next epoch if no data is left in this.
        """
        if self._steps is not None:
            self._read = epoch * self._steps + first_step
            self._iterator = iter(self._dataset.skip(self._read))
            return epoch, first_step
        rest = self._dataset.skip(first_step)
        if first_step and next(iter(rest.take(1)), None) is None:
            return epoch + 1, 0
        self._rest = rest
        return epoch, first_step


class WorkerFeed:
    """Batches that each worker reads by itself, from a function's dataset.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      dataset_fn: function from `tf.distribute.InputContext` to a
        tf.data.Dataset of batches that does not end.
      steps: int, the steps of an epoch.
      class_weight: dict from class (int) to weight, or None.

    Attributes:
      element_spec: nested structure of `tf.TypeSpec`, a batch.
      signature: None: an iterator is what is sent.
      num_batches: int, of an epoch.
    """

    signature = None

    def __init__(self, coordinator, dataset_fn, steps, class_weight=None):
        if steps is None:
            raise ValueError(
                "Argument `steps_per_epoch` must be given where `x` is a "
                "function, whose dataset each worker makes for itself. "
                "Received: steps_per_epoch=None"
            )
        dataset = coordinator.create_per_worker_dataset(
            lambda: make_dataset(dataset_fn, class_weight=class_weight)
        )
        self.element_spec = dataset.element_spec
        self.num_batches = steps
        self._iterator = iter(dataset)

    def unpack(self, iterator):
        """A batch, on the worker."""
        return next(iterator)

    @contextlib.contextmanager
    def explaining_errors(self):
        """Says of steps that found no data what is wrong."""
        try:
            yield
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                "The dataset of the function `x` ended on a worker. Each "
                "worker reads its own to no end: use `dataset.repeat()` in the "
                "function."
            ) from error

    @staticmethod
    def go_on(epoch, first_step):
        """Each worker's data begin anew; returns both arguments."""
        return epoch, first_step

    def epoch(self, first_step=0):
        """Yields the workers' iterator for each step of an epoch."""
        return itertools.repeat(self._iterator, self.num_batches - first_step)


def example_of(element_spec):
    """A batch of one sample, to build a model with.

    It holds zeros, empty strings and empty ragged rows.

    Args:
      element_spec: nested structure of `tf.TypeSpec` of batches.
    """
    return tf.nest.map_structure(_example, element_spec)


def _example(spec):
    if isinstance(spec, tf.RaggedTensorSpec):
        values = _example(
            tf.TensorSpec([0, *spec.shape[spec.ragged_rank + 1 :]], spec.dtype)
        )
        splits = [tf.constant([0, 0], spec.row_splits_dtype)]
        splits += [tf.zeros([1], spec.row_splits_dtype)] * (
            spec.ragged_rank - 1
        )
        return tf.RaggedTensor.from_nested_row_splits(values, splits)
    sizes = [1 if size is None else size for size in spec.shape]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, len(sizes)], tf.int64),
            tf.zeros([0], spec.dtype),
            sizes,
        )
    value = "" if spec.dtype == tf.string else 0
    return tf.fill(sizes, tf.cast(value, spec.dtype))


def _warn_of_end(made, steps):
    tf.get_logger().warning(
        "The dataset ended after %d of %d steps of this epoch. It must have at "
        "least steps_per_epoch * epochs batches: use `dataset.repeat()`.",
        made,
        steps,
    )


class Packing:
    """How the tensors of a batch are joined by type, and taken apart.

    Args:
      element_spec: nested structure of `tf.TypeSpec`.

    Attributes:
      signature: list of `tf.TensorSpec`: one flat tensor a type, then the
        sizes that are not known beforehand, int64.
    """

    def __init__(self, element_spec):
        self._spec = element_spec
        self._specs = tf.nest.flatten(element_spec, expand_composites=True)
        self._dtypes = sorted(
            {spec.dtype for spec in self._specs}, key=lambda dtype: dtype.name
        )
        for spec in self._specs:
            if spec.shape.rank is None:
                raise ValueError(
                    "The rank of a tensor of the dataset is not known: "
                    f"element_spec={element_spec}. Set it with "
                    "`tf.ensure_shape` in `dataset.map`."
                )
        self.signature = [tf.TensorSpec([None], d) for d in self._dtypes]
        self.signature.append(tf.TensorSpec([None], tf.int64))

    def pack(self, batch):
        """Joins the tensors of a batch.

        Args:
          batch: structure of tensors, ragged and sparse ones too.

        Returns:
          Tuple of tensors, as `signature` says.
        """
        tensors = tf.nest.flatten(batch, expand_composites=True)
        joined = [
            tf.concat(
                [tf.reshape(t, [-1]) for t in tensors if t.dtype == dtype], 0
            )
            for dtype in self._dtypes
        ]
        sizes = [
            tf.shape(tensor, tf.int64)[axis]
            for tensor, spec in zip(tensors, self._specs, strict=True)
            for axis in _unknown(spec)
        ]
        sizes = tf.stack(sizes) if sizes else tf.zeros([0], tf.int64)
        return (*joined, sizes)

    def unpack(self, packed):
        """The batch that was packed."""
        *joined, sizes = packed
        position, shapes = 0, []
        for spec in self._specs:
            shape = [0 if size is None else size for size in spec.shape]
            for axis in _unknown(spec):
                shape[axis] = sizes[position]
                position += 1
            shapes.append(shape)
        tensors = [None] * len(self._specs)
        for dtype, flat in zip(self._dtypes, joined, strict=True):
            of_type = [
                index
                for index, spec in enumerate(self._specs)
                if spec.dtype == dtype
            ]
            counts = [_product(shapes[index]) for index in of_type]
            parts = tf.split(flat, tf.stack(counts), num=len(of_type))
            for index, part in zip(of_type, parts, strict=True):
                tensor = tf.reshape(part, tf.stack(_int64(shapes[index])))
                tensors[index] = tf.ensure_shape(
                    tensor, self._specs[index].shape
                )
        return tf.nest.pack_sequence_as(
            self._spec, tensors, expand_composites=True
        )


def _unknown(spec):
    return [axis for axis, size in enumerate(spec.shape) if size is None]


def _int64(shape):
    return [tf.cast(size, tf.int64) for size in shape] or tf.zeros(
        [0], tf.int64
    )


def _product(shape):
    return tf.reduce_prod(tf.stack(_int64(shape)))


def makes_dataset(x):
    """Whether `x` of `fit` is a function that makes a dataset."""
    return callable(x) and not isinstance(x, tf.data.Dataset)


def make_dataset(
    x,
    y=None,
    sample_weight=None,
    batch_size=None,
    shuffle=False,
    class_weight=None,
    steps=None,
    seed=None,
    context=None,
):
    """A dataset of batches from what `fit` is given.

    Args:
      x: tf.data.Dataset of batches, a function from
        `tf.distribute.InputContext` to one, or a structure of arrays.
      y: structure of arrays, if `x` is one.
      sample_weight: structure of arrays, if `x` is one.
      batch_size: int, if `x` is a structure of arrays.
      shuffle: whether arrays are shuffled before each epoch.
      class_weight: dict from class (int) to weight.
      steps: int, how many batches arrays make if `batch_size` is None.
      seed: int, of the shuffling.
      context: tf.distribute.InputContext for `x`, if it is a function.

    Returns:
      tf.data.Dataset of `x`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
      ValueError: arguments that do not go together; the message says which.
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
                    f"Argument `{name}` must not be given where `x` is a "
                    "dataset, whose batches hold labels and weights. Received: "
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


def _from_arrays(x, y, sample_weight, batch_size, shuffle, steps, seed):
    if hasattr(x, "__next__") or isinstance(x, keras.utils.Sequence):
        raise ValueError(
            "Argument `x` must be a tf.data.Dataset, arrays or a function "
            "that makes a dataset under this strategy. Received: "
            f"x={x!r}. Use tf.data.Dataset.from_generator."
        )
    # Lists would be taken as one array.
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


def _tuples(arrays):
    if isinstance(arrays, dict):
        return {name: _tuples(array) for name, array in arrays.items()}
    if isinstance(arrays, (list, tuple)) and hasattr(arrays[0], "shape"):
        return tuple(map(_tuples, arrays))
    return arrays


def split_arrays(arguments):
    """The arguments of `fit` with `validation_split` carried out.

    Args:
      arguments: dict of all arguments of `keras.Model.fit`.

    Returns:
      The same, with `validation_data` from the end of the arrays.

    Raises:
      ValueError: `validation_split` with a dataset.
    """
    share = arguments["validation_split"]
    if not share or arguments["validation_data"] is not None:
        return arguments
    names = ("x", "y", "sample_weight")
    arrays = [arguments[name] for name in names]
    leaves = [leaf for leaf in tf.nest.flatten(arrays) if leaf is not None]
    if not all(hasattr(leaf, "__getitem__") for leaf in leaves):
        raise ValueError(
            "Argument `validation_split` needs `x` as arrays. Received: "
            f"validation_split={share}, x={arguments['x']!r}. Use "
            "`validation_data`."
        )
    first = int(len(leaves[0]) * (1 - share))

    def part(rows):
        return tuple(
            tf.nest.map_structure(
                lambda leaf: None if leaf is None else leaf[rows], array
            )
            for array in arrays
        )

    trained = dict(zip(names, part(slice(None, first)), strict=True))
    validated = part(slice(first, None))
    return {**arguments, **trained, "validation_data": validated}


class _ClassWeights:
    """Multiplies the weights of samples by those of their classes."""

    def __init__(self, class_weight):
        if not isinstance(class_weight, dict):
            raise ValueError(
                "Argument `class_weight` must be a dict from class to weight. "
                f"Received: class_weight={class_weight!r}"
            )
        self._classes = list(class_weight.keys())
        self._weights = list(class_weight.values())

    def __call__(self, *batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if not isinstance(y, tf.Tensor):
            raise ValueError(
                "Argument `class_weight` needs labels of one output. Received: "
                f"y={y!r}"
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
        differences = tf.constant(self._weights, tf.float32) - 1.0
        weights = 1.0 + tf.reduce_sum(
            tf.cast(matches, tf.float32) * differences, -1
        )
        if sample_weight is not None:
            weights = sample_weight * tf.cast(weights, sample_weight.dtype)
        return x, y, weights
