# SPDX-License-Identifier: Apache-2.0
"""The batches of synchronous workers, which are threads of one process."""

import pathlib
import tempfile
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import thread_workers
from models.model_building import mirrored_strategy
from queue_source import Queue

import tf_ext
from tf_ext.data.epochs import Epoch, mark
from tf_ext.data.errors import DamagedFileError
from tf_ext.training.optional_batches import from_optional
from tf_ext.training.stream_steps import ENDED, FAILED, HAS_BATCH, LATER
from tf_ext.training.synchronous import feed
from tf_ext.training.synchronous.feed import SynchronousFeed

pytestmark = pytest.mark.both_kerases(slow=True)

_Policy = tf.data.experimental.AutoShardPolicy
_SCHEMA = tf_ext.data.Schema([tf_ext.data.Field("x", "int64")])


class _Batches:
    """Batches of rising numbers, of these sizes; -1 raises an error.

    What is no tf.data.Dataset has no functions that have to be traced.
    """

    element_spec = tf.TensorSpec([3], tf.int64)

    def __init__(self, sizes, first=0):
        self._sizes = sizes
        self._first = first

    def __iter__(self):
        first = self._first
        for size in self._sizes:
            if size < 0:
                # Longer than what is told, which ends within a character.
                raise KeyError("no file: a" + "ä" * 999)
            yield tf.range(first, first := first + size, dtype=tf.int64)


def _with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def _taken(made, steps):
    """`(samples, weight)` of steps that a feed yields."""
    return [
        (
            from_optional(batch, made.element_spec).numpy().tolist(),
            round(float(weight), 4),
        )
        for batch, weight in steps
    ]


class FeedTest(tf.test.TestCase, parameterized.TestCase):
    def on_workers(self, datasets, use, steps=None, is_shared=False):
        """What `use` returns of each worker's feed."""

        def on(worker):
            regime = types.SimpleNamespace(
                processes=worker.processes, strategy=worker.strategy
            )
            dataset = datasets[worker.workers.rank]
            made = SynchronousFeed(dataset, steps, regime, is_shared)
            return use(made)

        return thread_workers.run(len(datasets), on)

    def test_all_go_on_until_none_has_data(self):
        def use(made):
            self.assertIsNone(made.num_batches)
            self.assertEqual(made.steps_in(None), 1)
            return [_taken(made, made.epoch()) for _ in range(2)]

        first, second = self.on_workers(
            [_Batches([3, 2]), _Batches([1, 2, 4], 50)], use
        )
        wanted = [([0, 1, 2], 1.5), ([3, 4], 1.0), ([], 0.0)]
        self.assertEqual(first, [wanted] * 2)
        wanted = [([50], 0.5), ([51, 52], 1.0), ([53, 54, 55, 56], 2.0)]
        self.assertEqual(second, [wanted] * 2)

    def test_batches_without_samples(self):
        found = self.on_workers(
            [_Batches([0, 1])] * 2, lambda made: _taken(made, made.epoch())
        )
        self.assertEqual(found, [[([], 0.0), ([0], 1.0)]] * 2)

    def test_epochs_of_steps_are_parts_of_one_iteration(self):
        def use(made):
            self.assertEqual(made.num_batches, 2)
            return [_taken(made, made.epoch()) for _ in range(4)]

        # The third epoch finds the end, and the next one begins anew.
        first, second = self.on_workers(
            [_Batches([1] * 5), _Batches([1] * 4)], use, steps=2
        )
        numbers = [[samples for samples, _ in epoch] for epoch in first]
        self.assertEqual(numbers, [[[0], [1]], [[2], [3]], [[4]], [[0], [1]]])
        self.assertEqual(first[2], [([4], 2.0)])
        self.assertEqual(second[2], [([], 0.0)])
        self.assertEqual(second[3], [([0], 1.0), ([1], 1.0)])

    def test_datasets(self):
        def use(made):
            self.assertEqual(made.element_spec.shape.as_list(), [None])
            return _taken(made, made.epoch())

        data = tf.data.Dataset.range(2).batch(2, drop_remainder=True)
        found = self.on_workers([_Batches([1]), data], use)
        self.assertEqual(found, [[([0], 0.6667)], [([0, 1], 1.3333)]])

    def test_the_number_of_batches_is_the_largest(self):
        found = self.on_workers(
            [tf.data.Dataset.range(n).batch(2) for n in (5, 9)],
            lambda made: made.num_batches,
        )
        self.assertEqual(found, [5, 5])

        for sizes, wanted in (
            ((0, 9), 5),
            ((9, 0), 5),
            ((0, 0), 0),
            ((9, None), None),
        ):
            found = self.on_workers(
                [
                    _Batches([1])
                    if n is None
                    else tf.data.Dataset.range(n).batch(2)
                    for n in sizes
                ],
                lambda made: made.num_batches,
            )
            self.assertEqual(found, [wanted] * 2)

    def test_data_are_told_their_epoch(self):
        for steps, wanted in ((None, 3), (2, 0)):
            epoch = Epoch()
            data = mark(tf.data.Dataset.range(3).batch(1), [epoch])
            self.on_workers([data], lambda made: made.tell_epoch(3), steps)
            self.assertEqual(epoch.number, wanted)

    def test_batches_of_a_stream_that_are_waited_for(self):
        queue = Queue()
        queue.add("a", *(b"%d" % i for i in range(5)))
        stream = tf_ext.data.stream(
            queue, _SCHEMA, "csv", batch_size=1, follow=False
        ).map(lambda batch: batch["x"])
        asked = []

        def wait_for(streams, batches, stop):
            if not asked:  # For the first batch of an iteration.
                self.assertEqual([one.has_ended for one in streams], [False])
            asked.append(batches)
            return True

        def use(made):
            # A batch is awaited while the one before it is trained on.
            for _ in made.epoch():
                made.read_ahead()
                made.trained(1)
            self.assertEqual(asked, [1, *[2] * 5])
            queue.add("a", b"5", b"6")
            asked.clear()
            found = []
            for step in made.epoch():
                found += _taken(made, [step])
                made.trained(1)
            self.assertEqual(asked, [1] * 3)
            # Streams begin where they are, whatever was read.
            queue.add("a", b"7")
            asked.clear()
            self.assertEqual(made.go_on(4, 2), (4, 2))
            found += _taken(made, made.epoch(2))
            return [n for (n,), _ in found]

        with mock.patch.object(feed, "wait_for", wait_for):
            found = self.on_workers([stream], use)
        self.assertEqual(found, [[5, 6, 7]])

    def test_a_stream_whose_batch_comes_later(self):
        stream = tf_ext.data.stream(
            Queue(a=[]), _SCHEMA, "csv", batch_size=1, follow=True
        )
        error = OSError("no broker")

        def use(made):
            made.while_waiting = mock.Mock(side_effect=InterruptedError)
            steps = made.epoch()
            with mock.patch.object(feed, "wait_for", return_value=False):
                self.assertEqual(made.read_ahead(), [LATER, 0])
                with self.assertRaises(InterruptedError):
                    next(steps)
            following = from_optional(made.following(), made.element_spec)
            self.assertEmpty(following["x"])
            with mock.patch.object(feed, "wait_for", side_effect=error):
                self.assertEqual(made.read_ahead(), [FAILED, 0])
            with self.assertRaisesRegex(RuntimeError, "OSError: no broker"):
                next(made.epoch())
            for told, later in (
                ([[ENDED, 0], [HAS_BATCH, 1]], False),
                ([[HAS_BATCH, 3], [LATER, 0]], True),
                ([[LATER, 0], [ENDED, 0]], True),
                ([[FAILED, -1]], False),
            ):
                made.take(np.array(told))
                self.assertIs(made.comes_later, later)
            return True

        self.assertEqual(self.on_workers([stream], use), [True])

    def test_a_batch_is_read_ahead(self):
        def use(made):
            found, told = [], []
            steps = made.epoch()
            for step in steps:
                found += _taken(made, [step])
                mine = made.read_ahead()
                told.append(mine)
                following = from_optional(
                    made.following(), made.element_spec
                ).numpy()
                self.assertEqual(len(following), mine[1])
                # A step brings what all have told.
                all_told = made._regime.processes.gather(
                    tf.constant(mine, tf.int64)
                )
                with mock.patch.object(
                    made._regime.processes, "gather", side_effect=AssertionError
                ):
                    made.take(all_told.numpy())
            return found, told

        found = self.on_workers([_Batches([2, 1]), _Batches([2, 3, 1])], use)
        (first, told), (second, others) = found
        self.assertEqual(first, [([0, 1], 1.0), ([2], 0.5), ([], 0.0)])
        self.assertEqual(second, [([0, 1], 1.0), ([2, 3, 4], 1.5), ([5], 2.0)])
        self.assertEqual(told, [[1, 1], [0, 0], [0, 0]])
        self.assertEqual(others, [[1, 3], [1, 1], [0, 0]])
        # Nothing is read for an epoch that may never come.
        [told] = self.on_workers(
            [_Batches([1] * 3)],
            lambda made: [made.read_ahead() for _ in made.epoch()],
            steps=2,
        )
        self.assertEqual(told, [[1, 1], [0, 0]])

    def test_goes_on_after_a_restart(self):
        def use(epoch, step):
            def of(made):
                place = made.go_on(epoch, step)
                return place, _taken(made, made.epoch(place[1]))

            return of

        data = [_Batches([1] * 5)]
        for steps, place, wanted, numbers in (
            (None, (2, 0), (2, 0), [0, 1, 2, 3, 4]),
            (None, (2, 3), (2, 3), [3, 4]),
            (None, (2, 5), (3, 0), [0, 1, 2, 3, 4]),
            (2, (0, 1), (0, 1), [1]),
            (2, (1, 1), (1, 1), [3]),
            (2, (2, 1), (2, 1), [0]),
        ):
            [found] = self.on_workers(data, use(*place), steps)
            self.assertEqual(found, (wanted, [([n], 1.0) for n in numbers]))

    def test_data_that_begin_again(self):
        def use(place):
            def of(made):
                at = (0, 0) if place is None else made.go_on(*place)
                found = [_taken(made, made.epoch(at[1]))]
                found += [_taken(made, made.epoch()) for _ in range(2)]
                return at, [[n for (n,), _ in epoch] for epoch in found]

            return of

        def batches(size, known):
            data = tf.data.Dataset.range(size).batch(1)
            if not known:
                data = data.filter(lambda _: True)
            return [_with_policy(data, _Policy.OFF)]

        for size, place, wanted, epochs in (
            (4, None, (0, 0), [[0, 1], [2, 3], [0, 1]]),
            (4, (3, 1), (3, 1), [[3], [0, 1], [2, 3]]),
            (4, (2, 0), (2, 0), [[0, 1], [2, 3], [0, 1]]),
            (4, (1, 2), (2, 0), [[0, 1], [2, 3], [0, 1]]),
            (5, None, (0, 0), [[0, 1], [2, 3], [4]]),
            (5, (4, 0), (4, 0), [[2, 3], [4], [0, 1]]),
            (5, (2, 1), (3, 0), [[0, 1], [2, 3], [4]]),
            (9, (7, 1, 6), (7, 1), [[3], [4, 5], [6, 7]]),
            (15, (9, 1), (9, 1), [[3], [4, 5], [6, 7]]),
        ):
            for known in (True, False):
                data = batches(size, known)
                [found] = self.on_workers(data, use(place), 2)
                self.assertEqual(found, (wanted, epochs), (size, place))

    def test_an_error_ends_all_workers(self):
        def use(made):
            with self.assertRaisesRegex(
                RuntimeError,
                "The data of a worker cannot be read, so training ends on all "
                "workers. Worker 1: KeyError: 'no file: aä",
            ):
                list(made.epoch())
            return True

        self.assertEqual(
            self.on_workers([_Batches([1] * 9), _Batches([1, -1])], use),
            [True] * 2,
        )

    def test_an_error_of_reading_keeps_its_class(self):
        class Damaged(_Batches):
            def __iter__(self):
                raise DamagedFileError("a.gz: it ends early")
                yield

        for error in self.on_workers(
            [_Batches([1] * 9), Damaged([])], lambda made: [*made.epoch()]
        ):
            self.assertIsInstance(error, DamagedFileError)
            self.assertRegex(
                str(error), r"ends on all workers\. Worker 1: a\.gz: it ends"
            )

    def test_parts_of_different_Batches(self):
        def use(made):
            return _taken(made, made.epoch())

        # Of batches of 3 and 2 samples.
        data = [_Batches([1, 1]), _Batches([2, 1])]
        found = self.on_workers(data, use, is_shared=True)
        self.assertEqual([len(one) for one in found], [2, 2])
        for sizes, said in (
            ([1, 3], "1 on {}0, 3 on {}1"),
            ([1], "1 .*, 0 on"),
        ):
            data[1] = _Batches(sizes)
            said = said.format(*["/job:worker/task:"] * 2)
            for error in self.on_workers(data, use, is_shared=True):
                self.assertRegex(
                    str(error),
                    rf"read different batches.* are {said}.*Give all",
                )


class WorkerDatasetTest(tf.test.TestCase, parameterized.TestCase):
    def of_workers(self, x, **arguments):
        """`(batches, is_shared)` of each of two workers, or its error."""

        def on(worker):
            regime = types.SimpleNamespace(processes=worker.processes)
            dataset, is_shared = feed.worker_dataset(
                {"x": x, **arguments}, regime
            )
            if isinstance(dataset, tf.data.Dataset):
                dataset = [b.tolist() for b in dataset.as_numpy_iterator()]
            return dataset, is_shared

        return thread_workers.run(2, on)

    def test_policies(self):
        data = tf.data.Dataset.range(5).batch(4)
        shared = [([[0, 1], []], True), ([[2, 3], [4]], True)]
        for policy in (_Policy.AUTO, _Policy.DATA):
            self.assertEqual(
                self.of_workers(_with_policy(data, policy)), shared
            )
        own = ([[0, 1], [2, 3], [], [4]], False)
        self.assertEqual(
            self.of_workers(_with_policy(data, _Policy.OFF)), [own] * 2
        )
        for error in self.of_workers(_with_policy(data, _Policy.FILE)):
            self.assertRegex(
                str(error),
                "(?s)auto_shard_policy is FILE, but it cannot be shared by "
                r"file over 2 workers\. .*unshardable.*AutoShardPolicy.DATA",
            )

    def test_files(self):
        folder = self.enterContext(
            tempfile.TemporaryDirectory(prefix="tf_ext_")
        )
        paths = [f"{folder}/{i}.txt" for i in range(3)]
        for i, path in enumerate(paths):
            pathlib.Path(path).write_text(f"{i}\n{i + 10}\n")
        data = tf.data.TextLineDataset(paths).batch(2)
        found = self.of_workers(_with_policy(data, _Policy.FILE))
        self.assertEqual(
            found,
            [
                ([[b"0"], [b"10"], [b"2"], [b"12"]], False),
                ([[b"1"], [b"11"]], False),
            ],
        )

    def test_arrays_are_shuffled_alike(self):
        data = np.arange(40)
        (first, is_shared), (second, _) = self.of_workers(
            data, shuffle=True, batch_size=10
        )
        self.assertTrue(is_shared)
        self.assertEqual([len(b) for b in first + second], [5] * 8)
        together = np.concatenate(first + second).tolist()
        self.assertNotEqual(together, sorted(together))
        self.assertCountEqual(together, range(40))

    def test_a_function_makes_the_data_of_each_worker(self):
        def make(context):
            self.assertEqual(context.num_input_pipelines, 2)
            self.assertEqual(context.num_replicas_in_sync, 2)
            first = 10 * context.input_pipeline_id
            data = tf.data.Dataset.range(first, first + 4)
            return data.batch(2, drop_remainder=True)

        found = self.of_workers(make)
        self.assertEqual(
            found, [([[0, 1], [2, 3]], False), ([[10, 11], [12, 13]], False)]
        )

    def test_a_stream_is_refused(self):
        stream = tf_ext.data.stream(
            Queue(), _SCHEMA, "csv", batch_size=1, follow=False
        )
        for error in self.of_workers(stream):
            self.assertRegex(str(error), "`x` of fit must be a function")
        for error in self.of_workers(lambda _: stream.batch(2)):
            self.assertRegex(str(error), "must have a batch for each batch of")

    def test_what_a_strategy_has_distributed_is_taken_as_it_is(self):
        data = tf.data.Dataset.range(4).batch(2)
        x = mirrored_strategy().experimental_distribute_dataset(data)
        self.assertEqual(self.of_workers(x), [(x, False)] * 2)


if __name__ == "__main__":
    tf.test.main()
