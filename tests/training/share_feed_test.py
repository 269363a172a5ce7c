# SPDX-License-Identifier: Apache-2.0
"""Which worker has read how much of its data, without a cluster."""

import types
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext.training.parameter_servers import shares
from tf_ext.training.parameter_servers.step_numbers import SPEC, StepNumbers
from tf_ext.training.parameter_servers.worker_share import ITERATOR

pytestmark = pytest.mark.both_kerases(slow=True)


class _Parking:
    def __init__(self):
        self.seen = []

    def release(self):
        self.seen.append("release")

    def park(self, worker):
        self.seen.append(worker)


class ShareFeedTest(tf.test.TestCase):
    def feed(self, *sizes, steps=1, data=None, served=()):
        """A feed of a worker for each size, and numbers that tell workers."""
        self.parking = _Parking()
        self.contexts = []

        def dataset(context):
            self.contexts.append(context)
            worker = context.input_pipeline_id
            first = 100 * worker
            found = tf.data.Dataset.range(first, first + sizes[worker])
            if worker in served:
                found.is_served = True
            return found

        # What stands for TensorFlow's cluster.
        for where, name, value in (
            (shares.clusters, "separate_workers", lambda _: self.parking),
            (shares, "cluster_of", lambda _: {"worker": [*sizes]}),
            (shares, "is_served", lambda one: hasattr(one, "is_served")),
            (
                shares.clusters,
                "traced_for_workers",
                self._traced_for_workers,
            ),
            (
                shares.clusters,
                "cancelled_with_steps",
                lambda _, function: function,
            ),
            (
                shares.clusters,
                "schedule_in_thread",
                lambda _, run, lost: run,
            ),
        ):
            self.enterContext(mock.patch.object(where, name, value))
        feed = shares.ShareFeed(
            types.SimpleNamespace(strategy=None),
            data or dataset,
            None,
            steps,
        )
        feed.number = StepNumbers().begin
        self.read = []

        def function_for(size):
            def run(group, numbers):
                found = [
                    int(feed.unpack(group, index))
                    for index in range(int(tf.size(group)))
                ]
                self.read.append((size, found))
                return [tf.constant([float(len(found))]), "loss"]

            return feed.traced(run)

        self.function_for = function_for
        self.start = feed.starter(None, function_for)
        return feed

    def _traced_for_workers(self, coordinator, function, *specs):
        self.assertEqual(specs, (ITERATOR, SPEC))
        return function

    def epoch(self, feed, *workers):
        """The groups of steps that these workers take, one after the other."""
        self.start = feed.starter(None, self.function_for)
        sent = next(iter(feed.epoch()))
        self.read.clear()
        made = [feed.made(9, self.start(sent)(worker)) for worker in workers]
        return [steps for steps, _ in made], [found for _, found in self.read]

    def test_each_worker_reads_its_own(self):
        feed = self.feed(3, 1)
        self.assertEqual(
            [
                (c.input_pipeline_id, c.num_input_pipelines)
                for c in self.contexts
            ],
            [(0, 2), (1, 2)],
        )
        self.assertEqual(
            [context.num_replicas_in_sync for context in self.contexts], [1, 1]
        )
        self.assertEqual(feed.element_spec, tf.TensorSpec([], tf.int64))
        self.assertIsNone(feed.num_batches)
        for _ in range(2):
            steps, read = self.epoch(feed, 0, 1, 1, 0, 0, 0)
            self.assertEqual(read, [[0], [100], [1], [2]])
            self.assertEqual(steps, [1, 1, 0, 1, 1, 0])
            self.assertEqual(feed.ended(), {0, 1})

    def test_a_worker_whose_data_have_ended_waits(self):
        feed = self.feed(2, 1)
        self.epoch(feed, 1)
        self.assertEqual(feed.ended(), {1})
        self.assertEqual(self.parking.seen, ["release", 1])
        self.assertEqual(feed.sent_again(), [0])
        # Asked again, it waits again.
        self.assertEqual(self.start(0)(1), [])
        self.assertEqual(self.parking.seen, ["release", 1, 1])
        self.start(0)(0)
        self.start(0)(0)
        self.assertEqual(self.parking.seen, ["release", 1, 1, "release"])
        self.assertEqual(feed.sent_again(), [])

    def test_an_epoch_lasts_until_all_have_ended(self):
        feed = self.feed(1, 2)
        sent = feed.epoch()
        for worker in (0, 1, 1):
            self.assertEqual(next(sent), 0)
            self.start(0)(worker)
        self.assertEqual([*sent], [])
        self.assertEqual(next(iter(feed.epoch())), 1)
        self.assertEmpty(feed.ended())
        # A step of the epoch before finds nothing.
        self.assertEqual(self.start(0)(0), [])
        self.assertEqual(self.parking.seen[-1], "release")

    def test_results(self):
        feed = self.feed(1)
        next(iter(feed.epoch()))
        first, loss, steps = self.start(0)(0)
        self.assertAllEqual(first, [1.0])
        self.assertEqual((loss, steps), ("loss", 1))
        self.assertEqual(feed.made(5, [first, loss, steps]), (1, [first, loss]))
        for nothing in (None, []):
            self.assertEqual(feed.made(5, nothing), (0, None))

    def test_several_steps_an_execution(self):
        feed = self.feed(5, steps=2)
        self.assertEqual(feed.steps_in(0), 2)
        group = tf.zeros([3])

        @tf.function
        def steps():
            return feed.steps_in(group)

        self.assertEqual(int(steps()), 3)
        found, _ = self.epoch(feed, 0, 0, 0, 0)
        self.assertEqual(found, [2, 2, 1, 0])
        # The last one runs the function of fewer steps.
        self.assertEqual(self.read, [(2, [0, 1]), (2, [2, 3]), (1, [4])])

    def test_data_without_a_batch(self):
        feed = self.feed(0, 1)
        steps, read = self.epoch(feed, 0, 1)
        self.assertEqual((steps, read), ([0, 1], [[100]]))

    def test_a_lost_step_runs_again(self):
        feed = self.feed(3)
        sent = next(iter(feed.epoch()))
        self.start(sent)(0)
        self.assertFalse(feed.has_lost_steps())
        lost = mock.Mock(side_effect=tf.errors.UnavailableError(None, None, ""))
        with self.assertRaises(tf.errors.UnavailableError):
            feed._run([lost, lost], sent, 0)
        self.assertTrue(feed.has_lost_steps())
        self.read.clear()
        self.start(sent)(0)
        self.assertEqual(self.read, [(1, [1])])
        self.assertFalse(feed.has_lost_steps())

    def test_goes_on_where_another_process_was(self):
        first = self.feed(3, 2)
        self.epoch(first, 0, 0, 0, 1, 1)
        self.epoch(first, 0, 1, 1)
        state = first.state()
        self.assertEqual(
            {**state, "seed": None},
            {"seed": None, "epoch": 1, "batches": [1, 2], "ended": [1]},
        )
        for step, place in ((3, (7, 3)), (0, (7, 0))):
            feed = self.feed(3, 2)
            feed.restore(state)
            self.assertEqual(feed.go_on(7, step), place)
            self.assertEqual(feed._seed, state["seed"])
            if step:
                _, read = self.epoch(feed, 0, 1, 0, 0)
                self.assertEqual(read, [[1], [2]])
                self.assertEqual(feed.state()["epoch"], 1)
            # Of the next epoch, all.
            _, read = self.epoch(feed, 0, 1, 1, 0, 0)
            self.assertEqual(read, [[0], [100], [101], [1], [2]])
            self.assertEqual(feed.state()["epoch"], 2)

    def test_at_the_end_of_an_epoch(self):
        first = self.feed(1, 1)
        self.epoch(first, 0, 1)
        state = first.state()
        self.assertEqual(state["ended"], [0, 1])
        feed = self.feed(1, 1)
        feed.restore(state)
        self.assertEqual(feed.go_on(4, 2), (5, 0))
        # Workers that have not read in the epoch yet.
        next(iter(first.epoch()))
        self.assertEqual(first.state()["batches"], [0, 0])

    def test_positions_that_are_not_known(self):
        first = self.feed(3, 2)
        self.epoch(first, 0)
        state = first.state()
        for sizes, restored, served in (
            ((3, 2), None, ()),
            ((3, 2, 1), state, ()),
            # They differ when they are read again.
            ((3, 2), state, (1,)),
        ):
            feed = self.feed(*sizes, served=served)
            if restored:
                feed.restore(restored)
            with self.assertLogs(tf.get_logger(), "WARNING") as logs:
                self.assertEqual(feed.go_on(6, 1), (6, 1))
            self.assertIn("of epoch 6 start again", logs.output[0])
            _, read = self.epoch(feed, 0, 1)
            self.assertEqual(read, [[0], [100]])
            self.assertEqual(feed.state()["epoch"], 0)
            self.assertEqual(
                [share.goes_on for share in feed._shares],
                [worker not in served for worker in range(len(sizes))],
            )

    def test_workers_have_batches_of_one_kind(self):
        def data(context):
            return tf.data.Dataset.from_tensors([0] * context.input_pipeline_id)

        with self.assertRaisesRegex(ValueError, "the same element_spec on all"):
            self.feed(1, 1, data=data)

    def test_close_ends_an_epoch(self):
        feed = self.feed(2, 1)
        sent = next(iter(feed.epoch()))
        lost = mock.Mock(side_effect=KeyError)
        with self.assertRaises(KeyError):
            feed._run([lost, lost], sent, 0)
        feed.close()
        self.assertEqual(self.parking.seen, ["release", "release"])
        self.assertFalse(feed.has_lost_steps())
        self.assertEqual(self.start(sent)(0), [])

    def test_shuffles_have_an_order_by_the_seed(self):
        # That of the test, which would be that of all graphs.
        tf.random.set_seed(None)

        def data(context):
            return tf.data.Dataset.range(9).shuffle(9)

        first = self.feed(9, 9, data=data)
        orders = []
        for worker in range(2):
            _, read = self.epoch(first, *[worker] * 9)
            orders.append(read)
        self.assertNotEqual(orders[0], orders[1])
        again = self.feed(9, 9, data=data)
        again.restore({**first.state(), "epoch": -1, "batches": [0, 0]})
        again.go_on(0, 0)
        for worker in range(2):
            _, read = self.epoch(again, *[worker] * 9)
            self.assertEqual(read, orders[worker])


if __name__ == "__main__":
    absltest.main()
