# SPDX-License-Identifier: Apache-2.0
"""The files of a model's dense part, with the weights of any point."""

import pathlib
import tempfile
import typing
from collections.abc import Mapping

import numpy.typing as npt
import tensorflow as tf

from tf_ext._keras import keras, tf_variable
from tf_ext.recovery.points import model_variables
from tf_ext.serving.dense_part import DensePart

_VARIABLES = "variables/variables"
# Where the variables of a DensePart are in its checkpoint.
_KEY = "dense_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"


class DenseFiles:
    """A SavedModel of a dense part, of which only weights change.

    It is traced and saved once. The files of a point differ in the values of
    variables alone.

    Args:
      part: DensePart.
      model: keras.Model of which it is a part.

    Raises:
      ValueError: if it reads variables that points do not have.
    """

    def __init__(self, part: DensePart, model: keras.Model) -> None:
        names = {
            id(tf_variable(variable)): name
            for name, variable in model_variables(model).items()
        }
        # From the key of a value in the checkpoint to its name in points.
        self._names: dict[str, str] = {}
        for index, variable in enumerate(part.function.variables):
            if id(variable) not in names:
                raise ValueError(
                    f"Model {model.name!r} cannot be published: its outputs "
                    f"depend on the variable {variable.name!r}, which is not "
                    "among its `variables`, and so not in recovery points. "
                    "Make the model outside of the scope of a strategy, and "
                    "each variable in a layer of it."
                )
            self._names[_KEY.format(index)] = names[id(variable)]
        self._files: dict[str, bytes] = {}
        self._values: dict[str, tf.Tensor] = {}
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(part.module, folder, signatures=part.function)
            root = pathlib.Path(folder)
            reader = tf.train.load_checkpoint(str(root / _VARIABLES))
            for key in sorted(reader.get_variable_to_shape_map()):
                self._values[key] = reader.get_tensor(key)
            for path in root.rglob("*"):
                name = path.relative_to(root).as_posix()
                if path.is_file() and not name.startswith(_VARIABLES):
                    self._files[name] = path.read_bytes()

    def values_of(
        self, arrays: Mapping[str, npt.NDArray[typing.Any]]
    ) -> list[npt.NDArray[typing.Any]]:
        """The values of a point for each variable of the dense part.

        Args:
          arrays: as of `at`.
        """
        return [arrays[name] for name in self._names.values()]

    def at(
        self, arrays: Mapping[str, npt.NDArray[typing.Any]]
    ) -> dict[str, bytes]:
        """The files with the weights of a point.

        Args:
          arrays: dict from names in points to values.

        Returns:
          dict from names to contents.
        """
        values = self._values | {
            key: arrays[name] for key, name in self._names.items()
        }
        files = dict(self._files)
        with (
            tempfile.TemporaryDirectory() as folder,
            tf.device("/CPU:0"),
        ):
            root = pathlib.Path(folder)
            (root / _VARIABLES).parent.mkdir()
            tf.raw_ops.SaveV2(
                prefix=str(root / _VARIABLES),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=[tf.constant(one) for one in values.values()],
            )
            for path in root.rglob("*"):
                if path.is_file():
                    name = path.relative_to(root).as_posix()
                    files[name] = path.read_bytes()
        return files
