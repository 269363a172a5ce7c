# SPDX-License-Identifier: Apache-2.0
"""The share of a worker in a dataset of global batches."""

import typing

import tensorflow as tf

from tf_ext._compat.sparse_specs import CuttableSparseSpec
from tf_ext.data.epochs import epochs_of, mark
from tf_ext.data.progress import streams_of


def variable_batch_size(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset, with a batch size that may vary.

    For synchronous workers whose shares have different lengths. When a worker
    runs out of data before the others, TensorFlow continues with filler
    batches: empty ones if the batch size may vary, otherwise full batches of
    zeros, which would be trained on. In the result it may vary, whatever the
    source of the batches.

    Give the result to `strategy.experimental_distribute_dataset`, or return it
    from the function given to `strategy.distribute_datasets_from_function`.
    `tf_ext.Model.fit` does so itself.

    Args:
      dataset: tf.data.Dataset of batches.

    Returns:
      tf.data.Dataset of the same batches and options.

    Example:
      >>> batches = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
      >>> tf_ext.data.variable_batch_size(batches).element_spec.shape
      TensorShape([None])
    """
    relaxed = tf.data.experimental.from_variant(
        tf.data.experimental.to_variant(dataset),
        tf.nest.map_structure(_cuttable, relaxed_spec(dataset.element_spec)),
    )
    made = mark(relaxed.with_options(dataset.options()), epochs_of(dataset))
    made.tf_ext_streams = streams_of(dataset)
    return made


def auto_sharded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset, sharded by samples unless its options say how.

    TensorFlow would try to shard by file first, which changes the dataset where
    samples are skipped, taken or counted after reading.
    """
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (policies.OFF, policies.HINT):
        # tf_keras would run one step per original batch. A filter hides their
        # number, so that it runs until the derived dataset ends.
        return dataset.filter(lambda *_: True)
    if policy != policies.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)


def relaxed_spec(element_spec: typing.Any) -> typing.Any:
    """The specification of batches of any size.

    Args:
      element_spec: nested structure of `tf.TypeSpec` of batches.
    """
    return tf.nest.map_structure(_relax, element_spec)


def _relax(spec: tf.TypeSpec) -> tf.TypeSpec:
    if spec.shape.rank is None:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    return type(spec)(shape, spec.dtype)


def _cuttable(spec: tf.TypeSpec) -> tf.TypeSpec:
    if isinstance(spec, tf.SparseTensorSpec) and spec.shape.rank is not None:
        return CuttableSparseSpec(spec.shape, spec.dtype)
    return spec


def worker_share(
    dataset: tf.data.Dataset, workers: int, worker: int
) -> tf.data.Dataset:
    """The share of a worker in each batch of a dataset of global batches.

    Each worker gets a contiguous part of every batch; together the parts are
    the batch. Their sizes differ by at most one.

    Args:
      dataset: tf.data.Dataset of batches of dense, ragged or sparse tensors.
        It must yield the same batches on all workers: shuffle with a seed.
      workers: int, how many workers there are.
      worker: int, which of them, from 0.

    Returns:
      tf.data.Dataset of as many batches, some of which may be empty.

    Example:
      >>> batches = tf.data.Dataset.range(7).batch(5)
      >>> [b.tolist() for b in tf_ext.data.worker_share(
      ...     batches, workers=2, worker=1).as_numpy_iterator()]
      [[2, 3, 4], [6]]
    """
    spec = dataset.element_spec
    return variable_batch_size(dataset).map(
        lambda *batch: _part(_whole(batch, spec), workers, worker),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def cut_batches(dataset: tf.data.Dataset, workers: int) -> tf.data.Dataset:
    """Splits each batch into `workers` smaller ones, in order.

    Args:
      dataset: tf.data.Dataset of global batches, different on each worker.
      workers: int, how many workers there are.
    """

    def cut(*batch: typing.Any) -> tf.data.Dataset:
        batch = _whole(batch, dataset.element_spec)
        return tf.data.Dataset.range(workers).map(
            lambda part: _part(batch, workers, part)
        )

    return variable_batch_size(dataset).flat_map(cut)


def shard_files(
    dataset: tf.data.Dataset, workers: int, worker: int
) -> tf.data.Dataset:
    """The dataset of a worker's share of the files that it reads.

    Args:
      dataset: tf.data.Dataset.
      workers: int, how many workers there are.
      worker: int, which of them, from 0.

    Raises:
      tf.errors.OpError: it reads no files, or fewer than there are workers.
    """
    policy = tf.data.experimental.AutoShardPolicy.FILE
    specs = tf.nest.flatten(dataset.element_spec)
    dense = [isinstance(spec, tf.TensorSpec) for spec in specs]
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=workers,
        index=worker,
        auto_shard_policy=policy.value,
        num_replicas=workers,
        # Composite tensors are passed as variants.
        output_types=[
            spec.dtype if is_dense else tf.variant
            for spec, is_dense in zip(specs, dense)
        ],
        output_shapes=[
            spec.shape if is_dense else tf.TensorShape(None)
            for spec, is_dense in zip(specs, dense)
        ],
    )
    share = tf.data.experimental.from_variant(variant, dataset.element_spec)
    # Too few files are only detected by reading.
    next(iter(share), None)
    return share


def batch_size_of(batch: typing.Any) -> tf.Tensor:
    """The number of samples of a batch, int64 scalar."""
    first = next(
        one
        for one in tf.nest.flatten(batch)
        if one is not None and tf.TensorShape(one.shape).rank != 0
    )
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, tf.int64)[0]


def known_batch_size(batch: typing.Any) -> int:
    """The number of samples of a batch that was read, without operations."""
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return first.row_splits.shape[0] - 1
    if isinstance(first, tf.SparseTensor):
        return int(first.dense_shape.numpy()[0])
    return first.shape[0]


def blank_batch(element_spec: typing.Any, samples: int) -> typing.Any:
    """A batch of zeros, empty strings and empty ragged rows.

    Args:
      element_spec: nested structure of `tf.TypeSpec` of batches.
      samples: int, how many, unless the structure says so. Other sizes that it
        does not say are 1, or 0 in a batch without samples.
    """
    return tf.nest.map_structure(
        lambda spec: _blank(spec, samples), element_spec
    )


def _blank(spec: tf.TypeSpec, samples: int) -> typing.Any:
    unknown = min(samples, 1)
    sizes = [unknown if size is None else size for size in spec.shape]
    if sizes and (spec.shape[0] is None or not samples):
        sizes[0] = samples
    if isinstance(spec, tf.RaggedTensorSpec):
        values = tf.zeros([0, *sizes[spec.ragged_rank + 1 :]], spec.dtype)
        splits = [tf.zeros([samples + 1], spec.row_splits_dtype)]
        splits += [tf.zeros([1], spec.row_splits_dtype)] * (
            spec.ragged_rank - 1
        )
        return tf.RaggedTensor.from_nested_row_splits(values, splits)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, len(sizes)], tf.int64),
            tf.zeros([0], spec.dtype),
            sizes,
        )
    return tf.zeros(sizes, spec.dtype)


def _whole(arguments: typing.Any, element_spec: typing.Any) -> typing.Any:
    """The batch that `map` has passed as arguments.

    A tuple arrives as several ones, also a tuple of features alone, which may
    be a tuple themselves: `((user, item),)`.
    """
    return arguments if isinstance(element_spec, tuple) else arguments[0]


def _part(batch: typing.Any, workers: int, part: int | tf.Tensor) -> typing.Any:
    size = batch_size_of(batch)
    part = tf.cast(part, tf.int64)
    begin = size * part // workers
    end = size * (part + 1) // workers
    return tf.nest.map_structure(lambda v: _rows(v, begin, end), batch)


def _rows(value: typing.Any, begin: tf.Tensor, end: tf.Tensor) -> typing.Any:
    if isinstance(value, tf.SparseTensor):
        rest = tf.zeros_like(value.dense_shape[1:])
        return tf.sparse.slice(
            value,
            tf.concat([begin[tf.newaxis], rest], 0),
            tf.concat([(end - begin)[tf.newaxis], value.dense_shape[1:]], 0),
        )
    return value[begin:end]
