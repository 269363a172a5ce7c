# SPDX-License-Identifier: Apache-2.0
"""What a model was compiled with, for its copy."""

import typing

from tf_ext._keras import keras

# Those that depend on what a model consists of.
_OWN = ("optimizer", "jit_compile")


def compile_options(owner: str, model: keras.Model) -> dict[str, typing.Any]:
    """New objects of what a model was compiled with, but for the optimizer.

    Args:
      owner: string, the function that was given the model, for errors.
      model: keras.Model that has been compiled.

    Raises:
      ValueError: Keras cannot copy a loss or metric; the sentence names it.
    """
    options = {}
    for name, value in (model.get_compile_config() or {}).items():
        if name in _OWN or value is None:
            continue
        try:
            options[name] = keras.utils.deserialize_keras_object({name: value})[
                name
            ]
        except Exception as error:
            raise ValueError(
                f"Argument `model` of {owner} must be compiled with what Keras "
                "can save and load: decorate your own functions and classes "
                "with keras.utils.register_keras_serializable. Received: "
                f"model {model.name!r} with {name}={value!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return options


def dense_copy(
    optimizer: keras.optimizers.Optimizer,
) -> keras.optimizers.Optimizer:
    """A new optimizer of the same configuration."""
    return type(optimizer).from_config(optimizer.get_config())
