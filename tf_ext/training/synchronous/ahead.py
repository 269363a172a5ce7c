# SPDX-License-Identifier: Apache-2.0
"""Batches whose ids are on their way before the step that trains on them.

Which rows a batch needs does not depend on the steps before it. So while a step
computes, its worker hashes the next batch, and sends the distinct ids to their
owners with the gradients of the step.
"""

import contextlib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._compat.models import Functional, inputs_of_only_call
from tf_ext._keras import keras
from tf_ext.layers import EmbeddingFeatures
from tf_ext.layers.pulling import Prepared
from tf_ext.layers.replaced_inputs import replaced_inputs
from tf_ext.regimes import Carried, Route, SignExchange, SynchronousRegime
from tf_ext.training.feeds import Spec
from tf_ext.training.optional_batches import as_optional, from_optional

_SIGNS = tf.TensorSpec([None], tf.int64)
_SCALAR = tf.TensorSpec([], tf.int64)


class AheadOfStep:
    """The layers of a model whose ids can be sent before a step.

    These are the layers of a functional model that read inputs of the model,
    and are called once: what they get is known without calling the model.

    Args:
      model: keras.Model of Keras 3.
      regime: SynchronousRegime of its tables.
      element_spec: nested structure of `tf.TypeSpec`, a batch of training.
    """

    def __init__(
        self,
        model: keras.Model,
        regime: SynchronousRegime,
        element_spec: Spec,
    ) -> None:
        self._model = model
        self._regime = regime
        self._spec = element_spec
        # Keras makes of a batch what each layer gets.
        self._readers = {
            layer: keras.Model(
                model.input, inputs, name=f"inputs_of_{layer.name}"
            )
            for layer, inputs in _layers_of_inputs(model)
        }

    def __bool__(self) -> bool:
        return bool(self._readers)

    def first(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """The function that sends the ids of a batch without a step.

        It takes what `as_optional` made of a batch, and returns a state for
        `step`.
        """

        def send(batch: tf.Tensor) -> tf.Tensor:
            following = self._hash(batch)
            for exchange in self._exchanges(following):
                exchange.send()
            return _to_state(following)

        return tf.function(
            lambda batch: self._regime.strategy.run(send, args=(batch,)),
            input_signature=[tf.TensorSpec([], tf.variant)],
            autograph=False,
        )

    @contextlib.contextmanager
    def step(
        self, state: tf.Tensor, following: tf.Tensor
    ) -> Iterator["Following"]:
        """A context for the call of the model and the update of a step.

        Args:
          state: variant scalar, of the batch of the step.
          following: variant scalar, the batch of the next step.

        Yields:
          Following.
        """
        prepared = self._hash(following)
        exchanges = self._exchanges(prepared)
        with source_with(prepared=self._from_state(state, prepared)):
            yield Following(prepared, exchanges)

    def _hash(self, batch: tf.Tensor) -> dict[EmbeddingFeatures, Prepared]:
        """The batch of each layer, not yet sent."""
        data = from_optional(batch, self._spec)
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with replaced_inputs(self._model, (x,)) as (given,):
            return {
                layer: layer.prepare(reader(given), training=True)
                for layer, reader in self._readers.items()
            }

    def _exchanges(
        self, prepared: Mapping[EmbeddingFeatures, Prepared]
    ) -> list[SignExchange]:
        return [
            self._regime.exchange.sign_exchange(
                list(zip(layer.tables, one.plans)), one.error
            )
            for layer, one in prepared.items()
        ]

    def _from_state(
        self, state: tf.Tensor, like: Mapping[EmbeddingFeatures, Prepared]
    ) -> dict[EmbeddingFeatures, Prepared]:
        """The batch of each layer, on its way.

        Args:
          state: variant scalar, that `_to_state` made.
          like: dict of Prepared, of another batch.
        """
        counts = tf.TensorSpec([self._regime.processes.count], tf.int64)
        specs = [
            (
                [tf.TensorSpec(t.shape, t.dtype) for t in one.tensors()],
                [(counts, _SIGNS)] * len(one.distinct_plans()),
                (_SCALAR, _SCALAR),
            )
            for one in like.values()
        ]
        return {
            layer: _with_routes(one.with_tensors(own), arrived, agreed)
            for (layer, one), (own, arrived, agreed) in zip(
                like.items(), from_optional(state, specs)
            )
        }


class Following:
    """The next batch, while the step before it is made.

    Args:
      prepared: dict of Prepared, by layer.
      exchanges: list of SignExchange of their plans.

    Attributes:
      carried: list of Carried, the ids, for the gradients of the step.
    """

    def __init__(
        self,
        prepared: Mapping[EmbeddingFeatures, Prepared],
        exchanges: Sequence[SignExchange],
    ) -> None:
        self._prepared = prepared
        self._exchanges = exchanges
        self.carried = [
            Carried(exchange.words(), exchange.take_words)
            for exchange in exchanges
        ]

    def state(self, last: Sequence[tf.Tensor]) -> tf.Tensor:
        """What the next step takes: a variant scalar.

        Args:
          last: list of tensors, which the step computes last, after everything
            that may raise.
        """
        for exchange in self._exchanges:
            # The step has sent no gradients of tables.
            if not exchange.is_complete:
                with tf.control_dependencies(last):
                    exchange.send()
        return _to_state(self._prepared)


def _to_state(prepared: Mapping[EmbeddingFeatures, Prepared]) -> tf.Tensor:
    parts = []
    for one in prepared.values():
        routes = [plan.way for plan in one.distinct_plans()]
        parts.append(
            (
                one.tensors(),
                [(route.counts, route.signs) for route in routes],
                # All plans of a layer have the same.
                (routes[0].width, routes[0].flag),
            )
        )
    return as_optional(parts)


def _with_routes(
    prepared: Prepared,
    arrived: Sequence[tuple[tf.Tensor, tf.Tensor]],
    agreed: tuple[tf.Tensor, tf.Tensor],
) -> Prepared:
    for plan, (counts, signs) in zip(prepared.distinct_plans(), arrived):
        plan.route = Route(plan.split_sizes, counts, signs, *agreed)
    return prepared


def _layers_of_inputs(
    model: keras.Model,
) -> Iterator[tuple[EmbeddingFeatures, typing.Any]]:
    """The layers of tables that read inputs of a model, and what each gets."""
    if not isinstance(model, Functional):
        return
    for layer in model.layers:
        if isinstance(layer, EmbeddingFeatures):
            inputs = inputs_of_only_call(model, layer)
            if inputs is not None:
                yield layer, inputs
