# SPDX-License-Identifier: Apache-2.0
"""What must be the same in the programs of synchronous workers."""

import typing

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.training.fit_arguments import makes_dataset

_POLICIES = tf.data.experimental.AutoShardPolicy
# Those with which each worker reads all data, and keeps a part of each batch.
SHARED = (_POLICIES.AUTO, _POLICIES.DATA)

_ARGUMENTS = (
    *("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "shuffle"),
    *("validation_split", "validation_steps", "validation_batch_size"),
    *("validation_freq", "class_weight"),
)
# Keras counts the objects of a class.
_COUNTED = ("name",)


def program_of(
    model: keras.Model, arguments: dict[str, typing.Any]
) -> dict[str, typing.Any]:
    """What all workers must have in common in a call of `fit`.

    Args:
      model: keras.Model, compiled.
      arguments: dict of all arguments of `keras.Model.fit`.

    Returns:
      Nested dict of what JSON can hold, by the names that errors use.
    """
    program = {
        "the class of the model": type(model).__name__,
        "the optimizer": _plain(keras.optimizers.serialize(model.optimizer)),
        "the loss": _plain(tf.nest.map_structure(_name, model.loss)),
    }
    for name in _ARGUMENTS:
        program[f"`{name}` of fit"] = _plain(arguments.get(name))
    program |= _data("`x`", arguments["x"])
    validation, *_ = keras.utils.unpack_x_y_sample_weight(
        arguments["validation_data"]
    )
    program |= _data("`validation_data`", validation)
    return program


def _data(name: str, data: typing.Any) -> dict[str, typing.Any]:
    if data is None:
        return {name: None}
    if isinstance(data, tf.data.Dataset):
        return _dataset(name, data)
    if makes_dataset(data):
        return {name: "a function"}
    leaves = [x for x in tf.nest.flatten(data) if hasattr(x, "shape")]
    if not leaves:
        return {name: type(data).__name__}
    return {f"the number of samples of {name}": int(leaves[0].shape[0])}


def _dataset(name: str, dataset: tf.data.Dataset) -> dict[str, typing.Any]:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    found = {f"the auto_shard_policy of {name}": policy.name}
    if policy in SHARED:
        found[f"the batch size of {name}"] = _batch_size(dataset)
        count = int(dataset.cardinality())
        found[f"the number of batches of {name}"] = (
            count if count >= 0 else None
        )
    return found


def _batch_size(dataset: tf.data.Dataset) -> int | None:
    """The size of batches, if TensorFlow knows it."""
    try:
        size = tf.raw_ops.ComputeBatchSize(
            input_dataset=tf.data.experimental.to_variant(dataset)
        )
    except tf.errors.OpError:
        return None  # Some datasets cannot be described.
    return int(size) if size >= 0 else None


def _plain(value: typing.Any) -> typing.Any:
    """Nested dicts and lists without what differs from process to process."""
    if isinstance(value, dict):
        return {
            str(key): _plain(one)
            for key, one in value.items()
            if key not in _COUNTED
        }
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    return _name(value)


def _name(value: typing.Any) -> str | None:
    """The name of a loss: of a function or a class; its text if it is one."""
    if value is None or isinstance(value, str):
        return value
    return str(getattr(value, "__name__", type(value).__name__))
