# SPDX-License-Identifier: Apache-2.0
"""Layers that would not load what a file of Keras holds of them."""

from tf_ext._compat.calls import keras_file_being_loaded
from tf_ext._keras import IS_KERAS_3, keras


def skipped_layers(checked):
    """The layers without variables, of which the file being loaded has some.

    Keras 3 retries a layer that fails to load under its other paths in the
    model. There the file has nothing, which suits a layer that is not built: it
    keeps the random values that it gets when it is called. tf_keras raises, but
    does not say what to do.

    Layers with a `load_own_variables` of their own may build themselves.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      checked: set of the files that have no such layers, where this one is
        looked up and added.

    Returns:
      List of layers.
    """
    loading = keras_file_being_loaded()
    if loading is None or loading[1] in checked:
        return []
    root, store, functions = loading
    found = [
        layer
        for path, layer in _layers_in(root, functions)
        if _loads_as_keras_does(layer)
        and not _own_variables(layer)
        and _has_variables(store, path)
    ]
    if not found:
        checked.add(store)
    return found


def _loads_as_keras_does(layer):
    module = type(layer).load_own_variables.__module__
    return module.startswith(("keras.", "tf_keras."))


def _own_variables(layer):
    if IS_KERAS_3:
        return layer._trainable_variables + layer._non_trainable_variables
    return layer._trainable_weights + layer._non_trainable_weights


def _has_variables(store, path):
    before = getattr(store, "_h5_entry_path", None)
    try:
        return len(store.get(path).keys()) > 0
    finally:
        # Keras 3's HDF5 files are the same object for all paths.
        if before is not None:
            store.get(before)


def _layers_in(root, functions):
    """(path in the file, layer) of a model, as Keras names and orders them."""
    walk = functions["_walk_saveable" if IS_KERAS_3 else "_walk_trackable"]
    naming = functions["naming" if IS_KERAS_3 else "generic_utils"]
    seen = {}  # They stay alive: another list might get the id of one.

    def visit(value, path):
        if id(value) in seen:
            return
        if isinstance(value, keras.layers.Layer):
            seen[id(value)] = value
            yield path, value
            for name, child in walk(value):
                yield from visit(child, f"{path}/{name}" if path else name)
        elif isinstance(value, (list, dict, tuple, set)):
            seen[id(value)] = value
            used = {}
            children = value.values() if isinstance(value, dict) else value
            for child in list(children):
                if isinstance(child, keras.layers.Layer):
                    if not IS_KERAS_3 and id(child) in seen:
                        continue  # It has no number.
                    name = naming.to_snake_case(type(child).__name__)
                elif IS_KERAS_3 and isinstance(child, (list, dict, tuple)):
                    name = "container"  # tf_keras leaves them out.
                else:
                    continue
                count = used[name] = used.get(name, -1) + 1
                if count:
                    name = f"{name}_{count}"
                yield from visit(child, f"{path}/{name}")

    yield from visit(root, "")
