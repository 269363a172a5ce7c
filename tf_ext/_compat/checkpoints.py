"""What TensorFlow's savers ask of objects without a public API."""

import functools

import tensorflow as tf

from tf_ext._compat.calls import self_in


def tensors_being_restored():
    """The tensors of the calling object in the checkpoint being restored.

    The later part of a restore may run in a graph, where values cannot be
    compared, and the object has to say how many tensors it takes before it has
    seen any.

    Seen in: TensorFlow 2.21.

    Returns:
      `{name: function that reads it}`; None outside of TensorFlow's restore.
    """
    position = self_in("tensorflow.python.checkpoint.restore", "object_proto")
    if position is None:
        return None
    reader = tf.train.load_checkpoint(position.checkpoint.save_path_string)
    return {
        attribute.name: functools.partial(
            reader.get_tensor, attribute.checkpoint_key
        )
        for attribute in position.object_proto.attributes
    }


class SavedResource(tf.saved_model.experimental.TrackableResource):
    """A resource whose contents checkpoints and SavedModels hold.

    A class that derives from this defines `_saved_tensors()`, which returns
    `{name: tensor}`, `_restore_tensors(tensors)`, which returns an operation,
    and `_check_exportable()`, which raises if no SavedModel can hold it.

    TensorFlow's public class only has hooks that make the resource.

    Seen in: TensorFlow 2.21.
    """

    def _serialize_to_tensors(self):
        return self._saved_tensors()

    def _restore_from_tensors(self, restored_tensors):
        return self._restore_tensors(restored_tensors)

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
    SavedModels, which would omit them silently.

    Seen in: TensorFlow 2.21, Keras 3.15, tf_keras 2.21.
    """

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        return self._saved_children(children, save_type)

    def _lookup_dependency(self, name, cached_dependencies=None):
        own = self._own_child(name)
        if own is not None:
            return own
        return super()._lookup_dependency(name, cached_dependencies)

    def _own_child(self, name):
        return None
