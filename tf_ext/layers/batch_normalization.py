# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation by the statistics of the global batch."""

import typing

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.regimes import regime_in_scope

# Arguments of Keras's layer that this layer does not take.
_REFUSED = {
    "synchronized": "statistics always are those of the global batch",
    "renorm": "there is no batch renormalization",
    "renorm_clipping": "there is no batch renormalization",
    "renorm_momentum": "there is no batch renormalization",
    "fused": "a fused kernel would see one replica's share alone",
    "virtual_batch_size": "statistics always are those of the global batch",
    "adjustment": "there is no adjustment",
}


@keras.utils.register_keras_serializable(package="tf_ext")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization`, by the global batch's statistics.

    For each index of `axis`, with all other axes taken together,

        outputs = gamma * (inputs - mean) / sqrt(variance + epsilon) + beta

    In training, `mean` and `variance` are those of the batch, and the moving
    averages follow them:

        moving_mean = momentum * moving_mean + (1 - momentum) * mean
        moving_variance = momentum * moving_variance + (1 - momentum) * variance

    In inference, or with `trainable=False`, they are `moving_mean` and
    `moving_variance`. What the batch is depends on the strategy:

    - None, or one replica: the batch. Results are those of Keras.
    - MirroredStrategy, MultiWorkerMirroredStrategy: the global batch, by two
      reductions over the replicas: counts and sums, then squared deviations
      from the mean. Shares of the replicas may differ in size and be empty;
      results are those of one process with the whole batch. All replicas must
      call the layer in each step.
    - ParameterServerStrategy: the batch of the worker's own step, as workers
      do not wait for each other. The moving averages on the servers follow the
      batches of all workers: a step sends its batch's statistics, and the
      server decays the average and adds them in one operation, under the
      variable's lock. So the formulas above apply in the order in which steps
      arrive, and no step's statistics are lost.

    As in Keras, every batch has the same weight, whatever its size, and
    `moving_variance` averages the variances within batches. A batch that is
    empty, or masked, on all replicas leaves the moving averages as they are.

    The weights are Keras's in every case: `gamma`, `beta`, `moving_mean` and
    `moving_variance`. Weights saved under one strategy, or by Keras's layer,
    can be loaded under another.

    Args:
      axis: int, the axis of features. Statistics are taken over all others.
      momentum: float from 0 to 1, the weight of the old moving average.
      epsilon: float, added to the variance.
      center: bool, whether there is a `beta`.
      scale: bool, whether there is a `gamma`.
      beta_initializer: Keras initializer, as those that follow.
      gamma_initializer: Keras initializer.
      moving_mean_initializer: Keras initializer.
      moving_variance_initializer: Keras initializer.
      beta_regularizer: Keras regularizer or None.
      gamma_regularizer: Keras regularizer or None.
      beta_constraint: Keras constraint or None.
      gamma_constraint: Keras constraint or None.
      **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
      inputs: float tensor of any rank, `[batch_size, ..., features]` with
        `axis=-1`. The outputs have its shape.
      training: bool.
      mask: bool tensor of the inputs' shape without the last axis, with
        `axis=-1` only: what is False counts neither in the statistics nor in
        the batch's size.

    Raises:
      ValueError: an argument of Keras's layer that this layer does not take, or
        a momentum outside of [0, 1]; when called, a mask of a wrong shape, or
        with another `axis` than the last.

    References:
      [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167)

    Example:
    >>> layer = tf_ext.layers.BatchNormalization(momentum=0.5)
    >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().round(2)
    array([[-1.],
           [ 1.]], dtype=float32)
    >>> tf.convert_to_tensor(layer.moving_mean).numpy()
    array([1.], dtype=float32)
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: typing.Any = "zeros",
        gamma_initializer: typing.Any = "ones",
        moving_mean_initializer: typing.Any = "zeros",
        moving_variance_initializer: typing.Any = "ones",
        beta_regularizer: typing.Any = None,
        gamma_regularizer: typing.Any = None,
        beta_constraint: typing.Any = None,
        gamma_constraint: typing.Any = None,
        **kwargs: typing.Any,
    ) -> None:
        for name in kwargs:
            if name in _REFUSED:
                raise ValueError(
                    f"Argument `{name}` of BatchNormalization must not be "
                    f"given: {_REFUSED[name]}. Received: "
                    f"{name}={kwargs[name]!r}. Leave it out, or use "
                    "keras.layers.BatchNormalization."
                )
        if not 0 <= momentum <= 1:
            refuse("BatchNormalization", "momentum", "from 0 to 1", momentum)
        if not IS_KERAS_3:
            kwargs["fused"] = False
        super().__init__(
            axis=axis,
            momentum=momentum,
            epsilon=epsilon,
            center=center,
            scale=scale,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            moving_mean_initializer=moving_mean_initializer,
            moving_variance_initializer=moving_variance_initializer,
            beta_regularizer=beta_regularizer,
            gamma_regularizer=gamma_regularizer,
            beta_constraint=beta_constraint,
            gamma_constraint=gamma_constraint,
            **kwargs,
        )

    def build(self, input_shape: typing.Any) -> None:
        """Makes the weights."""
        self._regime = regime_in_scope()
        super().build(input_shape)

    def add_weight(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """As in Keras; all replicas write the same moving averages.

        tf_keras would keep one per replica and average them on reading, which
        takes all workers: a checkpoint written by the chief alone would wait.
        """
        if not IS_KERAS_3 and kwargs.pop("synchronization", None) is not None:
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        return super().add_weight(*args, **kwargs)

    def call(
        self,
        inputs: tf.Tensor,
        training: bool | None = None,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Normalises a batch; see the class."""
        wide = tf.float64 if inputs.dtype == tf.float64 else tf.float32
        values = tf.cast(inputs, wide)
        axis = self._feature_axis() % inputs.shape.rank
        if training and self.trainable:
            mask = _checked_mask(mask, inputs, axis)
            center, shift, variance, count = _global_moments(values, axis, mask)
            self._follow(self.moving_mean, center + shift, count)
            self._follow(self.moving_variance, variance, count)
        else:
            center, shift = self.moving_mean, None
            variance = self.moving_variance
        center, shift, variance, beta, gamma = (
            _along(vector, axis, values)
            for vector in (center, shift, variance, self.beta, self.gamma)
        )
        # Keras's inputs * scale + (beta - mean * scale) has the rounding error
        # of the inputs, however small their deviations are.
        outputs = values - center
        outputs = outputs if shift is None else outputs - shift
        scale = tf.math.rsqrt(variance + self.epsilon)
        outputs *= scale if gamma is None else scale * gamma
        outputs = outputs if beta is None else outputs + beta
        return tf.cast(outputs, self.compute_dtype)

    def _feature_axis(self) -> int:
        # In tf_keras it is a list after the layer is built.
        return self.axis if isinstance(self.axis, int) else self.axis[0]

    def _follow(
        self, average: typing.Any, value: tf.Tensor, count: tf.Tensor
    ) -> None:
        """Updates a moving average with a batch's value, unless count is 0."""
        value = tf.cast(value, average.dtype)
        self._regime.placement.move_average(
            average, value, self.momentum, count
        )

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        config = super().get_config()
        config["axis"] = self._feature_axis()
        return {k: v for k, v in config.items() if k not in _REFUSED}


def _global_moments(
    values: tf.Tensor, axis: int, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The statistics of the batch, over all replicas.

    Keras, with `synchronized=True`, subtracts the squared mean from the mean
    square, which cancels a variance that is small relative to the mean; and in
    Keras 3 replicas with masks use their local statistics.

    Args:
      values: float `[..., features, ...]`, this replica's share.
      axis: int, the axis of features.
      mask: bool, broadcastable to `values`, or None.

    Returns:
      (center, shift, variance, count): of shape `[features]`, the count of
      shape `[]`, of the dtype of `values`. The mean is `center + shift`, where
      `center` is rounded and has no gradient. With a count of 0 all are 0.
    """
    axes = [i for i in range(values.shape.rank) if i != axis]
    if mask is None:
        shape = tf.shape(values, tf.int64)
        count = tf.reduce_prod(tf.gather(shape, axes))
    else:
        count = tf.math.count_nonzero(mask)
        values = tf.where(mask, values, 0)
    count = tf.cast(count, values.dtype)
    total = tf.reduce_sum(tf.stop_gradient(values), axes)
    sums = _sum_over_replicas(tf.concat([[count], total], 0))
    count, center = sums[0], tf.math.divide_no_nan(sums[1:], sums[0])
    deviations = values - _along(center, axis, values)
    if mask is not None:
        deviations = tf.where(mask, deviations, 0)
    powers = [deviations, tf.square(deviations)]
    sums = _sum_over_replicas(
        tf.stack([tf.reduce_sum(power, axes) for power in powers])
    )
    shift, variance = tf.unstack(tf.math.divide_no_nan(sums, count))
    variance = tf.maximum(variance - tf.square(shift), 0.0)
    return center, shift, variance, count


def _along(
    vector: tf.Tensor | None, axis: int, values: tf.Tensor
) -> tf.Tensor | None:
    """Reshapes `[features]` for broadcasting along `axis` of `values`."""
    if vector is None:
        return None
    shape = [-1 if i == axis else 1 for i in range(values.shape.rank)]
    return tf.reshape(tf.cast(vector, values.dtype), shape)


def _sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _checked_mask(
    mask: tf.Tensor | None, inputs: tf.Tensor, axis: int
) -> tf.Tensor | None:
    """The mask with a last axis of size 1 for the features, or None."""
    if mask is None:
        return None
    rank = inputs.shape.rank
    if axis != rank - 1:
        raise ValueError(
            "Argument `mask` of BatchNormalization must be None unless `axis` "
            f"is the last one. Received: a mask with axis={axis} of inputs of "
            f"shape {inputs.shape}"
        )
    if mask.shape.rank != rank - 1:
        raise ValueError(
            "Argument `mask` of BatchNormalization must have the shape of the "
            f"inputs without the last axis. Received: mask of shape "
            f"{mask.shape}, inputs of shape {inputs.shape}"
        )
    return tf.cast(mask, tf.bool)[..., tf.newaxis]
