# SPDX-License-Identifier: Apache-2.0
"""Where training goes on in data that several epochs share."""

import itertools
import tempfile

import pytest
import queue_source
import tensorflow as tf
from absl.testing import parameterized
from killed_training import KilledError
from models import id_counting_models as models

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.training import resume
from tf_ext.training.positions import batches_before

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ResumeTest::test_data_of_unknown_length[0-689]",
        "ResumeTest::test_data_of_unknown_length1[0-4]*",
        "ResumeTest::test_a_training_that_has_ended*",
        "ResumeTest::test_killed_at_the_end_of_an_epoch1",
        "ResumeTest::test_data_that_begin_again[2-9]",
        "ResumeTest::test_data_that_begin_with_a_later_epoch[02]",
        "ResumeTest::test_ends_early[12]",
        "ResumeTest::test_executions_of_more_steps_than_are_left[12]",
    ),
]


def _epochs(data, steps, count):
    """What Keras 3 trains on in each of some epochs: a list of lists."""
    found, read = [], 0
    for _ in range(count):
        found.append(data[read : read + steps])
        read = read + steps if read + steps < len(data) else 0
    return found


class PartsTest(parameterized.TestCase):
    def test_batches_before_an_epoch(self):
        for size, steps in itertools.product(range(1, 9), range(1, 5)):
            for epoch, part in enumerate(_epochs([*range(size)], steps, 12)):
                before = batches_before(epoch, steps, size)
                self.assertEqual(before, part[0], (size, steps, epoch))

    def test_of_data_whose_end_is_unknown(self):
        self.assertEqual(batches_before(5, 3, 0), 15)
        self.assertEqual(batches_before(5, 3, None), 15)

    @parameterized.product(size=[1, 4, 5, 6], steps=[1, 2, 3])
    def test_the_epochs_that_follow(self, size, steps):
        data = [*range(size)]
        whole = _epochs(data, steps, 9)
        parts = resume._Parts(tf.data.Dataset.range(size), steps)
        for first, end in itertools.combinations(range(10), 2):
            found, calls = [], 0
            for part, begin, middle in parts.of_epochs(first, end):
                self.assertEqual(begin, first + len(found))
                part = [int(x) for x in part]
                if not IS_KERAS_3 and size != steps:
                    # It ends with the data, and the last epoch with it.
                    self.assertEqual(part, data[first * steps :])
                    self.assertLess((middle - 1) * steps, size)
                    self.assertTrue(middle == end or middle * steps >= size)
                    found = whole[first:end]
                    continue
                found += _epochs(part, steps, middle - begin)
                calls += 1
            if not IS_KERAS_3 and size != steps and first * steps >= size:
                self.assertEqual((found, calls), ([], 0))
                continue
            self.assertEqual(found, whole[first:end], (first, end))
            self.assertLessEqual(calls, 2)
        if IS_KERAS_3:
            for epoch, part in enumerate(whole):
                rest = [int(x) for x in parts.behind(epoch, 1)]
                self.assertEqual(rest[: len(part) - 1], part[1:])

    def test_all_of_the_data_in_each_epoch(self):
        parts = resume._Parts(tf.data.Dataset.range(3), None)
        [(part, *epochs)] = parts.of_epochs(4, 6)
        self.assertEqual([*part.as_numpy_iterator()], [0, 1, 2])
        self.assertEqual(epochs, [4, 6])
        rest = parts.behind(4, 2)
        self.assertEqual([*rest.as_numpy_iterator()], [2])


class Kill(keras.callbacks.Callback):
    """Raises after a number of steps, or as an epoch begins after them."""

    def __init__(self, steps, between_epochs=False):
        super().__init__()
        self.steps = steps
        self.between_epochs = between_epochs

    def on_epoch_begin(self, epoch, logs=None):
        if int(self.model.optimizer.iterations) == self.steps:
            raise KilledError

    def on_train_batch_end(self, batch, logs=None):
        if not self.between_epochs:
            self.on_epoch_begin(0)


def _validation_data():
    features = tf.data.Dataset.from_tensors(
        {"user": tf.range(3, dtype=tf.int64)}
    )
    return tf.data.Dataset.zip(
        features, tf.data.Dataset.from_tensors(tf.ones([3]))
    )


class Stop(keras.callbacks.Callback):
    """Ends training with an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == self.epoch


class ResumeTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def _points(self):
        return tf_ext.callbacks.TableSnapshot(self.folder, steps=1)

    def _fit(
        self,
        *callbacks,
        batches=6,
        steps=3,
        epochs=5,
        as_arrays=False,
        execution=1,
        known=True,
        shuffle=False,
        **options,
    ):
        model, table = models.counting_model(steps_per_execution=execution)
        features = {"user": tf.range(batches, dtype=tf.int64)}
        labels = tf.ones([batches])
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(1)
        if not known:
            data = data.filter(lambda *_: True)
        arguments = {"x": data}
        if as_arrays:
            features = {"user": features["user"].numpy()}
            arguments = {"x": features, "y": labels.numpy(), "batch_size": 1}
        history = model.fit(
            **arguments,
            epochs=epochs,
            steps_per_epoch=steps,
            shuffle=shuffle,
            verbose=0,
            callbacks=callbacks,
            **options,
        )
        self.history = history.history
        return models.counts(table), history.epoch

    @parameterized.parameters(
        # Batches of the data, steps of an epoch, steps before the end, whether
        # that is between epochs, whether the data are arrays.
        (6, 3, 7),
        (6, 3, 3, True),
        (6, 3, 8),
        (5, 2, 6),
        (5, 2, 7, True),
        (4, 4, 8, True),
        (5, 2, 6, False, True),
        (3, 4, 2, False, True),
    )
    def test_data_that_begin_again(
        self, batches, steps, killed, between=False, arrays=False
    ):
        options = dict(batches=batches, steps=steps, as_arrays=arrays)
        whole, _ = self._fit(**options)
        if sum(whole.values()) < killed:  # tf_keras ends with the data.
            killed, between = batches - 1, False
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(killed, between), **options)
        found, epochs = self._fit(self._points(), **options)
        self.assertEqual(found, whole)
        if IS_KERAS_3:
            self.assertEqual(epochs[-1], 4)

    @parameterized.parameters(
        # As above.
        (5, 2, 6),
        (5, 2, 8),
        (5, 2, 2, True),
        (5, 2, 5, True),
        (6, 3, 6, True),
        (6, 3, 7),
        (40, 3, 7),
        # Within the first pass of several.
        (8, 3, 5),
        (8, 3, 3, True),
        (8, 2, 3),
        (8, 4, 3),
        (8, 4, 8, True),
        (8, 4, 9),
        (8, 10, 3),
        (8, 3, 6, False, 2),
        # Epochs that only find the end.
        (5, 6, 9, False, 2, 4),
    )
    def test_data_of_unknown_length(
        self, batches, steps, killed, between=False, execution=1, epochs=13
    ):
        options = dict(batches=batches, steps=steps, known=False, epochs=epochs)
        options["execution"] = execution
        whole, _ = self._fit(**options)
        if not IS_KERAS_3:  # It ends with the data.
            killed, between = min(killed, batches - 1), False
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(killed, between), **options)
        found, _ = self._fit(self._points(), **options)
        self.assertEqual(found, whole)

    def test_arrays_that_are_shuffled(self):
        options = dict(batches=6, steps=None, as_arrays=True, epochs=2)
        for shuffle, *killed in ((True, 3), (False, 3), (True, 6, True)):
            self.folder = self.enterContext(tempfile.TemporaryDirectory())
            with self.assertRaises(KilledError):
                self._fit(self._points(), Kill(*killed), **options)
            with self.assertLogs("tf_ext", "WARNING") as logs:
                self._fit(self._points(), shuffle=shuffle, **options)
            warns = "some samples are trained on twice" in str(logs.output)
            self.assertEqual(warns, shuffle and killed == [3])
        # A dataset has its own order, whatever `shuffle` is.
        options["as_arrays"] = False
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(3), **options)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self._fit(self._points(), shuffle=True, **options)
        self.assertNotIn("twice", str(logs.output))

    def test_one_object_in_several_calls(self):
        """A point of the second call is for that, also in a new process."""

        def program(*callbacks):
            model, table = models.counting_model()
            features = {"user": tf.range(4, dtype=tf.int64)}
            data = tf.data.Dataset.from_tensor_slices((features, tf.ones([4])))
            points = self._points()
            for first, end in ((0, 2), (2, 5)):
                model.fit(
                    data.batch(1),
                    initial_epoch=first,
                    epochs=end,
                    verbose=0,
                    callbacks=[points, *callbacks],
                )
            return models.counts(table)

        for killed in (8, 9, 14):
            with self.assertRaises(KilledError):
                program(Kill(killed))
        self.assertEqual(program(), dict.fromkeys(range(4), 5))

    def test_calls_of_which_one_reads_a_stream(self):
        queue = queue_source.Queue()
        queue.add("a", *(b'{"user": %d}' % n for n in range(4)))

        def program(*callbacks):
            model, table = models.counting_model()
            features = {"user": tf.range(4, dtype=tf.int64)}
            files = tf.data.Dataset.from_tensor_slices((features, tf.ones([4])))
            data = (
                files.batch(1),
                tf_ext.data.stream(
                    queue,
                    tf_ext.data.Schema([tf_ext.data.Field("user", "int64")]),
                    "jsonl",
                    batch_size=1,
                    follow=False,
                    start="earliest",
                ).map(lambda features: (features, tf.ones([1]))),
            )
            points = self._points()
            for epoch, some in enumerate(data):
                model.fit(
                    some,
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    verbose=0,
                    callbacks=[points, *callbacks],
                )
            return models.counts(table)

        with self.assertRaises(KilledError):
            program(Kill(6))
        self.assertEqual(program(), dict.fromkeys(range(4), 2))

    @parameterized.parameters(None, 10)
    def test_killed_at_the_end_of_an_epoch(self, steps):
        """Whose last step has a point, and what ends it comes again."""
        if steps and not IS_KERAS_3:
            self.skipTest("Training ends with the data")
        options = dict(batches=4, steps=steps, epochs=3, known=False)
        options["validation_data"] = _validation_data()
        ends = []

        class Ends(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                ends.append((epoch, logs["val_loss"]))

        class Killed(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):
                raise KilledError

        whole, _ = self._fit(Ends(), **options)
        expected = ends.copy()
        self.assertLen(expected, 3)
        ends.clear()
        with self.assertRaises(KilledError):
            self._fit(self._points(), Ends(), Killed(), **options)
        found, epochs = self._fit(self._points(), Ends(), **options)
        self.assertEqual(found, whole)
        self.assertEqual(epochs, [0, 1, 2])
        self.assertEqual([epoch for epoch, _ in ends], [0, 1, 2])
        for (_, one), (_, other) in zip(ends, expected):
            self.assertAlmostEqual(one, other, 5)

    @parameterized.parameters((3, True, 1), (2, False, 0))
    def test_epochs_without_a_step(self, killed, between, first):
        """Each second one, which only finds the end of the data."""
        if not IS_KERAS_3:
            self.skipTest("Training ends with the data")
        ends = []

        class Ends(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                ends.append((epoch, sorted(logs), logs["loss"] == 0.0))

        options = dict(batches=3, steps=3, epochs=5, known=False)
        options["validation_data"] = _validation_data()
        whole, _ = self._fit(Ends(), **options)
        expected = ends.copy()
        self.assertEqual(expected[1], (1, ["loss", "val_loss"], True))
        ends.clear()
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(killed, between), **options)
        found, epochs = self._fit(self._points(), Ends(), **options)
        self.assertEqual(found, whole)
        self.assertEqual(epochs, [0, 1, 2, 3, 4][first:])
        self.assertEqual(ends, expected[first:])

    @parameterized.parameters(4, 3)
    def test_a_training_that_has_ended(self, steps):
        """In tf_keras, with the data."""
        options = dict(batches=8, steps=steps, known=False)
        whole, _ = self._fit(self._points(), **options)
        found, epochs = self._fit(self._points(), **options)
        self.assertEqual(found, whole)
        self.assertEmpty(epochs)

    @parameterized.parameters((4, True), (4, False), (5, False))
    def test_data_that_begin_with_a_later_epoch(self, killed, between):
        for known in (True, False):
            with self.subTest(known=known):
                self.folder = self.enterContext(tempfile.TemporaryDirectory())
                options = dict(batches=40, steps=2, known=known)
                options |= {"initial_epoch": 3, "epochs": 7}
                whole, _ = self._fit(**options)
                with self.assertRaises(KilledError):
                    self._fit(self._points(), Kill(killed, between), **options)
                found, _ = self._fit(self._points(), **options)
                self.assertEqual(found, whole)

    def test_batches_of_arrays_to_validate_with(self):
        users = tf.range(20, dtype=tf.int64).numpy()
        options = {
            "as_arrays": True,
            "steps": None,
            "validation_data": ({"user": users}, users),
            "validation_steps": 2,
        }
        self._fit(**options)
        whole = self.history["val_loss"]
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(8), **options)
        self._fit(self._points(), **options)
        found = self.history["val_loss"]
        self.assertEqual(found, whole[-len(found) :])

    @parameterized.parameters((30, 4), (100, 8), (24, 12))
    def test_executions_of_more_steps_than_are_left(self, batches, killed):
        options = dict(batches=batches, steps=5, epochs=4, execution=4)
        if not IS_KERAS_3:
            killed = killed // 4 * 5  # The last execution has one step.
        whole, _ = self._fit(**options)
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(killed), **options)
        found, _ = self._fit(self._points(), **options)
        self.assertEqual(found, whole)

    @parameterized.parameters(1, 0, 2)
    def test_ends_early(self, epoch):
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(2))
        _, epochs = self._fit(self._points(), Stop(epoch))
        most = 4 if IS_KERAS_3 else 1  # tf_keras ends with the data.
        self.assertEqual(epochs, [*range(min(epoch, most) + 1)])

    def test_fewer_steps_in_an_epoch_than_before(self):
        with self.assertRaises(KilledError):
            self._fit(self._points(), Kill(4), batches=30, steps=5)
        found, epochs = self._fit(self._points(), batches=30, steps=2, epochs=3)
        self.assertEqual(epochs, [1, 2])
        self.assertEqual(sum(found.values()), 7)


if __name__ == "__main__":
    tf.test.main()
