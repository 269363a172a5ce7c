# SPDX-License-Identifier: Apache-2.0
"""What steps on asynchronous workers are sent, without a cluster."""

import itertools
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext._keras import keras
from tf_ext.data import epochs
from tf_ext.distribute import StepLostError
from tf_ext.training import feeds, fit_arguments
from tf_ext.training.fit_arguments import make_dataset, split_arrays
from tf_ext.training.parameter_servers.feed import Feed, WorkerFeed
from tf_ext.training.parameter_servers.step_numbers import StepNumbers

pytestmark = pytest.mark.both_kerases(slow=True)


def _pairs(n, known=True):
    """A dataset of `n` batches: a number, and its square."""
    numbers = tf.range(n, dtype=tf.int64)[:, tf.newaxis]
    data = tf.data.Dataset.from_tensor_slices((numbers, numbers**2))
    return data if known else data.filter(lambda *_: True)


def _numbers(feed, sent):
    """The batches of what a feed yields, a list for each execution."""
    found = []
    for one in sent:
        steps = int(feed.steps_in(one))
        group = []
        for index in range(steps):
            x, y = feed.unpack(one, tf.constant(index, tf.int64))
            np.testing.assert_array_equal(y, x**2)
            group += x.numpy().tolist()
        found.append(group)
    return found


def _flat(feed, sent):
    return [*itertools.chain(*_numbers(feed, sent))]


class NumbersTest(tf.test.TestCase):
    def test_servers_forget_the_steps_whose_results_came(self):
        numbers = StepNumbers()
        feed = Feed(_pairs(6), steps_per_execution=2)
        feed.number = numbers.begin
        started = []

        def schedule(coordinator, function, arguments, lost):
            self.assertIs(lost, StepLostError)
            _, number = arguments
            started.append((function, number.numpy().tolist()))

        feed.lost = StepLostError
        start = feed.starter(None, lambda steps: steps)
        with mock.patch.object(feeds, "schedule", schedule):
            for sent in feed.epoch():
                start(sent)
            self.assertEqual(started, [(2, [0, 0]), (2, [2, 0]), (2, [4, 0])])
            self.assertEqual(feed.made(2, None), (2, None))
            self.assertAllEqual(numbers.begin(1).tensor(), [6, 2])
            feed.close()
            self.assertAllEqual(numbers.begin(1).tensor(), [7, 6])


class FeedTest(tf.test.TestCase, parameterized.TestCase):
    def test_the_batches_of_an_epoch(self):
        for known in (True, False):
            feed = Feed(_pairs(3, known))
            self.assertEqual(feed.num_batches, 3 if known else None)
            self.assertEqual(feed.element_spec[0].shape, [1])
            self.assertLen(feed.signature, 1)
            for _ in range(2):
                found = _numbers(feed, feed.epoch())
                self.assertEqual(found, [[0], [1], [2]])
            for first in range(4):
                found = _numbers(feed, feed.epoch(first))
                # What is left of an epoch has to be told to `go_on`.
                wanted = [[0], [1], [2]][: 3 - first if known else None]
                self.assertEqual(found, wanted)

    def test_several_steps_an_execution(self):
        feed = Feed(_pairs(5), steps_per_execution=2)
        self.assertEqual(feed.num_batches, 5)
        found = _numbers(feed, feed.epoch())
        self.assertEqual(found, [[0, 1], [2, 3], [4]])

        @tf.function
        def steps(*sent):
            return feed.steps_in(sent)

        for sent, count in zip(feed.epoch(), (2, 2, 1), strict=True):
            self.assertEqual(int(steps(*sent)), count)
            self.assertEqual(steps(*sent).dtype, tf.int64)

    def test_features_alone(self):
        feed = Feed(tf.data.Dataset.range(2).batch(1))
        found = [feed.unpack(sent).numpy().tolist() for sent in feed.epoch()]
        self.assertEqual(found, [[0], [1]])

    @parameterized.parameters(1, 3)
    def test_epochs_of_steps_are_parts_of_one_iteration(self, together):
        feed = Feed(_pairs(5), 2, together)
        self.assertEqual(feed.num_batches, 2)
        found = [_flat(feed, feed.epoch()) for _ in range(2)]
        self.assertEqual(found, [[0, 1], [2, 3]])
        with self.assertLogs(tf.get_logger(), "WARNING") as logs:
            found = _flat(feed, feed.epoch())
        self.assertEqual(found, [4])
        self.assertIn("ended after 1 of 2 steps of this epoch", logs.output[0])
        # Begins anew, as what follows the end.
        found = _flat(feed, feed.epoch())
        self.assertEqual(found, [0, 1])
        self.assertEqual(_flat(feed, feed.epoch(1)), [2])

    def test_an_end_that_is_known_is_no_surprise(self):
        feed = Feed(_pairs(4), 2)
        with self.assertNoLogs(tf.get_logger(), "WARNING"):
            found = [_flat(feed, feed.epoch()) for _ in range(3)]
        self.assertEqual(found, [[0, 1], [2, 3], [0, 1]])

    @parameterized.parameters(
        # Steps, epoch and step; where it goes on, and with what.
        (None, 1, 3, (1, 3), [3, 4]),
        (None, 1, 5, (2, 0), [0, 1, 2, 3, 4]),
        (2, 1, 1, (1, 1), [3]),
    )
    def test_goes_on(self, steps, epoch, step, place, numbers):
        feed = Feed(_pairs(5), steps)
        self.assertEqual(feed.go_on(epoch, step), place)
        found = _flat(feed, feed.epoch(place[1]))
        self.assertEqual(found, numbers)
        if steps is None:
            found = _flat(feed, feed.epoch())
            self.assertEqual(found, [0, 1, 2, 3, 4])

    def test_goes_on_in_data_that_begin_with_a_later_epoch(self):
        feed = Feed(_pairs(9), 2)
        self.assertEqual(feed.go_on(7, 1, 6), (7, 1))
        self.assertEqual(_flat(feed, feed.epoch(1)), [3])

    @parameterized.parameters(1, 3, 4, 5)
    def test_goes_on_in_data_that_begin_again(self, size):
        for steps in (1, 2, 3):
            self._check_places(size, steps, known=True)

    @parameterized.parameters(4, 5)
    def test_goes_on_in_data_of_unknown_length(self, size):
        self._check_places(size, 2, known=False)

    def _check_places(self, size, steps, known):
        whole = Feed(_pairs(size, known), steps)
        epochs = [_flat(whole, whole.epoch()) for _ in range(6)]
        # Whether they end with an epoch shows in the next one.
        found = [*itertools.chain(*epochs)][: size + 1]
        self.assertEqual(found, [*range(size), 0])
        for number, epoch in enumerate(epochs[:-1]):
            for step in range(len(epoch) + 1):
                feed = Feed(_pairs(size, known), steps)
                at, first = feed.go_on(number, step)
                if step < len(epoch):
                    self.assertEqual((at, first), (number, step))
                found = _flat(feed, feed.epoch(first))
                if first == steps:  # The loop asks for the next epoch.
                    self.assertEqual(found, [])
                    found, at, first = _flat(feed, feed.epoch()), at + 1, 0
                self.assertEqual(found, epochs[at][first:])

    def test_tells_the_number_of_an_epoch(self):
        for steps, number in ((None, 3), (1, 0)):
            epoch = types.SimpleNamespace(number=0)
            feed = Feed(epochs.mark(_pairs(2), [epoch]), steps)
            feed.tell_epoch(3)
            self.assertEqual(epoch.number, number)


class _Coordinator:
    """Workers that share one dataset, which is asked for once."""

    def create_per_worker_dataset(self, make):
        return make()


class WorkerFeedTest(tf.test.TestCase):
    def _feed(self, steps, together=1, **options):
        return WorkerFeed(
            _Coordinator(), lambda _: _pairs(9), steps, None, together
        )

    def test_each_step_takes_the_next_batch(self):
        feed = self._feed(3)
        self.assertEqual(feed.num_batches, 3)
        self.assertIsNone(feed.signature)
        self.assertEqual(_numbers(feed, feed.epoch()), [[0], [1], [2]])
        self.assertEqual(feed.go_on(2, 1), (2, 1))
        self.assertEqual(_numbers(feed, feed.epoch(1)), [[3], [4]])

    def test_several_steps_an_execution(self):
        feed = self._feed(5, 2)
        found = _numbers(feed, feed.epoch())
        self.assertEqual(found, [[0, 1], [2, 3], [4]])
        self.assertEqual(_numbers(feed, feed.epoch(3)), [[5, 6]])

        @tf.function
        def steps(count):
            return feed.steps_in((None, count))

        self.assertEqual(int(steps(tf.constant(2, tf.int64))), 2)

    def test_weights_of_classes(self):
        feed = WorkerFeed(
            _Coordinator(), lambda _: _pairs(3), 3, {1: 5.0, 4: 0.5}
        )
        weights = [float(feed.unpack(s)[2][0]) for s in feed.epoch()]
        self.assertEqual(weights, [1.0, 5.0, 0.5])

    def test_weights_of_samples_and_classes(self):
        weigh = fit_arguments._ClassWeights({0: 1e-8, 1: 10.0})
        labels = tf.constant([0.0, 1.0, 0.0, 1.0, 2.0])
        weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
        wanted = np.array([1e-8, 20.0, 3e-8, 40.0, 5.0], np.float32)
        for y in (labels, labels[:, tf.newaxis]):
            for of_samples in (weights, weights[:, np.newaxis]):
                *_, found = weigh(y, y, tf.constant(of_samples))
                self.assertAllEqual(found, wanted.reshape(of_samples.shape))
        steps = tf.stack([labels, labels], 1)[..., tf.newaxis]
        *_, found = weigh(steps, steps, tf.constant(weights))
        self.assertAllEqual(found, np.stack([wanted, wanted], 1))

    def test_data_that_end_are_explained(self):
        feed = self._feed(3)
        with (
            self.assertRaisesRegex(ValueError, "it ended on a worker"),
            feed.explaining_errors(),
        ):
            raise tf.errors.OutOfRangeError(None, None, "end")
        with self.assertRaises(KeyError), feed.explaining_errors():
            raise KeyError


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    def test_arrays(self):
        x, y, w = np.arange(70), np.arange(70) * 2, np.ones(70)
        for options, sizes in (
            ({}, [32, 32, 6]),
            ({"steps": 4}, [18, 18, 18, 16]),
            ({"batch_size": 60, "steps": 4}, [60, 10]),
        ):
            data = list(make_dataset(x, y, w, **options))
            self.assertEqual([len(batch[0]) for batch in data], sizes)
            for at, array in enumerate((x, y, w)):
                found = np.concatenate([batch[at] for batch in data])
                self.assertAllEqual(found, array)
        [batch] = make_dataset(x[:2])
        self.assertAllEqual(batch, x[:2])
        empty = list(make_dataset(x[:0], shuffle=True))
        self.assertEqual(empty, [])

    def test_arrays_are_shuffled_by_the_seed(self):
        x = np.arange(50)
        found = [
            np.concatenate(list(make_dataset(x, shuffle=True, seed=seed)))
            for seed in (3, 3, 4)
        ]
        self.assertAllEqual(found[0], found[1])
        self.assertNotAllEqual(found[0], found[2])
        self.assertAllEqual(np.sort(found[0]), x)
        self.assertNotAllEqual(found[0], x)

    def test_structures_of_arrays(self):
        x = {"a": [np.arange(3), np.arange(3) + 5], "b": np.arange(3)}
        [batch] = make_dataset(x)
        self.assertIsInstance(batch["a"], tuple)
        self.assertAllEqual(batch["a"][1], [5, 6, 7])
        # Numbers of Python are one array.
        [batch] = map(tf.nest.flatten, make_dataset([1, 2, 3]))
        self.assertAllEqual(batch, [[1, 2, 3]])

    def test_what_excludes_each_other(self):
        data = tf.data.Dataset.range(3)
        for name in ("y", "sample_weight", "batch_size"):
            with self.assertRaisesRegex(ValueError, f"`{name}` must be None"):
                make_dataset(data, **{name: 1})
        with self.assertRaisesRegex(ValueError, "from_generator"):
            make_dataset(iter([1]))
        with self.assertRaisesRegex(ValueError, "dict from class"):
            make_dataset(data, class_weight=[1.0])
        self.assertFalse(fit_arguments.makes_dataset(data))
        self.assertTrue(fit_arguments.makes_dataset(lambda _: data))

    def test_the_context_of_a_function(self):
        def make(context):
            return tf.data.Dataset.range(context.num_input_pipelines)

        self.assertAllEqual(list(make_dataset(make)), [0])
        context = tf.distribute.InputContext(3)
        self.assertAllEqual(
            list(make_dataset(make, context=context)), [0, 1, 2]
        )

    @parameterized.parameters(
        ([[2], [0], [1]], [2.0, 1.0, 0.5]),
        ([[0.0, 0.1, 0.9], [1.0, 0.0, 0.0], [0.2, 0.6, 0.2]], [2.0, 1.0, 0.5]),
        ([1.9, 0.1, 1.2], [2.0, 1.0, 0.5]),
    )
    def test_weights_of_classes(self, labels, weights):
        x, classes = np.arange(3), {2: 2.0, 1: 0.5}  # In any order.
        y = np.array(labels)
        [batch] = make_dataset(x, y, class_weight=classes)
        self.assertAllEqual(batch[0], x)
        self.assertAllEqual(batch[1], y)
        self.assertAllEqual(batch[2], weights)
        own = np.array([1.0, 10.0, 100.0])
        [batch] = make_dataset(x, y, own, class_weight=classes)
        self.assertAllEqual(batch[2], own * weights)
        self.assertEqual(batch[2].dtype, tf.float64)

    def test_weights_of_classes_of_several_outputs(self):
        y = {"a": np.arange(2), "b": np.arange(2)}
        with self.assertRaisesRegex(ValueError, "of several outputs"):
            make_dataset(np.arange(2), y, class_weight={0: 1.0})

    def test_the_end_of_arrays_validates(self):
        given = {
            "x": {"a": np.arange(10)},
            "y": np.arange(10) + 10,
            "sample_weight": None,
            "validation_split": 0.25,
            "validation_data": None,
            "epochs": 3,
        }
        found = split_arrays(given)
        self.assertEqual(found["epochs"], 3)
        self.assertAllEqual(found["x"]["a"], range(7))
        self.assertAllEqual(found["y"], range(10, 17))
        self.assertIsNone(found["sample_weight"])
        x, y, weight = found["validation_data"]
        self.assertAllEqual(x["a"], range(7, 10))
        self.assertAllEqual(y, range(17, 20))
        self.assertIsNone(weight)
        for changes in (
            {"validation_split": 0.0},
            {"validation_data": np.arange(2)},
        ):
            self.assertIs(split_arrays(same := given | changes), same)
        with self.assertRaisesRegex(ValueError, "unless `x` is arrays"):
            split_arrays(given | {"x": tf.data.Dataset.range(3), "y": None})

    def test_sequences_of_keras_are_refused(self):
        class Own(keras.utils.Sequence):
            pass

        with self.assertRaisesRegex(ValueError, "arrays or a function"):
            make_dataset(Own.__new__(Own))

    @parameterized.parameters(
        ((0, False), "max_inflight_steps"),
        ((True, False), "max_inflight_steps"),
        ((2.0, False), "max_inflight_steps"),
        ((None, 1), "overlap_steps"),
    )
    def test_options_of_fit(self, values, name):
        with self.assertRaisesRegex(ValueError, f"`{name}` of fit must be"):
            fit_arguments.FitOptions(*values).check()
        fit_arguments.FitOptions(1, True).check()
        fit_arguments.FitOptions().check()


if __name__ == "__main__":
    tf.test.main()
