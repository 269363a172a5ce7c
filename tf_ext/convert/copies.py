# SPDX-License-Identifier: Apache-2.0
"""Copies functional models, with something else in the place of some layers."""

import typing
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf_ext._compat.functional_graphs import (
    Call,
    calls_of,
    flat_outputs,
    is_symbolic,
)
from tf_ext._compat.models import Functional, layers_of
from tf_ext._keras import keras
from tf_ext.convert.indices import LOOKUPS
from tf_ext.convert.slots import copy_value
from tf_ext.layers import EmbeddingFeatures, adapted
from tf_ext.tables.shadow import holds_values

# Of the layers that `adapt` can change, those that are copied. The others,
# which training does not change, are shared.
_ADAPTED = (keras.layers.Normalization, *LOOKUPS)


def functional(owner: str, model: object) -> keras.Model:
    """A model as a functional one.

    Args:
      owner: string, the function that was given the model, for errors.
      model: functional keras.Model, or a Sequential whose inputs are known.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(model, keras.Sequential) and getattr(model, "inputs", None):
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    if isinstance(model, Functional) and not isinstance(
        model, keras.Sequential
    ):
        return model
    name = f" {model.name!r}" if isinstance(model, keras.Model) else ""
    raise ValueError(
        f"Argument `model` of {owner} must be a functional model of the Keras "
        "in use, keras.Model(inputs, outputs), or a Sequential that begins "
        f"with a keras.Input. Received: {type(model).__name__}{name}. Of a "
        "subclassed model, convert layer by layer with from_keras."
    )


class ModelCopy:
    """A copy of a functional model, call by call.

    Args:
      owner: string, as of `functional`.
      model: keras.Model, of `functional`.

    Attributes:
      calls: list of Call, those of the model.
      inputs: the structure of the copy's inputs.
    """

    def __init__(self, owner: str, model: keras.Model) -> None:
        self._owner = owner
        self._model = model
        self.calls = calls_of(model)
        self._maker = {
            id(tensor): call for call in self.calls for tensor in call.outputs
        }
        self._copies: dict[int, tuple[typing.Any, typing.Any]] = {}
        # What stands in the place of symbolic tensors of the model.
        self._made: dict[int, typing.Any] = {}
        self.inputs = tf.nest.map_structure(self._new_input, model.input)

    def _new_input(self, symbolic: typing.Any) -> typing.Any:
        layer = self._maker[id(symbolic)].layer
        made = type(layer).from_config(layer.get_config()).output
        self._made[id(symbolic)] = made
        return made

    def key_of(self, symbolic: typing.Any) -> str | None:
        """The key, or the name, of an input of the model; None of no input."""
        given = self._model.input
        if isinstance(given, Mapping):
            for key, one in given.items():
                if one is symbolic:
                    return str(key)
        layer = self._maker[id(symbolic)].layer
        is_input = isinstance(layer, keras.layers.InputLayer)
        return str(layer.name) if is_input else None

    def maker(self, symbolic: typing.Any) -> Call:
        """The call that a symbolic tensor of the model comes from."""
        return self._maker[id(symbolic)]

    def readers(self, symbolic: typing.Any) -> list[Call | None]:
        """The calls that take a tensor; None for the model's outputs."""
        found: list[Call | None] = [
            call
            for call in self.calls
            if any(one is symbolic for one in call.inputs())
        ]
        outputs = tf.nest.flatten(self._model.output)
        return found + [None] * any(one is symbolic for one in outputs)

    def replace(self, symbolic: typing.Any, made: typing.Any) -> None:
        """Puts a tensor into the place of one of the model."""
        self._made[id(symbolic)] = made

    def need(self, symbolics: Iterable[typing.Any]) -> list[typing.Any]:
        """What stands in the place of tensors, after the calls it takes."""
        symbolics = list(symbolics)
        wanted, ahead = set(), symbolics[:]
        while ahead:
            one = ahead.pop()
            if id(one) in self._made:
                continue
            call = self._maker[id(one)]
            if id(call) not in wanted:
                wanted.add(id(call))
                ahead += call.inputs()
        for call in self.calls:
            if id(call) in wanted:
                self._repeat(call)
        return [self._made[id(one)] for one in symbolics]

    def ancestors(self, symbolics: Iterable[typing.Any]) -> list[typing.Any]:
        """The layers whose outputs some tensors depend on."""
        found: dict[int, Call] = {}
        ahead = list(symbolics)
        while ahead:
            call = self._maker[id(ahead.pop())]
            if id(call) not in found:
                found[id(call)] = call
                ahead += call.inputs()
        return [call.layer for call in found.values()]

    def outputs(self) -> typing.Any:
        """The structure of the copy's outputs."""
        flat = tf.nest.flatten(self._model.output)
        self.need(flat)
        return tf.nest.map_structure(
            lambda one: self._made[id(one)], self._model.output
        )

    def _repeat(self, call: Call) -> None:
        layer = self._copy(call)
        args, kwargs = tf.nest.map_structure(
            lambda one: self._made[id(one)] if is_symbolic(one) else one,
            (call.args, call.kwargs),
        )
        made = flat_outputs(layer(*args, **kwargs))
        for before, after in zip(call.outputs, made, strict=True):
            self._made.setdefault(id(before), after)

    def _copy(self, call: Call) -> typing.Any:
        layer = call.layer
        if id(layer) in self._copies:
            return self._copies[id(layer)][1]
        self._check(call)
        copy = layer
        try:
            copy = _copy_of(layer)
        except Exception as error:
            if getattr(layer, "variables", None):
                raise ValueError(
                    f"Argument `model` of {self._owner} must have layers that "
                    "can be copied by get_config and from_config. Received: "
                    f"layer {layer.name!r}, {_named(layer)}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        self._copies[id(layer)] = layer, copy
        return copy

    def _check(self, call: Call) -> None:
        layer = call.layer
        for one in tf.nest.flatten((call.args, call.kwargs)):
            if hasattr(one, "assign") and not is_symbolic(one):
                raise ValueError(
                    f"Argument `model` of {self._owner} must not have layers "
                    "that are called with variables of others. Received: "
                    f"layer {layer.name!r}, which is called with a variable of "
                    f"shape {one.shape}"
                )
        if isinstance(layer, keras.Model):
            for inner in layer.layers:
                if isinstance(
                    inner, keras.layers.Embedding | EmbeddingFeatures
                ):
                    raise ValueError(
                        f"Argument `model` of {self._owner} must have all "
                        "layers of embeddings itself. Received: layer "
                        f"{inner.name!r} inside of model {layer.name!r}"
                    )

    def copy_variables(self) -> list[tuple[typing.Any, typing.Any]]:
        """Copies the values of variables; pairs of the model's and the copy's.

        Raises:
          ValueError: a copied layer has other variables.
        """
        pairs: list[tuple[typing.Any, typing.Any]] = []
        for layer, copy in self._copies.values():
            if copy is layer:
                continue
            theirs, mine = (
                [*filter(holds_values, getattr(one, "variables", []))]
                for one in (layer, copy)
            )
            if [v.shape for v in theirs] != [v.shape for v in mine]:
                raise ValueError(
                    f"Argument `model` of {self._owner} must have layers that "
                    "can be copied by get_config and from_config. Received: "
                    f"layer {layer.name!r}, {_named(layer)}, whose copy has "
                    "other variables"
                )
            pairs += zip(theirs, mine)
        for before, after in pairs:
            copy_value(before, after)
        for _, copy in self._copies.values():
            if isinstance(copy, keras.layers.Layer):
                adapted.finalize(copy)
        return pairs


def _copy_of(layer: typing.Any) -> typing.Any:
    """A layer of the same configuration, with the same vocabularies."""
    if hasattr(layer, "adapt") and not isinstance(layer, _ADAPTED):
        return layer
    if type(layer) in (Functional, keras.Sequential) and any(
        hasattr(one, "adapt") for one in layers_of(layer)
    ):
        # Shapes inside of it depend on the sizes of vocabularies.
        copy = keras.models.clone_model(layer, clone_function=_copy_of)
        if not layer.trainable:
            copy.trainable = False
        return copy
    config = layer.get_config()
    if not isinstance(layer, LOOKUPS):
        return type(layer).from_config(config)
    # The configuration lacks what `adapt` has found.
    copy = type(layer).from_config(config | {"vocabulary": None})
    copy.set_vocabulary(layer.get_vocabulary())
    return copy


def _named(layer: object) -> str:
    return f"{type(layer).__module__}.{type(layer).__name__}"
