# SPDX-License-Identifier: Apache-2.0
"""How late training on a stream is, in the logs of `fit`."""

import typing

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.data.progress import Lag, StreamProgress
from tf_ext.regimes import regime_of_model


class StreamLogs(keras.callbacks.Callback):
    r"""Puts the records and the lag of a stream into the logs of each epoch.

    The logs have `stream_records`, the records trained on in the epoch;
    `stream_lag`, the seconds from the oldest event of a batch to the end of its
    step, a mean over batches; and `stream_max_lag`, the largest. The lags are
    absent if no record had a time. The history has them, as do callbacks that
    follow in the list, such as `keras.callbacks.TensorBoard`.

    Under MultiWorkerMirroredStrategy every worker needs the callback; the logs
    are of all workers.

    Args:
      progress: the tf_ext.data.StreamProgress that was given to `stream`.

    Example:
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "part-0").write_text("1,2\n2,4\n3,6\n")
    >>> fields = [tf_ext.data.Field(name, "float32") for name in ("x", "y")]
    >>> progress = tf_ext.data.StreamProgress()
    >>> data = tf_ext.data.stream(
    ...     tf_ext.data.DirectorySource(folder),
    ...     tf_ext.data.Schema(fields, label="y"), batch_size=2, follow=False,
    ...     progress=progress)
    >>> inputs = {"x": keras.Input([], name="x")}
    >>> x = keras.layers.Reshape([1])(inputs["x"])
    >>> model = tf_ext.Model(inputs, keras.layers.Dense(1)(x))
    >>> model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> logs = tf_ext.callbacks.StreamLogs(progress)
    >>> history = model.fit(data, verbose=0, callbacks=[logs])
    >>> history.history["stream_records"]
    [3]
    >>> history.history["stream_lag"][0] > 0
    True
    """

    def __init__(self, progress: StreamProgress) -> None:
        super().__init__()
        if not isinstance(progress, StreamProgress):
            allowed = "a tf_ext.data.StreamProgress"
            refuse("StreamLogs", "progress", allowed, progress)
        self._progress = progress

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        """Called by Keras."""
        regime = regime_of_model(self.model)
        found = [
            Lag(*one)
            for one in regime.processes.gather_json(list(self._progress.lag()))
        ]
        if logs is None:
            return
        logs["stream_records"] = sum(lag.records for lag in found)
        if batches := sum(lag.batches for lag in found):
            logs["stream_lag"] = sum(lag.total for lag in found) / batches
            logs["stream_max_lag"] = max(lag.most for lag in found)
