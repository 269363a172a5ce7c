# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow's strategy and errors keep to themselves is still there."""

import functools
import os
import signal
import sys
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import absltest
from clusters import parameter_server_util as util

from tf_ext._compat import cluster_errors, clusters
from tf_ext.distribute.addresses import split_address
from tf_ext.distribute.cluster import cluster_of

pytestmark = pytest.mark.process


def setUpModule():
    global _processes, _strategy
    cluster = util.local_cluster(1, 1)
    _processes = unittest.enterModuleContext(cluster)
    _strategy = _processes.strategy()


def _peers(job):
    host, port = split_address(cluster_of(_strategy)[job][0])
    return {(host, int(port))}


class PutBackTest(absltest.TestCase):
    """A step is put back when its worker is lost; a server may be lost, too."""

    def _queue(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator
        module = sys.modules[coordinator.__module__]
        queue = module._CoordinatedClosureQueue()
        self.addCleanup(queue.stop)
        return queue

    def _fail(self, queue, is_put_back=True):
        """Fails in a thread of a worker, which took the step before."""

        def run():
            queue.put(mock.Mock(tag=None))
            step = type(queue).get(queue, tag=0)
            if is_put_back:
                queue.put_back(step)
            queue.mark_failed(tf.errors.AbortedError(None, None, "a server"))

        with futures.ThreadPoolExecutor() as pool:
            pool.submit(run).result()

    def test_the_error_is_raised(self):
        queue = self._queue()
        clusters.separate_workers(
            mock.Mock(_cluster=mock.Mock(closure_queue=queue))
        )
        for is_put_back in (True, False, True):
            self._fail(queue, is_put_back)
            with self.assertRaisesRegex(tf.errors.AbortedError, "a server"):
                queue.done()
            self.assertTrue(queue.done())

    def test_tensorflow_loses_it(self):
        queue = self._queue()
        with self.assertRaisesRegex(AssertionError, "no inflight closures"):
            self._fail(queue)
        self.assertFalse(queue.done())


class ClusterTest(absltest.TestCase):
    def test_1_the_resolver_is_not_public(self):
        self.assertIsNone(_strategy.cluster_resolver)
        spec = clusters.resolver_of(_strategy).cluster_spec().as_dict()
        self.assertSetEqual({"worker", "ps"}, spec.keys() - {"chief"})

    def test_2_the_coordinator_is_the_strategys(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(_strategy)
        self.assertIs(clusters.coordinator_of(_strategy), coordinator)

    def test_2_functions_run_in_the_thread_of_a_worker(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(_strategy)
        parking = clusters.separate_workers(coordinator)
        self.assertIsInstance(parking, clusters.Parking)
        self.assertIs(clusters.separate_workers(coordinator), parking)
        devices = []

        def run(worker):
            devices.append(tf.identity(1).device)
            parking.park(worker)
            return [worker]

        found = clusters.fetch(clusters.schedule_in_thread(coordinator, run))
        self.assertEqual([int(worker) for worker in found], [0])
        self.assertIn("/job:worker/replica:0/task:0", devices[0])
        # It is parked, but resources can be made on it.
        waiting = clusters.schedule_in_thread(coordinator, run)
        data = coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.range(3)
        )
        for remote in iter(data)._values:
            remote._wait_and_maybe_error()
        self.assertFalse(coordinator.done())
        self.assertLen(devices, 1)
        parking.release()
        clusters.fetch(waiting)
        self.assertLen(devices, 2)
        parking.release()

    def test_2_steps_are_traced_and_cancelled(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(_strategy)
        step = tf.function(lambda x: _strategy.run(lambda: x + 1))
        spec = tf.TensorSpec([], tf.int32)
        traced = clusters.traced_for_workers(coordinator, step, spec)
        whole = clusters.cancelled_with_steps(coordinator, traced)
        found = clusters.schedule_in_thread(
            coordinator, lambda worker: [whole(tf.constant(2))]
        )
        self.assertEqual(int(clusters.fetch(found)[0]), 3)

    def test_2_results_stay_until_they_are_fetched(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(_strategy)
        step = tf.function(lambda x: x + 1)
        own = functools.partial(clusters.schedule, coordinator)
        for schedule, fetched in ((coordinator.schedule, 1), (own, 0)):
            with util.recording_fetches() as threads:
                remote = schedule(step, (tf.constant(2),))
                coordinator.join()
                self.assertLen(threads, fetched)
                self.assertEqual(int(clusters.fetch(remote)), 3)
                self.assertLen(threads, 1)
        self.assertFalse(_strategy.extended._being_scheduled)

    def test_2_nothing_waits_for_a_tensor_freed_on_a_stopped_task(self):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(_strategy)
        clusters.separate_workers(coordinator)
        clusters.separate_workers(coordinator)  # Nothing more.
        step = tf.function(lambda: tf.constant(3))
        # The thread of the worker waits for a step, and is separate after it.
        coordinator.schedule(step).get()
        with tf.device("/job:ps/task:0"):
            tensors = [tf.constant(1.0) + 1.0]
        woken = threading.Event()

        def wake():
            woken.set()
            os.kill(server, signal.SIGCONT)

        server = _processes.pid("ps", 0)
        numbers = iter(tf.data.Dataset.range(2, 5))
        next(numbers)  # The first one waits for all tasks.
        with clusters.own_executor():
            os.kill(server, signal.SIGSTOP)
            timer = threading.Timer(30.0, wake)
            timer.start()
            try:
                tensors.clear()
                time.sleep(0.1)  # Another thread sends that.
                found = [coordinator.schedule(step).get() for _ in range(3)]
                found.append(next(numbers))
            finally:
                timer.cancel()
                os.kill(server, signal.SIGCONT)
        self.assertFalse(woken.is_set())
        self.assertEqual([int(each) for each in found], [3] * 4)

    def test_3_connections_are_found_and_break(self):
        with tf.device("/job:worker/task:0"):
            tf.constant(1.0) + 1.0
        peers = _peers("worker")
        self.assertEqual(
            clusters.shut_connections_down(peers, lambda _: True), 0
        )
        self.assertEqual(
            clusters.shut_connections_down({("10.9.8.7", 6)}, lambda _: False),
            0,
        )
        self.assertGreaterEqual(
            clusters.shut_connections_down(peers, lambda _: False), 1
        )

    def test_4_errors_name_a_server_that_is_lost(self):
        with tf.device("/job:ps/task:0"):
            variable = tf.Variable(1.0)
        _processes.kill("ps", 0)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                variable.assign_add(1.0)
            except tf.errors.OpError as error:
                self.assertEqual(
                    cluster_errors.server_in(error.message), 0, error.message
                )
                return
        self.fail("the server goes on")

    def test_5_ending_the_coordinator_ends_its_threads(self):
        coordinator = clusters.coordinator_of(_strategy)
        self.assertNotEmpty(_threads_of_coordinator())
        clusters.end_coordinator(coordinator)
        deadline = time.monotonic() + 30
        while _threads_of_coordinator() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEmpty(_threads_of_coordinator())


def _threads_of_coordinator():
    return [t.name for t in threading.enumerate() if "Worker" in t.name]


if __name__ == "__main__":
    absltest.main()
