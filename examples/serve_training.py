# SPDX-License-Identifier: Apache-2.0
"""Trains, and publishes what was learnt while it goes on; see serve.py.

Every so many steps, and at the end, it writes, under the number of the step:
what the model answers for some samples, a line of `answers.jsonl`; an export
that is served without tf_ext, `versions/STEP`; and a recovery point, in
`points`. Points become versions of rows in `store`.
"""

import argparse
import importlib.util
import json
import pathlib

import wide_deep
from serve_data import SAMPLES, to_features, to_lists
from tensorflow import keras

import tf_ext


class Publisher(keras.callbacks.Callback):
    """Exports the model, and writes down what it answers."""

    def __init__(self, folder, samples, steps):
        super().__init__()
        self._folder = folder
        self._samples = samples
        self._steps = steps
        self._step = 0

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step % self._steps == 0:
            self._publish()

    def on_train_end(self, logs=None):
        # As TableSnapshot does, whose last point is of the last step.
        if self._step % self._steps:
            self._publish()

    def _publish(self):
        scores = self.model(self._samples, training=False)[:, 0]
        line = {"step": self._step, "scores": scores.numpy().tolist()}
        # Before anybody can be asked for it.
        with open(self._folder / "answers.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        tf_ext.serving.export(
            self.model,
            self._folder / "versions",
            version=self._step,
            warmup=self._samples,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--examples", required=True)
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    args = wide_deep.parse_arguments([f"--examples={given.examples}"])
    keras.utils.set_random_seed(args.seed)
    stream = wide_deep.load_data(args)
    # Of the end of the stream: most ids are met in training, some are not.
    features, _ = next(iter(stream.test().unbatch().batch(SAMPLES)))
    lists = to_lists(features)
    samples = to_features(lists)
    (given.folder / "samples.json").write_text(json.dumps(lists))
    tables = wide_deep.make_tables(args)
    model = wide_deep.make_model(stream, *tables, args.bucket_size)
    wide_deep.compile_model(model, args)
    points = tf_ext.callbacks.TableSnapshot(
        str(given.folder / "points"), steps=given.steps, incremental=True
    )
    publisher = Publisher(given.folder, samples, given.steps)
    sink = tf_ext.serving.DirectorySink(given.folder / "store")
    with tf_ext.serving.publish(
        model,
        given.folder / "points",
        sink,
        every=0.2,
        onnx=importlib.util.find_spec("tf2onnx") is not None,
    ):
        model.fit(
            stream.train(),
            shuffle=False,
            verbose=0,
            callbacks=[publisher, points],
        )


if __name__ == "__main__":
    main()
