# SPDX-License-Identifier: Apache-2.0
"""Training on files with malformed records, in any regime."""

import contextlib
import tempfile

import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column
from oracles import readable_records

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.epochs import epochs_of
from tf_ext.feature_column.hashed_features import KEY
from tf_ext.training.fit_arguments import makes_dataset

# Of each file, of which each tenth is malformed. The two have other kinds.
_RECORDS, _EVERY, _FILES = 160, 10, 2
# No multiple of it is well-formed in a file.
_BATCH_SIZE = 32
EPOCHS = 2


def write(format):
    """Writes the files into the working directory, and says what is in them.

    Returns:
      `{file: (numbers, counts)}` as of `readable_records.write_broken`.
    """
    written = {}
    for index in range(_FILES):
        file = f"{format}-{index}"
        written[file] = readable_records.write_broken(
            file, format, _RECORDS, _EVERY, first=index * _RECORDS
        )
    return written


def model():
    """A model whose rows count how often records were trained on."""
    table = tf_ext.SparseTable(
        "numbers", 1, tf_ext.optimizers.SparseSGD(), statistics=["show"]
    )
    inputs = {"number": keras.Input((), dtype="int64", name="number")}
    rows = tf_ext.layers.EmbeddingFeatures([id_column("number")], table)
    made = tf_ext.Model(inputs, rows(inputs))
    made.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return made


def read(format, shard=None, hashed_for=None):
    """`(dataset, errors)` of the files.

    Args:
      format: string.
      shard: as of `tf_ext.data.read`.
      hashed_for: Model, for whose layers features are hashed where they are
        parsed; or None.
    """
    columns = None
    if hashed_for is not None:
        columns = [one for one in hashed_for.layers if hasattr(one, "columns")]
    errors = tf_ext.data.ReadErrors()
    data = tf_ext.data.read(
        [f"{format}-{index}" for index in range(_FILES)],
        readable_records.SCHEMA,
        format,
        batch_size=_BATCH_SIZE,
        shuffle=_RECORDS,
        shard=shard,
        columns=columns,
        max_errors=2 / _EVERY,
        errors=errors,
    )
    key = "number" if columns is None else KEY
    data = data.map(lambda x, y: ({key: x[key]}, y[:, tf.newaxis]))
    return data, errors


def fit(made, data, errors):
    """Trains; returns what the errors and the logs of `fit` say."""
    logs = tf_ext.callbacks.ReadErrorLogs(errors)
    [epoch] = epochs_of(data(None) if makes_dataset(data) else data)
    told = []
    tell = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: told.append(epoch.number)
    )
    callbacks = [logs, tell]
    history = made.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    history = history.history
    return {
        # Which the order of shuffled files depends on.
        "epochs": [*dict.fromkeys(told), epoch.number],
        "state": errors.state(),
        "by_file": logs.by_file,
        "records": history["read_records"],
        "errors": history["read_errors"],
    }


def trained(worker):
    """Each format, read as a whole by each worker, and hashed by file."""
    with worker.strategy.scope():
        made = model()
    results = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):
        for format in readable_records.FORMATS:
            written = write(format)
            whole = fit(made, *read(format))
            shard = (worker.rank, worker.size)
            data, errors = read(format, shard, hashed_for=made)
            # Its options leave each worker what it reads, also without one.
            given = (lambda _, data=data: data) if IS_KERAS_3 else data
            by_file = fit(made, given, errors)
            results[format] = written, whole, by_file, export(made.tables[0])
            made.tables[0].clear()
    return results


def check(test, written, shown, times):
    """Asserts that each well-formed record was trained on so often.

    Args:
      test: TestCase.
      written: as of `write`.
      shown: dict, how often each record was, as of `export`.
      times: int.
    """
    numbers = [n for some, _ in written.values() for n in some]
    test.assertLen(numbers, _FILES * (_RECORDS - _RECORDS // _EVERY))
    counts = {number: float(times) for number in numbers}
    test.assertEqual({n: float(c[0]) for n, c in shown.items()}, counts)


def check_counts(test, written, found, files=range(_FILES)):
    """Asserts that malformed records are counted exactly, and once.

    Args:
      test: TestCase.
      written: as of `write`.
      found: as of `fit`.
      files: indices of those that this process has read.
    """
    counts = {file: reasons for file, (_, reasons) in written.items()}
    test.assertEqual(found["by_file"], counts)
    test.assertEqual(found["epochs"], [*range(EPOCHS), 0])
    test.assertEqual(found["records"], [_FILES * _RECORDS] * EPOCHS)
    malformed = _FILES * _RECORDS // _EVERY
    test.assertEqual(found["errors"], [malformed] * EPOCHS)
    own = [file for i, file in enumerate(written) if i in files]
    test.assertEqual(
        found["state"],
        {f: {"records": _RECORDS, "reasons": counts[f]} for f in own},
    )
