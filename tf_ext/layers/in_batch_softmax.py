# SPDX-License-Identifier: Apache-2.0
"""The softmax loss of two towers, with the other items of a batch."""

import typing

import tensorflow as tf

from tf_ext._checks import is_finite, refuse
from tf_ext._keras import keras
from tf_ext.layers import softmax_blocks
from tf_ext.layers.item_frequency import codes_of
from tf_ext.regimes import regime_in_scope

_NAME = "InBatchSoftmax"
_LEAST_PROBABILITY = 1e-12


@keras.utils.register_keras_serializable(package="tf_ext")
class InBatchSoftmax(keras.layers.Layer):
    """Cross-entropies of finding each query's candidate among the batch's.

    The candidate in row `i` is the one that was chosen for the query in row
    `i`; the candidates of the other rows are its negatives:

        logits[i, j] = queries[i] . candidates[j] / temperature - log(p[j])
        loss[i] = -log(softmax(logits[i])[i])

    `p[j]` is the probability with which a batch contains candidate `j`.
    Without it, popular candidates are penalized for being negatives often.
    `tf_ext.layers.ItemFrequency` estimates it.

    A candidate that is the same item as that of row `i` is no negative of row
    `i`: such accidental hits have the probability 0. Strings are compared by
    63-bit fingerprints.

    Under strategies with several replicas, each replica has the negatives of
    its own share of a batch. With `global_negatives`, it has those of all
    replicas, whose embeddings it gathers, and whose gradients it sends back.
    The result is that of one process with the whole batch.

    Args:
      temperature: float above 0.
      global_negatives: bool, whether candidates of all replicas are negatives.
      **kwargs: `name`.

    Call arguments:
      queries: floats `[batch_size, dim]`.
      candidates: floats `[batch_size, dim]`.
      ids: integers or strings `[batch_size]`, the candidates' ids. None if no
        item occurs twice: nothing is masked.
      sampling_probability: floats `[batch_size]`, above 0, up to a common
        factor; values below 1e-12 count as that. None if all are equal.

    Returns:
      When called, losses, float32 `[batch_size]`. Train on their mean, over the
      global batch.

    Raises:
      ValueError: an argument is out of its range, or has another shape or dtype
        than these.
      NotImplementedError: `global_negatives` under ParameterServerStrategy.

    References:
      [Yi et al., 2019](https://doi.org/10.1145/3298689.3346996),
      Sampling-bias-corrected neural modeling for large corpus item
      recommendations.

    Example:
    >>> softmax = tf_ext.layers.InBatchSoftmax()
    >>> towers = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> ids = tf.constant(["tea", "milk", "tea"])
    >>> softmax(towers, towers, ids).numpy().round(2)
    array([0.31, 0.55, 0.31], dtype=float32)
    >>> logits, labels = softmax.logits(towers, towers, ids)
    >>> tf.nn.softmax(logits).numpy()[0].round(2)
    array([0.73, 0.27, 0.  ], dtype=float32)
    """

    def __init__(
        self,
        temperature: float = 1.0,
        global_negatives: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"autocast": False, "dtype": "float32", **kwargs})
        if not is_finite(temperature) or temperature <= 0:
            refuse(_NAME, "temperature", "a number above 0", temperature)
        if not isinstance(global_negatives, bool):
            allowed = "True or False"
            refuse(_NAME, "global_negatives", allowed, global_negatives)
        self.temperature = float(temperature)
        self.global_negatives = global_negatives
        if global_negatives:
            regime_in_scope().exchange.check_gathers(
                f"{_NAME}(global_negatives=True)"
            )
        self.built = True

    def call(
        self,
        queries: tf.Tensor,
        candidates: tf.Tensor,
        ids: tf.Tensor | None = None,
        sampling_probability: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The losses; see the class."""
        queries, candidates, labels, more = self._parts(
            queries, candidates, ids, sampling_probability
        )
        if "own" not in more:
            more["own"] = labels
            more["codes"] = tf.range(tf.shape(candidates, tf.int64)[0])
        chosen = tf.reduce_sum(queries * tf.gather(candidates, labels), 1)
        if "bias" in more:
            chosen -= tf.gather(more["bias"], labels)
        # Those of the chosen one's code do not count, and so not itself.
        others = softmax_blocks.logsumexp_of(queries, candidates, more)
        return tf.nn.softplus(others - chosen)

    def logits(
        self,
        queries: tf.Tensor,
        candidates: tf.Tensor,
        ids: tf.Tensor | None = None,
        sampling_probability: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The logits that losses are computed from, for metrics.

        Args:
          queries: as for a call, like all others.
          candidates: `[batch_size, dim]`.
          ids: `[batch_size]` or None.
          sampling_probability: `[batch_size]` or None.

        Returns:
          `(logits, labels)`: float32 `[batch_size, n]` and int64 `[batch_size]`
          for the `n` candidates of this replica, or of all: unlike losses,
          they are in memory together.
        """
        queries, candidates, labels, more = self._parts(
            queries, candidates, ids, sampling_probability
        )
        logits = softmax_blocks.logits_of(queries, candidates, more, labels)
        return logits, labels

    def _parts(
        self,
        queries: tf.Tensor,
        candidates: tf.Tensor,
        ids: tf.Tensor | None,
        sampling_probability: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, softmax_blocks.More]:
        """The arguments of `softmax_blocks`, with the labels of `logits`."""
        queries = _vectors("queries", queries, None)
        candidates = _vectors("candidates", candidates, queries.shape[1])
        size = tf.shape(queries, tf.int64)[0]
        own = None if ids is None else codes_of(_NAME, ids)
        parts = {"candidates": candidates}
        if own is not None:
            parts["codes"] = own
        if sampling_probability is not None:
            probability = _probability(sampling_probability)
            parts["bias"] = tf.math.log(probability)
        offset = tf.constant(0, tf.int64)
        if self.global_negatives:
            gathered, offset = regime_in_scope().exchange.gather_batch(
                list(parts.values()), f"{_NAME}(global_negatives=True)"
            )
            parts = dict(zip(parts, gathered, strict=True))
        more: softmax_blocks.More = {
            name: parts[name] for name in ("bias", "codes") if name in parts
        }
        if own is not None:
            more["own"] = own
        labels = offset + tf.range(size)
        return queries / self.temperature, parts["candidates"], labels, more

    def compute_output_spec(
        self,
        queries: typing.Any,
        candidates: typing.Any,
        ids: typing.Any = None,
        sampling_probability: typing.Any = None,
    ) -> typing.Any:
        """The losses' shape for Keras 3's functional models."""
        return keras.KerasTensor((queries.shape[0],), "float32")

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "temperature": self.temperature,
            "global_negatives": self.global_negatives,
        }


def _vectors(argument: str, value: typing.Any, dim: int | None) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating or not value.shape.is_compatible_with(
        [None, dim]
    ):
        allowed = f"floats [batch_size, {'dim' if dim is None else dim}]"
        refuse(_NAME, argument, allowed, f"{value.dtype.name} {value.shape}")
    return tf.cast(value, tf.float32)


def _probability(value: typing.Any) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating or value.shape.rank != 1:
        found = f"{value.dtype.name} {value.shape}"
        refuse(_NAME, "sampling_probability", "floats [batch_size]", found)
    value = tf.stop_gradient(tf.cast(value, tf.float32))
    return tf.maximum(value, _LEAST_PROBABILITY)
