# SPDX-License-Identifier: Apache-2.0
"""The calls of layers of which a functional model consists."""

import typing

import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras


class Call(typing.NamedTuple):
    """A call of a layer in a functional model.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.

    Attributes:
      layer: the layer; in Keras 3 also an operation, such as that of `x + y`.
      args: tuple of positional arguments, which hold symbolic tensors.
      kwargs: dict of the others, without masks that Keras has passed itself.
      outputs: list of symbolic tensors.
    """

    layer: typing.Any
    args: tuple[typing.Any, ...]
    kwargs: dict[str, typing.Any]
    outputs: list[typing.Any]

    def inputs(self):
        """The symbolic tensors among the arguments, a list."""
        return symbolic_in((self.args, self.kwargs))


def calls_of(model):
    """All calls of a functional model, each after those that it depends on.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.

    Args:
      model: functional keras.Model.

    Returns:
      List of Call.
    """
    by_depth = model._nodes_by_depth
    return [
        _call(node)
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
    ]


def _call(node):
    if not IS_KERAS_3:
        args, kwargs = tuple(node.call_args), dict(node.call_kwargs)
        return Call(node.layer, args, kwargs, tf.nest.flatten(node.outputs))
    args, kwargs = node.arguments.args, node.arguments.kwargs
    # Of symbolic tensors, Keras 3 records the masks that it finds itself.
    masks = {
        id(mask)
        for one in symbolic_in((args, kwargs))
        for mask in [getattr(one, "_keras_mask", None)]
        if mask is not None
    }
    kwargs = {
        name: value
        for name, value in kwargs.items()
        if not ("mask" in name and _are_among(value, masks))
    }
    return Call(node.operation, tuple(args), kwargs, list(node.outputs))


def _are_among(value, masks):
    found = [one for one in tf.nest.flatten(value) if one is not None]
    return bool(found) and all(id(one) in masks for one in found)


def symbolic_in(structure):
    """The symbolic tensors of functional models in a structure, a list.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.
    """
    return [one for one in tf.nest.flatten(structure) if is_symbolic(one)]


def is_symbolic(value):
    """Whether a value is a symbolic tensor of a functional model.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.
    """
    # tf_keras raises for what is no tensor at all.
    if IS_KERAS_3:
        return isinstance(value, keras.KerasTensor)
    return hasattr(value, "_keras_history")


def is_dense(symbolic):
    """Whether a symbolic tensor is neither sparse nor ragged.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.
    """
    if IS_KERAS_3:
        return not (symbolic.sparse or symbolic.ragged)
    return isinstance(symbolic.type_spec, tf.TensorSpec)


def flat_outputs(outputs):
    """The tensors that a call returned, in the order of `Call.outputs`.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.
    """
    return (
        keras.tree.flatten(outputs) if IS_KERAS_3 else tf.nest.flatten(outputs)
    )


def vocabulary_table(layer):
    """The indices by token of a StringLookup or IntegerLookup.

    `get_vocabulary` makes Python lists and dicts of all tokens.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.

    Args:
      layer: the layer.

    Returns:
      `(tokens [n], indices [n])`: tensors, without mask token and indices of
      unknown tokens; None without a vocabulary.
    """
    table = layer.lookup_table
    return table.export() if int(table.size()) else None
