# SPDX-License-Identifier: Apache-2.0
"""A chief that is killed: exactly_once_program.py FOLDER DATA EXECUTION.

It trains on IDS ids again and again, each time a new model, and appends a line
`[round, counts that are not 1, ids, iterations, steps]` to FOLDER/rounds. It
begins with the round whose line is missing. FOLDER/steps has the round, the
steps of it that have ended, and the time of the last.

DATA: "chief" reads them, "workers" do, or they come from a "stream". EXECUTION:
steps per execution, with a sign: steps overlap.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from models import id_counting_models as models
from models.model_building import number

import tf_ext
from tf_ext._keras import keras

IDS, BATCH, FILES = 6000, 20, 4


class Tell(keras.callbacks.Callback):
    """Writes down how far training is."""

    def __init__(self, file, round_number):
        super().__init__()
        self._file, self._round = file, round_number
        self._made = 0

    def on_train_batch_end(self, batch, logs=None):
        self._made += 1
        text = json.dumps([self._round, self._made, time.time()])
        new = f"{self._file}.new"
        pathlib.Path(new).write_text(text)
        os.replace(new, self._file)


def _samples(ids):
    return tf.data.Dataset.from_tensor_slices(
        ({"user": ids}, np.zeros([len(ids), 1], np.float32))
    )


def _share(context):
    ids = np.arange(IDS)[
        context.input_pipeline_id :: context.num_input_pipelines
    ]
    return _samples(ids).shuffle(500).batch(BATCH)


def _data(kind, folder):
    if kind == "workers":
        return _share
    if kind == "chief":
        return _samples(np.arange(IDS)).batch(BATCH)
    events = folder / "events"
    for index in range(FILES):
        part = events / str(index)
        if not part.exists():
            part.mkdir(parents=True)
            ids = np.arange(IDS)[index::FILES]
            (part / "part").write_text("".join(f"{n},1\n" for n in ids))
    return tf_ext.data.stream(
        tf_ext.data.DirectorySource(events),
        models.SCHEMA,
        batch_size=BATCH,
        follow=False,
    )


def main(folder, kind, execution):
    folder, execution = pathlib.Path(folder), int(execution)
    rounds = folder / "rounds"

    def train(strategy):
        while True:
            done = (
                len(rounds.read_text().splitlines()) if rounds.exists() else 0
            )
            with strategy.scope():
                model, table = models.counting_model(
                    steps_per_execution=abs(execution)
                )
            model.fit(
                _data(kind, folder),
                verbose=0,
                overlap_steps=execution < 0,
                callbacks=[
                    tf_ext.callbacks.TableSnapshot(
                        folder / f"points-{done}", steps=25, incremental=True
                    ),
                    Tell(folder / "steps", done),
                ],
            )
            counts = models.counts(table)
            wrong = {i: n for i, n in counts.items() if n != 1}
            line = [
                done,
                wrong,
                len(counts),
                int(number(model.optimizer.iterations)),
            ]
            with rounds.open("a") as file:
                file.write(json.dumps(line) + "\n")

    tf_ext.distribute.run_with_recovery(train, max_restarts=1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
