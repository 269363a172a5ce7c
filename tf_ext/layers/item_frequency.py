# SPDX-License-Identifier: Apache-2.0
"""How often items occur in batches, estimated while a model is trained."""

import typing

import tensorflow as tf

from tf_ext._checks import check_count, is_fraction, refuse
from tf_ext._keras import keras, tf_variable
from tf_ext.regimes import regime_in_scope

_NAME = "ItemFrequency"


@keras.utils.register_keras_serializable(package="tf_ext")
class ItemFrequency(keras.layers.Layer):
    """The expected number of occurrences of items in a batch.

    It is the sampling probability of in-batch negatives up to a factor, which
    a softmax ignores: `tf_ext.layers.InBatchSoftmax` takes it. The items need
    not be known in advance, and their frequencies may change.

    For each bucket of a hash of the ids, the layer keeps the step in which an
    item was last seen and a moving average of the steps between occurrences.
    An item that occurs `c` times in step `t`, and was last seen in step `s`,
    has had `c` intervals of `(t - s) / c`:

        interval = (1 - rate)^c * interval + (1 - (1 - rate)^c) * (t - s) / c
        frequency = 1 / interval

    For items that occur once in a batch, this is Algorithm 2 of Yi et al. An
    item's first interval is `t`, the best guess there is; items that were never
    seen have the frequency `1 / t`. Items that share a bucket are counted
    together: use several buckets per item, of 12 bytes each.

    Under MirroredStrategy and MultiWorkerMirroredStrategy the batch is the
    global one, and all replicas have the same state: results are those of one
    process. ParameterServerStrategy is refused. The state is part of the
    layer's weights, and saved with them.

    Args:
      num_buckets: int, at least 1.
      rate: float above 0 and at most 1, the weight of a new interval.
      **kwargs: `name`.

    Call arguments:
      ids: integers or strings `[batch_size]`.
      training: bool; if True, the batch is a step, and counted before the
        result is computed.

    Returns:
      When called, float32 `[batch_size]`, above 0, without a gradient.

    Raises:
      ValueError: an argument is out of its range, or ids of another rank or
        type.
      NotImplementedError: under ParameterServerStrategy.

    References:
      [Yi et al., 2019](https://doi.org/10.1145/3298689.3346996),
      Sampling-bias-corrected neural modeling for large corpus item
      recommendations.

    Example:
    >>> frequency = tf_ext.layers.ItemFrequency(num_buckets=1000, rate=0.5)
    >>> for step in range(20):
    ...     ids = tf.constant([7, 7, 8 + step % 2])
    ...     found = frequency(ids, training=True)
    >>> frequency(tf.constant([7, 8, 9])).numpy().round(2).tolist()
    [2.0, 0.5, 0.5]
    """

    def __init__(
        self,
        num_buckets: int = 1 << 20,
        rate: float = 0.01,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        check_count(_NAME, "num_buckets", num_buckets, 1)
        if not is_fraction(rate):
            refuse(_NAME, "rate", "a number above 0 and at most 1", rate)
        self.num_buckets, self.rate = int(num_buckets), float(rate)
        regime_in_scope().exchange.check_gathers(_NAME)

    def build(self, input_shape: typing.Any) -> None:
        """Makes the state."""

        def weight(name: str, dtype: str, *shape: int) -> typing.Any:
            return self.add_weight(
                name=name,
                shape=shape,
                dtype=dtype,
                initializer="zeros",
                trainable=False,
            )

        self._step = weight("step", "int64")
        self._last = weight("last_seen", "int64", self.num_buckets)
        self._interval = weight("interval", "float32", self.num_buckets)
        super().build(input_shape)

    def call(
        self, inputs: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """The frequencies of ids; see the class."""
        codes = codes_of(_NAME, inputs)
        buckets = tf.math.floormod(_mixed(codes), self.num_buckets)
        if training:
            [everywhere], _ = regime_in_scope().exchange.gather_batch(
                [buckets], _NAME
            )
            self._count(everywhere)
        step = tf.maximum(tf.convert_to_tensor(self._step), 1)
        interval = _read(self._interval, buckets)
        seen = interval > 0
        return 1.0 / tf.where(seen, interval, tf.cast(step, tf.float32))

    def _count(self, buckets: tf.Tensor) -> None:
        some = tf.cast(tf.size(buckets) > 0, tf.int64)
        step = tf.convert_to_tensor(self._step) + some
        self._step.assign(step)
        distinct, _, counts = tf.unique_with_counts(buckets)
        last = _read(self._last, distinct)
        counts = tf.cast(counts, tf.float32)
        new = tf.cast(step - last, tf.float32) / counts
        kept = tf.pow(1.0 - self.rate, counts)
        old = _read(self._interval, distinct)
        moved = tf.where(last > 0, kept * old + (1.0 - kept) * new, new)
        _write(self._interval, distinct, moved)
        _write(self._last, distinct, tf.fill(tf.shape(distinct), step))

    def compute_output_spec(
        self, inputs: typing.Any, training: bool | None = None
    ) -> typing.Any:
        """The result's shape for Keras 3's functional models."""
        return keras.KerasTensor(inputs.shape, "float32")

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "rate": self.rate,
        }


def codes_of(owner: str, ids: typing.Any) -> tf.Tensor:
    """Int64 codes of ids `[n]`: integers themselves, fingerprints of strings.

    Raises:
      ValueError: ids of another rank or type.
    """
    ids = tf.convert_to_tensor(ids)
    if ids.shape.rank != 1 or not (
        ids.dtype.is_integer or ids.dtype == "string"
    ):
        allowed = "integers or strings [batch_size]"
        refuse(owner, "ids", allowed, f"{ids.dtype.name} {ids.shape}")
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, tf.int64.max)
    return tf.cast(ids, tf.int64)


def _mixed(codes: tf.Tensor) -> tf.Tensor:
    """Hashes of codes: ids may have a pattern, such as a common divisor."""
    bytes_of = tf.bitcast(codes, tf.uint8)
    return tf.bitcast(tf.fingerprint(bytes_of), tf.int64)


# A replica has its own copy of a variable, all with the same values. These ops
# read and write a part of it, in place.


def _read(weight: typing.Any, places: tf.Tensor) -> tf.Tensor:
    stored = tf_variable(weight)
    # Keras calls layers again outside of replicas, where copies of a variable
    # have no handle in common.
    outside = tf.distribute.in_cross_replica_context()
    if outside or not isinstance(stored, tf.Variable):
        return tf.gather(tf.convert_to_tensor(stored), places)
    return tf.raw_ops.ResourceGather(
        resource=stored.handle, indices=places, dtype=stored.dtype
    )


def _write(weight: typing.Any, places: tf.Tensor, values: tf.Tensor) -> None:
    stored = tf_variable(weight)
    if isinstance(stored, tf.Variable):
        tf.raw_ops.ResourceScatterUpdate(
            resource=stored.handle, indices=places, updates=values
        )
