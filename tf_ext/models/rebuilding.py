# SPDX-License-Identifier: Apache-2.0
"""Builds a subclassed model that is being loaded.

Its first call is repeated. Then layers are built that a call does not reach,
because only `train_step` or `compute_loss` calls them: by the shapes that Keras
has recorded of each.
"""

import contextlib
import typing
from collections.abc import Iterator

from tf_ext._compat.models import sublayers
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.models.recorded_call import repeat_call

_CALL = "tf_ext_call"
_LAYERS = "tf_ext_layers"


def build_config_of(model: keras.Model) -> dict[str, typing.Any]:
    """What `rebuild` needs; nothing if the model has not been called.

    Args:
      model: tf_ext.Model that is not functional.

    Returns:
      Dict for JSON.
    """
    configs = {
        place: layer.get_build_config() for place, layer in _layers_in(model)
    }
    layers = {place: config for place, config in configs.items() if config}
    found: dict[str, typing.Any] = {_LAYERS: layers} if layers else {}
    call = getattr(model, "tf_ext_call", None)
    return found | ({} if call is None else {_CALL: call})


def rebuild(model: keras.Model, config: dict[str, typing.Any]) -> bool:
    """Makes the variables of a model.

    Args:
      model: tf_ext.Model that is not functional.
      config: dict, as of `build_config_of`.

    Returns:
      False if it is none, but that of a file of an earlier version.

    Raises:
      ValueError: the model cannot be called as the saved one was.
    """
    if not config.keys() & {_CALL, _LAYERS}:
        return False
    if _CALL in config:
        repeat_call(model, config[_CALL])
    configs = config.get(_LAYERS, {})
    for place, layer in _layers_in(model):
        if place in configs and not layer.built:
            # If it fails, the file is refused: its variables have no place.
            with contextlib.suppress(Exception):
                layer.build_from_config(configs[place])
    # As Keras 3 does: the slots of the optimizer are only made then.
    if not IS_KERAS_3 and type(model).build is keras.Model.build:
        model.built = True
    return True


def _layers_in(
    model: keras.Model,
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """The layers that models of tf_ext do not build themselves."""
    seen: set[int] = set()

    def visit(
        layer: keras.layers.Layer, place: str
    ) -> Iterator[tuple[str, keras.layers.Layer]]:
        for index, one in enumerate(sublayers(layer)):
            if id(one) not in seen:
                seen.add(id(one))
                yield f"{place}{index}", one
                if not hasattr(one, "tf_ext_call"):
                    yield from visit(one, f"{place}{index}.")

    return visit(model, "")
