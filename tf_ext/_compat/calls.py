# SPDX-License-Identifier: Apache-2.0
"""What the call stack tells of Keras, which does not pass it on."""

import sys

# Functions of Keras that make layers of configurations.
_LAYER_MAKERS = frozenset(
    {
        "clone_model",
        "deserialize",
        "deserialize_keras_object",
        "from_config",
        "load_model",
        "model_from_config",
        "model_from_json",
    }
)
# Functions that call a model with tensors that Keras made up.
_BUILDERS_BY_SHAPES = frozenset({"_symbolic_build", "build_from_config"})
# Functions of tf_keras that write a SavedModel to continue training from.
_TRAINING_SAVERS = frozenset({"save", "save_model"})


def kept_while_layers_are_made(key):
    """A dict that lives as long as Keras's outermost call that makes layers.

    Keras gives each layer a copy of its configuration and does not say which
    layers are of one model. The stack frame of `load_model`, `clone_model` or a
    similar function ends with the model: a local name that the function does
    not use stays in the frame until the function returns.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21, Python 3.11 to 3.13.

    Args:
      key: string, which dict; a name that Keras does not use.

    Returns:
      The same dict throughout one such call; a new one outside of any.
    """
    frames = _frames_of_keras(_LAYER_MAKERS)
    return frames[-1].f_locals.setdefault(key, {}) if frames else {}


def is_building_by_shapes():
    """Whether Keras calls a model to build it, with tensors it made up.

    For a loaded model these are floats, as it knows the shapes of the inputs,
    but not their types; in `fit` under a strategy bags are dense.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return bool(_frames_of_keras(_BUILDERS_BY_SHAPES))


def is_saving_to_train_on():
    """Whether tf_keras writes a SavedModel that training can continue from.

    `tf.saved_model.save` and `export`, whose files only serve, ask layers what
    to save in the same way.

    Seen in: tf_keras 2.18 to 2.21; Keras 3.15 writes SavedModels by `export`
    alone.
    """
    return bool(_frames_of_keras(_TRAINING_SAVERS))


def keras_file_being_loaded():
    """What Keras loads variables into, and from where.

    An object is given its own variables only.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Returns:
      (the outermost object, the file, Keras's functions by name); None if
      mismatches are to be skipped, or outside of `load_model` and
      `load_weights`.
    """
    frames = _frames_of_keras({"_load_state"})
    if not frames or frames[-1].f_locals["skip_mismatch"]:
        return None
    found = frames[-1].f_locals
    root = found["saveable"] if "saveable" in found else found["trackable"]
    return root, found["weights_store"], frames[-1].f_globals


def model_in_fit():
    """The model whose Keras `fit` runs in this thread, or None.

    An optimizer does not know the model. But the code that acts for all
    replicas runs in the thread that called `fit`, on the stack of that call.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    frames = _frames_of_keras({"fit"})
    return frames[0].f_locals.get("self") if frames else None


def is_within(name):
    """Whether one of the callers is a function called `name`.

    `set_weights` of a model and of a layer, and `set_state_tree` of a model in
    Keras 3, assign one variable after the other and do not say who asked.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      name: string.
    """
    return any(frame.f_code.co_name == name for frame in _frames())


def caller_of_caller():
    """The name of the function that called the one that asks.

    Seen in: Python 3.11.
    """
    return sys._getframe(2).f_code.co_name


def local_in(module, name, attribute="__class__"):
    """The local variable of the innermost function of a module that has one.

    TensorFlow does not pass the position in a checkpoint on to the objects that
    it restores.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      module: string, the module's name.
      name: string, the variable's name, such as "self".
      attribute: string, what the object must have.

    Returns:
      The object, or None.
    """
    for frame in _frames():
        if frame.f_globals.get("__name__") == module:
            found = frame.f_locals.get(name)
            if found is not None and hasattr(found, attribute):
                return found
    return None


def _frames():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of_keras(names):
    """The running calls of some of Keras's functions, the innermost first."""
    return [
        frame
        for frame in _frames()
        if frame.f_code.co_name in names
        and frame.f_globals.get("__name__", "").startswith(
            ("keras.", "tf_keras.")
        )
    ]
