# SPDX-License-Identifier: Apache-2.0
"""Counts of malformed records in the logs of `fit`."""

import typing

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.data.errors import ReadErrors
from tf_ext.regimes import regime_of_model


class ReadErrorLogs(keras.callbacks.Callback):
    r"""Puts the counts of records that were read into the logs of each epoch.

    The logs have `read_records`, malformed ones included, and `read_errors`:
    the malformed ones. The history has them, as do callbacks that follow in the
    list, such as `keras.callbacks.TensorBoard`. Data are read ahead of
    training, so the counts may include records of the next epoch. A record
    counts once however many epochs read it.

    Under MultiWorkerMirroredStrategy every worker needs the callback; the
    counts are those of all files that any worker has read.

    Args:
      errors: the tf_ext.data.ReadErrors that was given to `read`.

    Attributes:
      by_file: dict, `{file: {reason: count}}` of all files with malformed
        records, as of the last epoch.

    Example:
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "data.tsv"
    >>> _ = file.write_text("1\t2\n2\tx\n3\t6\n")
    >>> fields = [tf_ext.data.Field(name, "float32") for name in ("x", "y")]
    >>> errors = tf_ext.data.ReadErrors()
    >>> data = tf_ext.data.read(file, tf_ext.data.Schema(fields, label="y"),
    ...     "tsv", batch_size=2, max_errors=0.5, errors=errors)
    >>> inputs = {"x": keras.Input([], name="x")}
    >>> x = keras.layers.Reshape([1])(inputs["x"])
    >>> model = tf_ext.Model(inputs, keras.layers.Dense(1)(x))
    >>> model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> logs = tf_ext.callbacks.ReadErrorLogs(errors)
    >>> history = model.fit(data, epochs=2, verbose=0, callbacks=[logs])
    >>> history.history["read_records"], history.history["read_errors"]
    ([3, 3], [1, 1])
    >>> list(logs.by_file.values())
    [{'bad number': 1}]
    """

    def __init__(self, errors: ReadErrors) -> None:
        super().__init__()
        if not isinstance(errors, ReadErrors):
            refuse("ReadErrorLogs", "errors", "tf_ext.data.ReadErrors", errors)
        self.by_file: dict[str, dict[str, int]] = {}
        self._errors = errors

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        regime = regime_of_model(self.model)
        files: dict[str, typing.Any] = {}
        for of_worker in regime.processes.gather_json(self._errors.state()):
            for file, found in of_worker.items():
                # Workers that have read the same files count the same records.
                known = files.get(file, found)
                files[file] = max(known, found, key=_records)
        reasons = {file: found["reasons"] for file, found in files.items()}
        self.by_file = {file: found for file, found in reasons.items() if found}
        if logs is not None:
            logs["read_records"] = sum(map(_records, files.values()))
            logs["read_errors"] = sum(
                sum(found.values()) for found in reasons.values()
            )


def _records(found: dict[str, typing.Any]) -> int:
    return found["records"]
