# SPDX-License-Identifier: Apache-2.0
"""Steps that run a second time change no row twice."""

import contextlib
import tempfile
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models import id_counting_models as models

import tf_ext
from tf_ext._keras import keras
from tf_ext.training import feeds
from tf_ext.training.parameter_servers import shares, worker_share

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "AgainTest::test_each_row_once_overlapping",
        "StepLostTest::*",
    ),
]

setUpModule = util.shared

_IDS = 330
_schedule = feeds.schedule


def _ids(ids=_IDS):
    ids = np.arange(ids)
    return tf.data.Dataset.from_tensor_slices(
        ({"user": ids}, np.zeros([len(ids), 1]))
    ).batch(16)


def _twice(coordinator, *arguments):
    """Has two workers run a step, as if one of them had been lost."""
    _schedule(coordinator, *arguments)
    return _schedule(coordinator, *arguments)


def _update(model, x):
    """A push of its own."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    model.optimizer.apply_gradients(zip(gradients, variables))


class AgainTest(parameterized.TestCase, tf.test.TestCase):
    def _fit(self, model, data, **options):
        with mock.patch.object(feeds, "schedule", _twice):
            model.fit(data, verbose=0, **options)
        tf.distribute.coordinator.ClusterCoordinator(
            util.shared().strategy
        ).join()

    def _model(self, **options):
        with util.shared().strategy.scope():
            return models.counting_model(**options)

    @parameterized.named_parameters(
        ("one_by_one", 1, {}),
        ("in_executions", 4, {}),
        ("in_loops", 17, {}),
        ("overlapping", 4, {"overlap_steps": True}),
    )
    def test_each_row_once(self, execution, options):
        model, table = self._model(steps_per_execution=execution)
        for epochs in (1, 2):
            self._fit(model, _ids(), **options)
            self.assertEqual(
                models.counts(table), dict.fromkeys(range(_IDS), epochs)
            )

    def test_workers_that_read(self):
        model, table = self._model(steps_per_execution=2)
        # Each worker's next batch has the same ids.
        self._fit(model, lambda _: _ids(16).repeat(), steps_per_epoch=40)
        self.assertEqual(models.counts(table), dict.fromkeys(range(16), 40))

    def test_several_pushes_of_a_step(self):
        class Pushes(tf_ext.Model):
            def train_step(self, data):
                x, _ = data
                _update(self, x)
                _update(self, x)
                return {"loss": tf.zeros([])}

        with util.shared().strategy.scope():
            model, table = models.counting_model(of=Pushes)
        self._fit(model, _ids())
        self.assertEqual(models.counts(table), dict.fromkeys(range(_IDS), 2))

    def test_a_push_in_a_loop_is_made_each_time(self):
        class Loops(tf_ext.Model):
            def train_step(self, data):
                x, _ = data

                @tf.function
                def update():
                    _update(self, x)

                update()
                update()
                tf.while_loop(
                    lambda index: index < 3,
                    lambda index: (update(), (index + 1,))[1],
                    (0,),
                )
                return {"loss": tf.zeros([])}

        with util.shared().strategy.scope():
            model, table = models.counting_model(of=Loops)
        model.fit(_ids(), verbose=0)
        self.assertEqual(models.counts(table), dict.fromkeys(range(_IDS), 5))

    def test_callbacks_that_train_in_between(self):
        model, table = self._model()
        other, _ = self._model(table=table)

        class Trains(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 5:
                    other.fit(_ids(64), verbose=0)

        self._fit(model, _ids(), callbacks=[Trains()])
        self.assertEqual(
            models.counts(table),
            {user: 1 + (user < 64) for user in range(_IDS)},
        )


class StepLostTest(tf.test.TestCase):
    """A step that fails as if its worker had been lost with it."""

    def _fit(self, **options):
        run, fails = shares.ShareFeed._run, iter([True])

        def run_or_fail(*arguments):
            if next(fails, False):
                raise tf.errors.UnavailableError(
                    None, None, "Socket closed, /job:worker/task:0"
                )
            return run(*arguments)

        with util.shared().strategy.scope():
            model, table = models.counting_model()
        with mock.patch.object(shares.ShareFeed, "_run", run_or_fail):
            model.fit(
                lambda context: _ids().shard(2, context.input_pipeline_id),
                verbose=0,
                **options,
            )
        return models.counts(table)

    def test_runs_again(self):
        self.assertEqual(self._fit(), dict.fromkeys(range(_IDS), 1))

    @contextlib.contextmanager
    def _losing(self, and_then):
        """A step is lost after servers have its updates; yields the feeds."""
        run, epoch = worker_share.Share.run, shares.ShareFeed.epoch
        fails, feeds_begun = iter([False, False, True]), []

        def run_and_fail(share, function):
            if share.is_step_lost:
                time.sleep(1.0)  # As its worker is away.
            if not next(fails, False):
                return run(share, function)
            with mock.patch.object(share, "_end_step"):
                run(share, function)
            share.batches -= 1
            and_then()
            raise tf.errors.UnavailableError(
                None, None, "Socket closed, /job:worker/task:0"
            )

        def begin(feed, first_step):
            feeds_begun.append(feed)
            return epoch(feed, first_step)

        with (
            mock.patch.object(worker_share.Share, "run", run_and_fail),
            mock.patch.object(shares.ShareFeed, "epoch", begin),
        ):
            yield feeds_begun

    def test_no_point_has_a_part_of_it(self):
        saved = []

        class Points(tf_ext.callbacks.TableSnapshot):
            def _save(self):
                saved.append(begun[0].has_lost_steps())
                super()._save()

        def wait():
            """Meanwhile the other worker makes all that has begun."""
            time.sleep(0.5)

        points = Points(tempfile.mkdtemp(), steps=1)
        with self._losing(wait) as begun:
            self.assertEqual(
                self._fit(callbacks=[points]), dict.fromkeys(range(_IDS), 1)
            )
        self.assertGreater(len(saved), 1)
        self.assertNotIn(True, saved)

    def test_a_stop_waits_for_it(self):
        at_end = []

        class Stops(keras.callbacks.Callback):
            def stop(self):
                self.model.stop_training = True
                time.sleep(0.5)  # Nothing is under way but the step.

            def on_epoch_end(self, epoch, logs=None):
                at_end.append(begun[0].has_lost_steps())

        stops = Stops()
        with self._losing(stops.stop) as begun:
            counts = self._fit(callbacks=[stops])
        self.assertEqual(at_end, [False])
        self.assertLess(len(counts), _IDS)
        self.assertEqual({*counts.values()}, {1})

    def test_refused(self):
        with self.assertRaisesRegex(
            ValueError, "`retry_steps` of fit must be True or False.*None"
        ):
            self._fit(retry_steps=None)

    def test_fails(self):
        with self.assertRaisesRegex(
            tf_ext.distribute.StepLostError,
            "Lost workers: /job:worker/task:[01] at .*retry_steps=False",
        ):
            self._fit(retry_steps=False)
        self.test_runs_again()


if __name__ == "__main__":
    tf.test.main()
