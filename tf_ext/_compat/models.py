# SPDX-License-Identifier: Apache-2.0
"""What Keras's models do not make public."""

import contextlib
import re
import typing

import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras

# Keras's functional model, by public names. (tf_keras cannot make one without
# fixing TensorFlow's devices and threads.) Keras 3.10 to 3.13 refuse one
# without a layer. Seen in: Keras 3.9 to 3.15, tf_keras 2.18 to 2.21.
if IS_KERAS_3:
    _input = keras.Input((1,), name="tf_ext")
    _output = keras.layers.Identity(name="tf_ext_same")(_input)
    Functional = type(keras.Model(_input, _output))
else:
    Functional = keras.Sequential.__base__


def layers_of(model):
    """All layers of a model, including nested ones.

    A model's `layers` holds the outermost layers only.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return list(model._flatten_layers())


@contextlib.contextmanager
def counting_weights(model, weights):
    """The context of `summary`, which counts these as trainable parameters.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      model: keras.Model.
      weights: list of variables.
    """
    # Not by `setattr`, which would make them weights of the model.
    name = "_collected_trainable_weights"
    before = model.__dict__.get(name)
    model.__dict__[name] = weights
    try:
        yield
    finally:
        del model.__dict__[name]
        if before is not None:
            model.__dict__[name] = before


def sublayers(layer):
    """The layers of a layer, without those of these.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return list(layer._flatten_layers(recursive=False, include_self=False))


class SavedAsCalled:
    """A base class of models that are saved with the inputs of their calls.

    Keras 3 traces a subclassed model on floats for a SavedModel, whatever it
    was called with. A derived class defines `_saved_inputs`, which returns the
    structure of `tf.TensorSpec` of its inputs, or None for no function.

    Seen in: Keras 3.15.
    """

    if IS_KERAS_3:

        @property
        def _default_save_signature(self):
            if isinstance(self, Functional):
                return super()._default_save_signature
            inputs = self._saved_inputs()
            if inputs is None:
                return None
            return tf.function(lambda one: self(one), input_signature=[inputs])


def is_compiled(model):
    """Whether `compile` was called; tf_keras has no public attribute.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return model.compiled if IS_KERAS_3 else model._is_compiled


def steps_per_execution(model):
    """What a compiled model was given; 1 for "auto".

    tf_keras stores it as a variable.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    steps = model.steps_per_execution
    return steps if isinstance(steps, int) else int(tf.convert_to_tensor(steps))


def start_of_training(model, initial_epoch, steps):
    """The first epoch and step, after BackupAndRestore has restored them.

    The callback only tells Keras's own `fit` where training continues.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      model: keras.Model whose callbacks have been told that training begins.
      initial_epoch: int, what `fit` was given.
      steps: int or None, those of an epoch.

    Returns:
      (int, int).
    """
    if IS_KERAS_3:
        return model._initial_epoch or initial_epoch, 0
    return model._maybe_load_initial_counters_from_ckpt(steps, initial_epoch)


def build_for(model, batch):
    """Builds a Keras 3 model, its metrics and loss for a batch.

    Calling it would build the layers only.

    Seen in: Keras 3.15.
    """
    model._maybe_symbolic_build(data_batch=batch)


def losses_are_mixed(losses):
    """Whether losses of layers are those of several replicas.

    Layers of Keras 3 have one list of them for the replicas of a process, which
    take turns where they wait for each other. Their operations have names that
    begin with "replica_1", "replica_2" and so on, except for the first one's.

    Seen in: Keras 3.15, TensorFlow 2.18 to 2.21.

    Args:
      losses: list of tensors, as a replica gets them.
    """
    context = tf.distribute.get_replica_context()
    if (
        not IS_KERAS_3
        or tf.executing_eagerly()
        or context is None
        or context.num_replicas_in_sync == 1
        or len(context.strategy.extended.worker_devices) == 1
    ):
        return False
    own = context.replica_id_in_sync_group
    if tf.is_tensor(own):
        own = int(tf.get_static_value(own))
    for loss in losses:
        found = re.match(r"replica_(\d+)", loss.op.name)
        if int(found[1] if found else 0) != own:
            return True
    return False


def loss_metrics_of_outputs(model):
    """The metrics of single outputs' losses that count batches, not samples.

    Those of tf_keras count samples.

    Seen in: Keras 3.15.

    Args:
      model: keras.Model.
    """
    loss = getattr(model, "_compile_loss", None)
    return list(loss.metrics) if IS_KERAS_3 and loss is not None else []


def is_functional_call(args, kwargs):
    """Whether arguments of a model are inputs and outputs, as Keras tells.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      args: list, of `keras.Model.__init__`.
      kwargs: dict, of the same call.
    """
    return (
        len(args) == 2
        or (len(args) == 1 and "outputs" in kwargs)
        or ("inputs" in kwargs and "outputs" in kwargs)
    )


def without_input_casts(model, init, args, kwargs):
    """Initializes a model that does not cast its inputs to its compute dtype.

    The argument `autocast` of Keras 3 would also leave out its variables.
    `model.tf_ext_autocast` tells what the caller asked for.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      model: keras.Model.
      init: function, the `__init__` of its Keras class, bound to it.
      args: list, of the call of `init`.
      kwargs: dict, of the same call.
    """
    init(*args, **kwargs)
    if IS_KERAS_3:
        model._convert_input_args = False
        model._allow_non_tensor_positional_args = True
    else:
        # Not an argument: `init` may be that of another base, without it.
        model._autocast = False
    model.tf_ext_autocast = kwargs.get("autocast", True)


def replace_base(cls, base, other):
    """Gives a class and its bases another base class, as Keras does.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      cls: a subclass of `base`, whose bases are changed.
      base: class, which remains as it is.
      other: class, what stands in its place.

    Returns:
      The class that stands in the place of `cls`.
    """
    if cls is base:
        return other
    if issubclass(cls, base):
        cls.__bases__ = tuple(
            replace_base(b, base, other) for b in cls.__bases__
        )
    return cls


def readers_of(model, symbolic):
    """The layers and operations that take an input of a functional model.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      model: functional keras.Model.
      symbolic: what `keras.Input` returned.

    Returns:
      List of layers of the model; in Keras 3, of operations.
    """
    return [
        layer
        for layer in (model.operations if IS_KERAS_3 else model.layers)
        if any(
            given is symbolic
            for node in layer._inbound_nodes
            for given in (
                node.input_tensors if IS_KERAS_3 else node.keras_inputs
            )
        )
    ]


def keys_given(layer, symbolic):
    """Under which keys a layer takes an input of a functional model.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      layer: a layer or operation, one of `readers_of`.
      symbolic: what `keras.Input` returned.

    Returns:
      Set of the keys in the dicts that it is called with; empty if it takes the
      input in any other way.
    """
    keys = set()
    for node in layer._inbound_nodes:
        tensors = node.input_tensors if IS_KERAS_3 else node.keras_inputs
        count = sum(one is symbolic for one in tensors)
        if not count:
            continue
        if IS_KERAS_3:
            args, kwargs = node.arguments.args, node.arguments.kwargs
        else:
            args, kwargs = node.call_args, node.call_kwargs
        given = [*args, *kwargs.values()][0]
        if not isinstance(given, dict):
            return frozenset()
        here = [key for key, one in given.items() if one is symbolic]
        if len(here) != count:
            return frozenset()
        keys.update(here)
    return frozenset(keys)


def inputs_of_only_call(model, layer):
    """What a layer of a functional model is given, of the model's inputs.

    Seen in: Keras 3.15.

    Args:
      model: functional keras.Model.
      layer: one of its layers.

    Returns:
      The dict that it is called with; None if it is called several times, or
      with anything else than a dict of inputs of the model.
    """
    calls = [
        node.arguments
        for nodes in model._nodes_by_depth.values()
        for node in nodes
        if node.operation is layer
    ]
    inputs = {id(tensor) for tensor in model.inputs}
    if len(calls) != 1 or not {id(t) for t in calls[0].keras_tensors} <= inputs:
        return None
    given = [*calls[0].args, *calls[0].kwargs.values()][0]
    return dict(given) if isinstance(given, dict) else None


# A subclass calls what the Keras class after it has.
_Base: typing.Any = object


class BuiltForOneReplica(_Base):
    """A base before `keras.Model` that builds for one replica's batch.

    Under a strategy Keras 3 builds a model for the mean of the replicas'
    batches: a mean of ids is not an id, and strings have no mean.

    A class that derives from this defines `_strategy_of_replicas()`, the
    strategy of several replicas that its model has, or None.

    Seen in: Keras 3.9 to 3.15.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self._strategy_of_replicas()
        if iterator is not None and strategy is not None:
            local = strategy.experimental_local_results
            # After one step number (Keras 3.9) or two.
            *_, batches = next(iter(iterator))
            data_batch = tf.nest.map_structure(
                lambda value: local(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)
