"""Batch normalisation by the statistics of the global batch."""

import numpy as np
import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute.cluster import is_parameter_server

# What Keras's layer takes and this one does not.
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

    - None, or one replica: the batch. All is as in Keras.
    - MirroredStrategy, MultiWorkerMirroredStrategy: the global batch, in two
      sums over the replicas: counts and sums, then squared deviations from the
      mean. Shares of the replicas may differ in size and be empty; results are
      those of one process with the whole batch. All replicas must call the
      layer in each step.
    - ParameterServerStrategy: the batch of the worker's own step, as workers
      do not wait for each other. The moving averages on the servers take in
      the batches of all workers: a step sends its batch's statistics, and the
      server decays the average and adds them in one operation, under the
      variable's lock. So the order in which steps arrive is the order of the
      formulas above, and no step's part is lost.

    As in Keras, every batch counts alike, however many samples it has, and
    `moving_variance` averages the variances inside of the batches. A batch that
    is empty, or masked, on all replicas leaves the moving averages as they are.

    The weights are Keras's in every case: `gamma`, `beta`, `moving_mean` and
    `moving_variance`. What was saved under one strategy, or from Keras's
    layer, can be loaded under another.

    Args:
      axis: int, the axis of features. It is kept; all others are averaged.
      momentum: float from 0 to 1, the share of the moving averages that stays.
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
      ValueError: an argument of Keras's layer that this one does not have, or
        a momentum that is none; when called, a mask of another shape, or with
        another axis.

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
        axis=-1,
        momentum=0.99,
        epsilon=1e-3,
        center=True,
        scale=True,
        beta_initializer="zeros",
        gamma_initializer="ones",
        moving_mean_initializer="zeros",
        moving_variance_initializer="ones",
        beta_regularizer=None,
        gamma_regularizer=None,
        beta_constraint=None,
        gamma_constraint=None,
        **kwargs,
    ):
        for name in kwargs:
            if name in _REFUSED:
                raise ValueError(
                    "BatchNormalization of tf_ext has no argument "
                    f"`{name}`: {_REFUSED[name]}. Leave it out, or use "
                    "keras.layers.BatchNormalization."
                )
        if not 0 <= momentum <= 1:
            raise ValueError(
                "Argument `momentum` of BatchNormalization must be from 0 to "
                f"1. Received: {momentum!r}"
            )
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

    def build(self, input_shape):
        """Makes the weights."""
        self._on_servers = is_parameter_server(tf.distribute.get_strategy())
        super().build(input_shape)

    def add_weight(self, *args, **kwargs):
        """As Keras's; the moving averages are written alike on all replicas.

        tf_keras would keep one a replica and average them when they are read,
        which takes all workers: a checkpoint of the chief alone would wait.
        """
        if not IS_KERAS_3 and kwargs.pop("synchronization", None) is not None:
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        return super().add_weight(*args, **kwargs)

    def call(self, inputs, training=None, mask=None):
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
        # Keras's inputs * scale + (beta - mean * scale) is rounded to the
        # inputs' last places, however small their deviations are.
        outputs = values - center
        outputs = outputs if shift is None else outputs - shift
        scale = tf.math.rsqrt(variance + self.epsilon)
        outputs *= scale if gamma is None else scale * gamma
        outputs = outputs if beta is None else outputs + beta
        return tf.cast(outputs, self.compute_dtype)

    def _feature_axis(self):
        # tf_keras makes it a list when the layer is built.
        return self.axis if isinstance(self.axis, int) else self.axis[0]

    def _follow(self, average, value, count):
        """Lets a moving average follow a batch's value, if it has a count."""
        value = tf.cast(value, average.dtype)
        if self._on_servers and self.momentum > 0:
            _follow_on_servers(average, value, self.momentum, count)
            return
        kept = tf.convert_to_tensor(average)
        moved = kept * self.momentum + value * (1.0 - self.momentum)
        average.assign(tf.where(count > 0, moved, kept))

    def get_config(self):
        """The constructor's arguments, for Keras's savers."""
        config = super().get_config()
        config["axis"] = self._feature_axis()
        return {k: v for k, v in config.items() if k not in _REFUSED}


def _global_moments(values, axis, mask):
    """The statistics of the batch, over all replicas.

    Keras's own, with `synchronized=True`, subtract the squared mean from the
    mean square, which leaves nothing of a variance that is small beside the
    mean; and in Keras 3 replicas with masks have statistics of their own.

    Args:
      values: float `[..., features, ...]`, this replica's share.
      axis: int, that of features.
      mask: bool, broadcastable to `values`, or None.

    Returns:
      (center, shift, variance, count): `[features]` and for the count `[]`,
      of the dtype of `values`. The mean is `center + shift`, of which `center`
      is rounded and without a gradient. With a count of 0 all are 0.
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


def _along(vector, axis, values):
    """`[features]` with an axis of 1 for each other one of `values`."""
    if vector is None:
        return None
    shape = [-1 if i == axis else 1 for i in range(values.shape.rank)]
    return tf.reshape(tf.cast(vector, values.dtype), shape)


def _sum_over_replicas(value):
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _follow_on_servers(average, value, momentum, count):
    """Moves an average where it is stored, in one operation under its lock.

    Reading and assigning it, as Keras does, would lose what other workers add
    in between; adding a difference from what was read would count stale decay,
    and sway or diverge with many workers. TensorFlow's proximal step of the
    quadratic penalty is

        average = (average + rate * value) / (1 + rate)

    which with `1 + rate = 1 / momentum` is the moving average.

    Args:
      average: variable on servers, `[features]`.
      value: tensor of its dtype, `[features]`.
      momentum: float above 0.
      count: `[]`; with 0 the average stays.
    """
    dtype = value.dtype
    # Exact in 1 + rate: the average of equal values is that value.
    one = dtype.as_numpy_dtype(1)
    rate = np.divide(one, momentum, dtype=dtype.as_numpy_dtype) - one
    average = average.value if IS_KERAS_3 else average
    # A variable_partitioner makes several of one.
    parts = getattr(average, "variables", [average])
    values = tf.split(value, [part.shape[0] for part in parts])
    for part, value in zip(parts, values, strict=True):
        # Constants are made there, and not sent.
        with tf.device(part.handle.device):
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=part.handle,
                alpha=tf.cast(count > 0, dtype),
                l1=tf.zeros([], dtype),
                l2=tf.constant(rate, dtype),
                delta=-rate * value,
                use_locking=True,
            )


def _checked_mask(mask, inputs, axis):
    """The mask with an axis of 1 for the features, or None."""
    if mask is None:
        return None
    rank = inputs.shape.rank
    if axis != rank - 1:
        raise ValueError(
            "Argument `mask` of BatchNormalization needs the features on the "
            f"last axis. Received: axis={axis} of inputs of shape "
            f"{inputs.shape}"
        )
    if mask.shape.rank != rank - 1:
        raise ValueError(
            "Argument `mask` of BatchNormalization must have the shape of the "
            f"inputs without the last axis. Received: mask of shape "
            f"{mask.shape}, inputs of shape {inputs.shape}"
        )
    return tf.cast(mask, tf.bool)[..., tf.newaxis]
