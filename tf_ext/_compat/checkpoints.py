# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's savers ask of objects without a public API."""

import functools

import tensorflow as tf

from tf_ext._compat.calls import local_in
from tf_ext._keras import keras

_RESTORE = "tensorflow.python.checkpoint.restore"


def tensors_being_restored():
    """The tensors of the calling object in the checkpoint being restored.

    The later part of a restore may run in a graph, where values cannot be
    compared, and the object has to say how many tensors it takes before it has
    seen any.

    Seen in: TensorFlow 2.18 to 2.21.

    Returns:
      `{name: function that reads it}`; None outside of TensorFlow's restore.
    """
    position = local_in(_RESTORE, "self", "object_proto")
    if position is None:
        return None
    reader = tf.train.load_checkpoint(position.checkpoint.save_path_string)
    return {
        attribute.name: functools.partial(
            reader.get_tensor, attribute.checkpoint_key
        )
        for attribute in position.object_proto.attributes
    }


def _position():
    """Where TensorFlow's restore is in the checkpoint; None outside of it."""
    return local_in(_RESTORE, "checkpoint_position")


def children_being_restored():
    """The names of what an object has in the checkpoint being restored.

    Seen in: TensorFlow 2.18 to 2.21.

    Returns:
      Set of strings; empty outside of TensorFlow's restore.
    """
    position = _position()
    children = [] if position is None else position.object_proto.children
    return {child.local_name for child in children}


def unbuilt_layers_being_restored(model):
    """The layers that are not built, of variables that are to be restored.

    In Keras 3, TensorFlow cannot restore variables that are made later.

    Seen in: TensorFlow 2.18 to 2.21, Keras 3.15.

    Args:
      model: keras.Model, which is being restored.

    Returns:
      List of layers of the model.
    """
    position = _position()
    if position is None:
        return []
    nodes = position.checkpoint.object_graph_proto.nodes
    found = []
    seen = {}  # They stay alive: another one might get the id of one.

    def visit(trackable, node):
        if id(trackable) in seen or isinstance(trackable, keras.Optimizer):
            return
        seen[id(trackable)] = trackable
        children = tf.train.TrackableView.children(trackable)
        is_unbuilt = (
            trackable is not model
            and isinstance(trackable, keras.layers.Layer)
            and not trackable.built
        )
        for edge in node.children:
            saved = nodes[edge.node_id]
            if edge.local_name in children:
                visit(children[edge.local_name], saved)
            elif is_unbuilt and saved.attributes:
                found.append(trackable)
                is_unbuilt = False

    visit(model, position.object_proto)
    return found


class SavedResource(tf.saved_model.experimental.TrackableResource):
    """A resource whose contents checkpoints and SavedModels hold.

    A class that derives from this defines `_saved_tensors()`, which returns
    `{name: tensor}`, `_restore_tensors(tensors)`, which returns an operation,
    and `_check_exportable()`, which raises if no SavedModel can hold it.

    TensorFlow's public class only has hooks that make the resource.

    Seen in: TensorFlow 2.18 to 2.21.
    """

    def _serialize_to_tensors(self):
        return self._saved_tensors()

    def _restore_from_tensors(self, restored_tensors):
        return self._restore_tensors(restored_tensors)

    def _copy_trackable_to_cpu(self, object_map):
        """Called where an asynchronous checkpoint copies what it saves.

        It only warns of what has no copy, and reads that later on.
        """
        raise ValueError(
            "Tables cannot be saved in an asynchronous checkpoint, whose rows "
            "would be those of later steps. Leave out "
            "experimental_enable_async_checkpoint, or save with "
            "tf_ext.callbacks.TableSnapshot."
        )

    def _export_to_saved_model_graph(self, *args, **kwargs):
        self._check_exportable()
        return super()._export_to_saved_model_graph(*args, **kwargs)


class OwnChildren:
    """A base before a Keras class that defines what checkpoints hold.

    A class that derives from this defines `_saved_children(children, kind)`,
    which returns what is saved, `{name: object}`, given what Keras would save;
    the kind is "checkpoint" or "savedmodel". `_own_child(name)` finds what
    Keras does not know when a checkpoint is restored.

    Keras 3 hides lists and dicts of layers from `tf.train.Checkpoint` and from
    SavedModels, which would omit them silently: see `hidden_children`.

    Seen in: TensorFlow 2.18 to 2.21, Keras 3.15, tf_keras 2.18 to 2.21.
    """

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = self._children_of_keras(save_type, **kwargs)
        return self._saved_children(children, save_type)

    def _children_of_keras(self, save_type="checkpoint", **kwargs):
        return super()._trackable_children(save_type, **kwargs)

    def _lookup_dependency(self, name, cached_dependencies=None):
        own = self._own_child(name)
        if own is not None:
            return own
        return super()._lookup_dependency(name, cached_dependencies)

    def _own_child(self, name):
        return None


def hidden_children(model):
    """The layers and variables that Keras 3 hides from a model's checkpoint.

    What a layer has in a list, dict or tuple is no child of it. (The variables
    that an optimizer trains are its children, but only once it is built.)

    Seen in: Keras 3.15.

    Args:
      model: keras.Model.

    Returns:
      `{name: layer or variable}`: the outermost ones, by their place.
    """
    hidden = {}
    seen = {}  # They stay alive: another one might get the id of one.

    def visit(place, trackable):
        if id(trackable) in seen or isinstance(trackable, keras.Optimizer):
            return
        seen[id(trackable)] = trackable
        if isinstance(trackable, OwnChildren):
            children = trackable._children_of_keras()
        else:
            children = tf.train.TrackableView.children(trackable)
        for name, child in children.items():
            visit(f"{place}.{name}", child)
        if isinstance(trackable, keras.layers.Layer):
            layers.append((place, trackable))

    layers = [("", model)]
    visit("", model)
    for place, layer in layers:  # Which grows.
        variables = layer._trainable_variables + layer._non_trainable_variables
        for kind, own in (("layers", layer._layers), ("variables", variables)):
            for index, one in enumerate(own):
                if id(one) not in seen:
                    hidden[f"{place}.{kind}.{index}"] = one
                    visit(f"{place}.{kind}.{index}", one)
    return hidden
