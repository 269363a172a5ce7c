# SPDX-License-Identifier: Apache-2.0
"""The position at which something was shown, for models of clicks."""

import typing

import tensorflow as tf

from tf_ext._checks import check_count, is_int, refuse
from tf_ext._keras import keras


@keras.utils.register_keras_serializable(package="tf_ext")
class PositionMapping(keras.layers.Layer):
    """The embedding of a position in training, that of a default otherwise.

    Ads and results are clicked more the higher they are shown. A model that
    reads the position explains that by the position, instead of by what was
    shown. When it ranks, positions are not known yet: with `training=False`,
    in `evaluate`, `predict` and exported models, all samples are given the
    embedding of one position, whatever their own is.

    Positions of `num_positions` and above have the embedding of the last one,
    negative ones that of the default, so unknown positions may be -1. The
    default's embedding is trained by the samples that were shown there.

    Args:
      num_positions: int, at least 1.
      dim: int, at least 1, the size of an embedding.
      default: int, from 0 to `num_positions - 1`, the position that all samples
        are taken to have outside of training.
      embeddings_initializer: Keras initializer.
      embeddings_regularizer: Keras regularizer or None.
      **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
      inputs: integers of any shape, the positions, counted from 0.
      training: bool, or a bool scalar tensor.

    Returns:
      When called, floats of the shape of the inputs and `[dim]`.

    Raises:
      ValueError: an argument is out of its range; when called, inputs that are
        not integers.

    Example:
    >>> layer = tf_ext.layers.PositionMapping(
    ...     3, dim=1, default=1, embeddings_initializer="zeros")
    >>> layer.build([None])
    >>> layer.set_weights([np.array([[0.5], [0.25], [0.125]])])
    >>> layer(tf.constant([0, 2, 7]), training=True).numpy().tolist()
    [[0.5], [0.125], [0.125]]
    >>> layer(tf.constant([0, 2, 7])).numpy().tolist()
    [[0.25], [0.25], [0.25]]
    """

    def __init__(
        self,
        num_positions: int,
        dim: int,
        default: int = 0,
        embeddings_initializer: typing.Any = "uniform",
        embeddings_regularizer: typing.Any = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        check_count("PositionMapping", "num_positions", num_positions, 1)
        check_count("PositionMapping", "dim", dim, 1)
        if not is_int(default) or not 0 <= default < num_positions:
            allowed = f"an integer from 0 to {num_positions - 1}"
            refuse("PositionMapping", "default", allowed, default)
        self.num_positions = int(num_positions)
        self.dim = int(dim)
        self.default = int(default)
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.embeddings_regularizer = keras.regularizers.get(
            embeddings_regularizer
        )

    def build(self, input_shape: typing.Any) -> None:
        """Makes the embeddings."""
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_positions, self.dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
        )
        super().build(input_shape)

    def call(
        self, inputs: tf.Tensor, training: bool | tf.Tensor | None = None
    ) -> tf.Tensor:
        """Looks positions up; see the class."""
        inputs = tf.convert_to_tensor(inputs)
        if not inputs.dtype.is_integer:
            allowed = "a tensor of integers"
            refuse("PositionMapping", "inputs", allowed, inputs.dtype.name)
        default = tf.fill(tf.shape(inputs), tf.constant(self.default, tf.int64))
        positions = default
        if tf.is_tensor(training) or training:
            own = tf.cast(inputs, tf.int64)
            positions = tf.minimum(own, self.num_positions - 1)
            positions = tf.where(own < 0, default, positions)
        if tf.is_tensor(training):
            positions = tf.where(training, positions, default)
        rows = tf.gather(tf.convert_to_tensor(self.embeddings), positions)
        return tf.cast(rows, self.compute_dtype)

    def compute_output_shape(self, input_shape: typing.Any) -> typing.Any:
        """The inputs' shape and `dim`."""
        return (*input_shape, self.dim)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "num_positions": self.num_positions,
            "dim": self.dim,
            "default": self.default,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
        }
