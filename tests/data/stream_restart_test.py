# SPDX-License-Identifier: Apache-2.0
"""A training on a stream that is killed reads each record once."""

import collections
import contextlib
import json
import pathlib
import random
import tempfile
import time

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from killed_training import Kill, KilledError
from models import id_counting_models as models
from programs import stream_program as program
from queue_source import Queue

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "*_data_end",
        "*_joined_files",
        "*_often",
        "*_of_steps",
        "*_other_batches",
    ),
]


def _with_label(features, label):
    """Ids that tell the label, too."""
    clicked = tf.cast(label, tf.int64)
    return {"user": 2 * features["user"] + clicked}, label


def _write(folder, numbers, files=3):
    """Files of records, of which every fifth is malformed, in two folders."""
    expected = collections.Counter()
    for file in range(files):
        lines = []
        for number in numbers[file::files]:
            lines.append(f"{number},1\n")
            expected[number] += 1
            if len(lines) % 5 == 0:
                lines.append("bad\n")
        place = folder / f"writer-{file % 2}" / f"part-{file}"
        place.parent.mkdir(exist_ok=True)
        place.write_text("".join(lines))
    return dict(expected)


class StreamRestartTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder) / "data"
        self.folder.mkdir()
        self.points = pathlib.Path(folder) / "points"

    def _train(self, steps=0, **options):
        source = tf_ext.data.DirectorySource(self.folder)
        kill = [Kill(steps)] if steps else []
        return program.train(source, self.points, kill, **options)

    @parameterized.named_parameters(("once", [5]), ("often", [2, 1, 4, 3]))
    def test_killed(self, lives):
        expected = _write(self.folder, [*range(100), *range(50)])
        for steps in lives:
            with self.assertRaises(KilledError):
                self._train(steps)
        self.assertEqual(self._train(), expected)

    def test_points_tell_positions(self):
        _write(self.folder, range(32))
        self._train()
        point = tf_ext.callbacks.latest_point(self.points)
        told = json.loads((pathlib.Path(point) / "point.json").read_text())
        [stream] = told["streams"]
        positions = json.loads(stream["state"])["positions"]
        self.assertCountEqual(positions, ["writer-0", "writer-1"])

    def test_batches_that_are_read_ahead_do_not_count(self):
        (self.folder / "part").write_text("1,1\n" * 400)
        progress = tf_ext.data.StreamProgress()
        found = []

        class Wait(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                time.sleep(0.2)
                found.append(progress.positions["."])

        model, _ = models.counting_model()
        data = tf_ext.data.stream(
            tf_ext.data.DirectorySource(self.folder),
            models.SCHEMA,
            batch_size=8,
            progress=progress,
        )
        model.fit(
            data, steps_per_epoch=2, epochs=2, verbose=0, callbacks=[Wait()]
        )
        self.assertEqual(found, [["part", n] for n in (8, 16, 24, 32)])

    def test_epochs_of_steps(self):
        """The position is that of training whatever epochs are."""
        expected = _write(self.folder, range(150))
        seen = collections.Counter()
        for life in range(3):
            model, table = models.counting_model()
            data = tf_ext.data.stream(
                tf_ext.data.DirectorySource(self.folder),
                models.SCHEMA,
                batch_size=program.BATCH,
                follow=False,
                max_errors=0.5,
            ).map(lambda *batch: batch)
            snapshot = tf_ext.callbacks.TableSnapshot(self.points, steps=2)
            kill = [Kill(5)] if life < 2 else []
            try:
                model.fit(
                    data,
                    epochs=20,
                    steps_per_epoch=3,
                    verbose=0,
                    callbacks=[snapshot, *kill],
                )
            except (KilledError, ValueError):
                pass
            seen = models.counts(table)
            if sum(seen.values()) == 150:
                break
        self.assertEqual(seen, expected)

    def test_an_execution_that_the_data_end(self):
        expected = collections.Counter()
        for life in range(2):
            # Nine batches of two files, of which four are of an execution.
            path = self.folder / f"part-{life}"
            numbers = range(100 * life, 100 * life + 9 * program.BATCH)
            path.write_text("".join(f"{n},1\n" for n in numbers))
            expected.update(numbers)
            model, table = models.counting_model()
            model.compile(model.optimizer, model.loss, steps_per_execution=4)
            progress = tf_ext.data.StreamProgress()
            data = tf_ext.data.stream(
                tf_ext.data.DirectorySource(self.folder),
                models.SCHEMA,
                batch_size=program.BATCH,
                follow=False,
                progress=progress,
            )
            snapshot = tf_ext.callbacks.TableSnapshot(self.points)
            model.fit(
                data,
                epochs=1 + life,
                steps_per_epoch=99,
                verbose=0,
                callbacks=[snapshot],
            )
            self.assertEqual(progress.positions, {".": [path.name, None]})
            self.assertEqual(models.counts(table), expected)
        with self.assertRaisesRegex(ValueError, "derived by `take`"):
            model.fit(data.take(3), steps_per_epoch=3, verbose=0)

    def test_validation_needs_a_stream_of_its_own(self):
        (self.folder / "part").write_text("".join(f"{n},1\n" for n in range(9)))

        def stream():
            source = tf_ext.data.DirectorySource(self.folder)
            return tf_ext.data.stream(
                source, models.SCHEMA, batch_size=4, follow=False
            )

        model, table = models.counting_model()
        data = stream()
        for validation in (data, data.map(lambda x, y: (x, y)).take(1)):
            with self.assertRaisesRegex(ValueError, "`validation_data` of fit"):
                model.fit(data, validation_data=validation, verbose=0)
        self.assertEmpty(models.counts(table))
        model.fit(data, validation_data=stream(), verbose=0)
        self.assertEqual(models.counts(table), collections.Counter(range(9)))

    def test_late_labels_are_those_of_joined_files(self):
        """Each impression counts once, with its label, however often killed."""
        rng = random.Random(3)
        shown, clicked = Queue(a=[], b=[]), Queue(c=[])
        expected, clicks = {}, []
        for number in range(400):
            when = 1e6 + number
            shown.add("ab"[number % 2], b"%d" % number, time=when)
            after = rng.uniform(0, 150)
            label = rng.random() < 0.5 and after <= 100
            if label or after > 100:  # Too late.
                clicks.append((when + after, number))
            expected[2 * number + label] = 1.0
        for when, number in sorted(clicks):
            clicked.add("c", b"%d" % number, time=when)
        source = tf_ext.data.JoinSource(
            shown, clicked, window=100.0, id=lambda message: message.value
        )
        for life in range(5):
            model, table = models.counting_model()
            data = tf_ext.data.stream(
                source,
                models.SCHEMA,
                batch_size=16,
                follow=False,
                envelope={"label": "header:joined"},
            ).map(_with_label)
            snapshot = tf_ext.callbacks.TableSnapshot(self.points, steps=3)
            kill = [Kill(5 + life)] if life < 4 else []
            with contextlib.suppress(KilledError):
                model.fit(data, verbose=0, callbacks=[snapshot, *kill])
        self.assertEqual(models.counts(table), expected)

    def test_another_number_of_streams(self):
        _write(self.folder, range(32))
        self._train()
        model, _ = models.counting_model()
        data = tf_ext.data.read(
            self.folder / "writer-0/*",
            models.SCHEMA,
            batch_size=8,
            max_errors=0.5,
        )
        snapshot = tf_ext.callbacks.TableSnapshot(self.points)
        with self.assertRaisesRegex(ValueError, "The data have 0 streams"):
            model.fit(data, verbose=0, callbacks=[snapshot])

    def test_datasets_with_other_batches(self):
        _write(self.folder, range(32))
        model, _ = models.counting_model()
        data = tf_ext.data.stream(
            tf_ext.data.DirectorySource(self.folder),
            models.SCHEMA,
            batch_size=4,
            follow=False,
        )
        for other in (data.unbatch().batch(8), data.shuffle(4), data.repeat(2)):
            with self.assertRaisesRegex(ValueError, "a batch for each batch"):
                model.fit(other, verbose=0)


if __name__ == "__main__":
    absltest.main()
