# SPDX-License-Identifier: Apache-2.0
"""Early stopping that restores rows as well."""

import os
import tempfile
import typing

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.tables.find import tables_of
from tf_ext.tables.shadow import holds_values


class EarlyStopping(keras.callbacks.EarlyStopping):
    """`keras.callbacks.EarlyStopping` that includes the rows of tables.

    With `restore_best_weights=True` the rows and slots of the best epoch so
    far are kept in a checkpoint in a temporary directory, which needs as much
    disk as the tables need memory. Recovery points of `TableSnapshot` have the
    rows of the last steps, not the restored ones: save or export the model
    after `fit`.

    Args:
      *args: those of `keras.callbacks.EarlyStopping`.
      **kwargs: those of `keras.callbacks.EarlyStopping`.

    Example:
    >>> import tf_ext
    >>> stop = tf_ext.callbacks.EarlyStopping(
    ...     monitor="val_auc", mode="max", patience=1,
    ...     restore_best_weights=True)
    >>> stop.patience
    1
    """

    restores_rows = True

    def set_model(self, model: keras.Model) -> None:
        """Called by Keras, before training."""
        super().set_model(_WithRows(model))

    def on_train_end(self, logs: dict[str, typing.Any] | None = None) -> None:
        """Restores the best weights and rows, if asked to."""
        super().on_train_end(logs)
        self.best_weights = None


class _WithRows:
    """A model whose `get_weights` and `set_weights` include rows."""

    def __init__(self, model: keras.Model) -> None:
        self.__dict__["_model"] = model

    def __getattr__(self, name: str) -> typing.Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: typing.Any) -> None:
        setattr(self._model, name, value)

    def _variables(self) -> list[typing.Any]:
        return [v for v in self._model.weights if holds_values(v)]

    def _checkpoint(self) -> typing.Any:
        rows = {
            f"table{index}": table.rows
            for index, table in enumerate(tables_of(self._model))
        }
        return tf.train.Checkpoint(**rows)

    def get_weights(self) -> typing.Any:
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_early_stopping_")
        path = self._checkpoint().write(os.path.join(directory.name, "rows"))
        return [v.numpy() for v in self._variables()], path, directory

    def set_weights(self, weights: typing.Any) -> None:
        values, path, _ = weights
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        self._checkpoint().read(path).assert_consumed()
