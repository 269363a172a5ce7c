# SPDX-License-Identifier: Apache-2.0
"""Finite datasets that workers read, of a function, without steps."""

import itertools
import threading
import time
import uuid
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models.model_building import id_column, number, rows_of
from saving_util import TestCase

import tf_ext
from tf_ext._compat import clusters
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.recovery import files as point_files
from tf_ext.training.parameter_servers import inflight
from tf_ext.training.parameter_servers.shares import ShareFeed

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "SharesTest::test_each_sample_once_an_epoch_uneven",
    ),
]

_CLUSTER = util.Cluster()
_BATCH = 4


def setUpModule():
    _CLUSTER.start()


def tearDownModule():
    _CLUSTER.stop()


class _Recorder(keras.callbacks.Callback):
    """Writes down the batches of the hooks, and acts at the end of one."""

    def __init__(self, at=None, action=None):
        super().__init__()
        self.begun, self.ended, self.tested = [], [], []
        self._at, self._action = at, action

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(batch)
        if batch == self._at:
            self._at = None
            self._action()

    def on_test_batch_end(self, batch, logs=None):
        self.tested.append(batch)


def _counting(strategy, **options):
    """A model whose rows count how often samples were trained on."""
    with strategy.scope():
        table = tf_ext.SparseTable(
            "counts",
            1,
            tf_ext.optimizers.SparseSGD(),
            "zeros",
            statistics=["show"],
        )
        inputs = {"id": keras.Input((), dtype="int64", name="id")}
        rows = tf_ext.layers.EmbeddingFeatures([id_column("id")], table)(inputs)
        model = tf_ext.Model(inputs, rows)
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)),
            "mse",
            metrics=[keras.metrics.MeanSquaredError(name="squares")],
            **options,
        )
    return model


def _samples(ids):
    """A dataset of `(id, id as label)`."""
    return tf.data.Dataset.from_tensor_slices(np.array(ids, np.int64)).map(
        lambda i: ({"id": i}, tf.cast([i], tf.float32))
    )


def _in_shares(*lengths, hashed=False):
    """A function whose datasets have consecutive ids, so many a worker.

    Hashed ones are made by the object that tf_keras has for it.
    """
    ends = np.cumsum(lengths)

    def make(context):
        worker = context.input_pipeline_id
        assert context.num_input_pipelines == len(lengths)
        ids = range(ends[worker] - lengths[worker], ends[worker])
        data = _samples(ids).shuffle(100).batch(_BATCH)
        if hashed:
            data = tf_ext.data.hash_columns(data, [id_column("id")])
        return data

    if hashed and not IS_KERAS_3:
        return keras.utils.experimental.DatasetCreator(make)
    return make


def _shows(model):
    """How often each sample was trained on: `{id: count}`."""
    rows = rows_of(model.tables[0], "show")
    return {sign: int(values[0]) for sign, values in rows.items()}


class SharesTest(TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("uneven", 1, (45, 14), [*range(12 + 4)], False),
        ("one_of_them_empty", 1, (0, 9), [*range(3)], True),
        ("in_executions", 4, (53, 22), None, True),
        ("in_loops", 17, (77, 6), None, False),
    )
    def test_each_sample_once_an_epoch(self, execution, lengths, ended, hashed):
        model = _counting(_CLUSTER.strategy, steps_per_execution=execution)
        recorder = _Recorder()
        history = model.fit(
            _in_shares(*lengths, hashed=hashed),
            epochs=3,
            callbacks=[recorder],
            verbose=0,
        ).history
        samples = sum(lengths)
        self.assertEqual(_shows(model), dict.fromkeys(range(samples), 3))
        batches = sum(-(-length // _BATCH) for length in lengths)
        self.assertEqual(number(model.optimizer.iterations), 3 * batches)
        self.assertAllClose(
            history["squares"], [np.mean(np.arange(samples) ** 2.0)] * 3
        )
        if ended:
            self.assertEqual(recorder.ended, 3 * ended)
        else:
            executions = sum(
                -(-length // (_BATCH * execution)) for length in lengths
            )
            self.assertLen(recorder.ended, 3 * executions)
            self.assertEqual(recorder.ended.count(batches - 1), 3)
        # Steps of unknown number: those that are in flight, of which there are
        # two for each worker, may find no data.
        self.assertGreaterEqual(len(recorder.begun), len(recorder.ended))
        self.assertLessEqual(len(recorder.begun), len(recorder.ended) + 3 * 4)

    def test_a_worker_whose_data_have_ended_takes_no_steps(self):
        model = _counting(_CLUSTER.strategy)
        asked = mock.patch.object(
            ShareFeed, "sent_again", autospec=True, return_value=[]
        )
        with asked as found_no_data:
            recorder = _Recorder()
            model.fit(_in_shares(4, 400), callbacks=[recorder], verbose=0)
        self.assertLen(recorder.ended, 101)
        # What is in flight when the data of all have ended.
        self.assertLessEqual(found_no_data.call_count, 4)

    def test_evaluate(self):
        model = _counting(_CLUSTER.strategy)
        recorder = _Recorder()
        logs = model.evaluate(
            _in_shares(31, 5),
            callbacks=[recorder],
            return_dict=True,
            verbose=0,
        )
        self.assertAllClose(logs["squares"], np.mean(np.arange(36) ** 2.0))
        self.assertEqual(recorder.tested, [*range(8 + 2)])
        self.assertFalse(any(_shows(model).values()))
        history = model.fit(
            _in_shares(10, 10),
            validation_data=_in_shares(31, 5),
            epochs=2,
            verbose=0,
        ).history
        self.assertAllClose(history["val_squares"], [logs["squares"]] * 2)

    def test_all_workers_take_steps_after_it(self):
        model = _counting(_CLUSTER.strategy)
        with self.assertRaisesRegex(ValueError, "must have at least one batch"):
            model.fit(_in_shares(0, 0), verbose=0)

        # Worker 0 has ended when this is raised, or the training is stopped.
        def fail():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            model.fit(
                _in_shares(4, 400), callbacks=[_Recorder(20, fail)], verbose=0
            )
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            _CLUSTER.strategy
        )
        parking = clusters.separate_workers(coordinator)
        self.assertEmpty(parking._parked)
        stopped = _Recorder(20, lambda: setattr(model, "stop_training", True))
        model.fit(_in_shares(4, 400), callbacks=[stopped], verbose=0)
        # On a busy machine, others are under way then.
        self.assertLess(len(stopped.ended), 300)

        def damaged(context):
            bad = context.input_pipeline_id
            data = _in_shares(40, 40)(context)
            return data.map(
                lambda x, y: tf.debugging.check_numerics(y / (1 - bad), "y")
            ).map(lambda y: ({"id": tf.cast(y[:, 0], tf.int64)}, y))

        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Inf|NaN"):
            model.fit(damaged, verbose=0)
        with self.assertRaisesRegex(
            ValueError, "same element_spec on all workers.*worker 1"
        ):
            model.fit(
                lambda c: _samples(range(8)).batch(
                    4, drop_remainder=c.input_pipeline_id == 1
                ),
                verbose=0,
            )
        before = number(model.optimizer.iterations)
        model.fit(_samples(range(40)).batch(4), verbose=0)
        self.assertEqual(number(model.optimizer.iterations) - before, 10)

    def test_a_recovery_point_within_an_epoch(self):
        directory = self.directory()
        # As in a program that does not set one; that of tests would be kept.
        tf.random.set_seed(None)

        def train(at=None):
            model = _counting(_CLUSTER.strategy)
            points = tf_ext.callbacks.TableSnapshot(directory, steps=6, keep=9)
            recorder = _Recorder(at, fail)
            model.fit(
                _in_shares(30, 30),
                epochs=2,
                max_inflight_steps=1,
                callbacks=[points, recorder],
                verbose=0,
            )
            return model, recorder

        def fail():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            train(at=7)
        self.assertLen(point_files.list_points(directory), 1)
        model, recorder = train()
        self.assertEqual(recorder.ended, [*range(6, 16), *range(16)])
        self.assertEqual(number(model.optimizer.iterations), 2 * 16)
        self.assertEqual(_shows(model), dict.fromkeys(range(60), 2))
        points = point_files.list_points(directory)
        self.assertEqual(
            [int(point[-10:]) for point in points], [6, 12, 18, 24, 30, 32]
        )
        self._check_other_positions(points[0])

    def _check_other_positions(self, point):
        """Those that a feed cannot go on from, and the end of an epoch."""
        shares = point_files.read_point(point).shares
        self.assertEqual(sum(shares["batches"]), 6)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            _CLUSTER.strategy
        )
        feed = ShareFeed(coordinator, _in_shares(30, 30))
        feed.restore({**shares, "batches": [1, 2, 3]})
        with self.assertLogs("tensorflow", "WARNING") as logs:
            self.assertEqual(feed.go_on(0, 6), (0, 6))
        self.assertRegex(
            "".join(logs.output), "datasets of epoch 0 start again"
        )
        self.assertEqual(feed.state()["epoch"], -1)
        feed.restore({**shares, "batches": [1, 2, 3], "ended": [0, 1, 2]})
        self.assertEqual(feed.go_on(0, 6), (1, 0))
        self.assertEqual(feed.state()["epoch"], -1)
        feed.restore({**shares, "ended": [0, 1], "epoch": 3})
        self.assertEqual(feed.go_on(5, 6), (6, 0))
        self.assertEqual(feed.state()["epoch"], 3)
        feed.restore({**shares, "epoch": 3})
        self.assertEqual(feed.go_on(5, 0), (5, 0))
        self.assertEqual(feed.state()["epoch"], 3)
        self.assertEqual({share.batches for share in feed._shares}, {0})
        self.assertEqual(feed.go_on(5, 6), (5, 6))
        self.assertEqual(feed.state()["epoch"], 2)
        next(feed.epoch())
        self.assertEqual(feed.state(), {**shares, "epoch": 3})
        # Of data that differ when they are read again.
        feed = ShareFeed(coordinator, _in_shares(30, 30))
        feed._elsewhere.add(0)
        feed.restore(shares)
        with self.assertLogs("tensorflow", "WARNING"):
            self.assertEqual(feed.go_on(0, 6), (0, 6))
        self.assertEqual({share.batches for share in feed._shares}, {0})


class LostWorkerTest(TestCase):
    def setUp(self):
        super().setUp()
        self._restart = None

    def _start_again(self):
        self._restart = threading.Thread(
            target=_CLUSTER.processes.restart, args=("worker", 0)
        )
        self._restart.start()

    def _restarting(self, step, has_trained=lambda: True):
        """A callback that has worker 0 killed, and started again."""

        def restart():
            # On a busy machine its first step may take longer than all others.
            while not has_trained():
                time.sleep(0.1)
            _CLUSTER.processes.kill("worker", 0)
            self._start_again()

        return _Recorder(step, restart)

    def tearDown(self):
        self._restart.join()
        super().tearDown()

    @pytest.mark.slow
    def test_a_worker_that_does_not_come_back(self):
        model = _counting(_CLUSTER.strategy)

        def kill():
            _CLUSTER.processes.kill("worker", 0)

        with (
            mock.patch.object(inflight, "_GIVE_UP_SECONDS", 6.0),
            self.assertRaisesRegex(
                TimeoutError, "no worker that has data left.*worker/task:0"
            ),
        ):
            model.fit(
                _in_shares(400, 200), callbacks=[_Recorder(30, kill)], verbose=0
            )
        self._start_again()
        shows = _shows(model)
        self.assertEqual({shows[sample] for sample in range(400, 600)}, {1})

    @pytest.mark.slow
    def test_its_share_goes_on(self):
        model = _counting(_CLUSTER.strategy)
        data = _in_shares(400, 200)
        restarting = self._restarting(
            30, lambda: any(sample < 400 for sample in _shows(model))
        )
        model.fit(data, callbacks=[restarting], verbose=0)
        self.assertEqual(_shows(model), dict.fromkeys(range(600), 1))
        # A step that was under way may have counted.
        iterations = number(model.optimizer.iterations)
        self.assertBetween(iterations, 150, 151)
        model.fit(data, verbose=0)
        self.assertEqual(_shows(model), dict.fromkeys(range(600), 2))

    @pytest.mark.slow
    def test_a_share_that_has_ended(self):
        model = _counting(_CLUSTER.strategy)
        model.fit(
            _in_shares(4, 400),
            callbacks=[self._restarting(40)],
            epochs=2,
            verbose=0,
        )
        self.assertEqual(_shows(model), dict.fromkeys(range(404), 2))

    @pytest.mark.slow
    def test_dynamic_sharding_by_tf_data_service(self):
        service = tf.data.experimental.service
        dispatcher = service.DispatchServer()
        address = dispatcher.target.removeprefix("grpc://")
        config = service.WorkerConfig(dispatcher_address=address)
        readers = [service.WorkerServer(config) for _ in range(2)]
        job = str(uuid.uuid4())

        def make(context):
            del context
            return (
                _samples(range(800))
                .batch(_BATCH)
                .apply(
                    service.distribute(
                        service.ShardingPolicy.DYNAMIC,
                        dispatcher.target,
                        job_name=job,
                    )
                )
            )

        model = _counting(_CLUSTER.strategy)
        shows = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: shows.append(_shows(model))
        )
        # In the second of four epochs.
        restarting = self._restarting(60)
        second = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: setattr(
                restarting, "_at", 60 if epoch == 1 else None
            )
        )
        model.fit(
            make, epochs=4, callbacks=[note, second, restarting], verbose=0
        )
        del readers
        self.assertEqual(shows[0], dict.fromkeys(range(800), 1))
        # What the lost worker had been sent is not sent again.
        counts = set(shows[1].values())
        self.assertContainsSubset(counts, {1, 2})
        self.assertBetween(sum(shows[1].values()), 1100, 1600)
        for before, after in itertools.pairwise(shows[1:]):
            self.assertEqual(
                after, {sample: n + 1 for sample, n in before.items()}
            )


if __name__ == "__main__":
    tf.test.main()
