# SPDX-License-Identifier: Apache-2.0
"""Recovery points that become durable while training goes on."""

import threading
from unittest import mock

import numpy as np
import pytest
from models import small_models as small
from models.model_building import generator
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.callbacks import table_snapshot
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.recovery import beside
from tf_ext.recovery import files as point_files
from tf_ext.snapshot import open_snapshot
from tf_ext.tables.saving.snapshot_save import Save

pytestmark = [pytest.mark.both_kerases(slow=True)]

_STEPS = 12
_WAIT_SECONDS = 60


class Steps(keras.callbacks.Callback):
    """Notes what the model is after each step, and does what a test says.

    Points begin after that, so the rest comes before the next step.

    Args:
      directory: string, of points.
      actions: `{step: function}`, but not of the last step.
    """

    def __init__(self, directory, actions):
        super().__init__()
        self._directory = directory
        self._actions = actions
        self.states = {}
        self.points = {}

    def on_train_batch_end(self, batch, logs=None):
        self.states[batch + 1] = state_of(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        self.points[batch] = steps_of(self._directory)
        self._actions.get(batch, lambda: None)()


def state_of(model):
    """What a point holds of the model."""
    return (
        contents(model.tables[0]),
        [np.array(weights).tolist() for weights in model.get_weights()],
    )


def steps_of(directory):
    """The steps of complete points."""
    points = point_files.list_points(directory)
    return [point_files.read_point(path).step for path in points]


class PointsBesideTrainingTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()
        self.go_on = threading.Event()
        self.addCleanup(self.go_on.set)
        self.begun = threading.Event()

    def model(self):
        return small.compiled(small.functional(small.table()))

    def train(self, actions, model=None, batches=_STEPS, **options):
        """Trains with a TableSnapshot; returns the model and its Steps."""
        model = model or self.model()
        options = {"keep": 99, "incremental": True} | options
        steps = Steps(self.root, actions)
        features, labels = small.batch(generator(self), 4 * batches)
        snapshot = tf_ext.callbacks.TableSnapshot(self.root, **options)
        self.snapshot = snapshot
        model.fit(
            features,
            labels,
            batch_size=4,
            shuffle=False,
            verbose=0,
            callbacks=[snapshot, steps],
        )
        return model, steps

    def waiting(self, function):
        """A function that begins only when `go_on` is set."""

        def wait(*args):
            self.begun.set()
            self.go_on.wait(_WAIT_SECONDS)
            return function(*args)

        return wait

    def wait_until_begun(self):
        self.assertTrue(self.begun.wait(_WAIT_SECONDS))

    def wait_until_ended(self):
        """Waits for what goes on beside training."""
        self.snapshot._beside._task._thread.join(_WAIT_SECONDS)

    def slow_sync(self):
        return mock.patch.object(
            snapshot_ops, "sync_files", self.waiting(snapshot_ops.sync_files)
        )

    def assert_holds(self, step, state):
        """Asserts that a point restores what the model was."""
        model = self.model()
        path = point_files.path_of(self.root, step)
        tf_ext.callbacks.warm_start(model, path)
        self.assertEqual(state_of(model), state)

    def test_a_point_is_of_the_step_in_which_it_began(self):
        for incremental in (False, True):
            self.root = self.directory()
            self.go_on.clear()
            with self.slow_sync():
                _, steps = self.train(
                    {7: self.go_on.set, 8: self.wait_until_ended},
                    seconds=1e-9,
                    incremental=incremental,
                )
            self.assertEqual(steps.points[7], [])
            found = steps_of(self.root)
            # The second began after the first was complete.
            self.assertEqual(found[:2], [1, 9])
            self.assertEqual(found[-1], _STEPS)
            for step in found:
                self.assert_holds(step, steps.states[step])

    def test_steps_wait_for_the_point_before(self):
        entered = []

        def sync(*args):
            entered.append(steps_of(self.root))
            threading.Event().wait(0.05)
            return write(*args)

        write = snapshot_ops.sync_files
        with mock.patch.object(snapshot_ops, "sync_files", sync):
            _, steps = self.train({}, steps=2)
        wanted = list(range(2, _STEPS + 1, 2))
        self.assertEqual(steps_of(self.root), wanted)
        self.assertEqual(entered, [wanted[:n] for n in range(len(wanted))])
        for step in wanted:
            self.assert_holds(step, steps.states[step])

    def test_rows_that_change_while_all_are_written(self):
        write = Save.write_own_rows

        def slow(save):
            if save._path.endswith("base"):
                bases.append(save._path)
                self.waiting(write)(save)
            else:
                write(save)

        def go_on():
            # From now on, steps do not wait for a point that is under way.
            self.snapshot.steps, self.snapshot.seconds = None, 1e-9

        def erase():
            model.tables[0].erase(range(0, 20, 3))

        bases, model = [], self.model()
        with (
            mock.patch.object(table_snapshot, "_MAX_DELTAS", 1),
            mock.patch.object(Save, "write_own_rows", slow),
        ):
            _, steps = self.train(
                {
                    3: go_on,
                    4: self.wait_until_begun,
                    6: erase,
                    8: erase,
                    16: self.go_on.set,
                },
                model,
                batches=40,
                steps=1,
            )
        # None began before all rows were there.
        self.assertEqual(steps.points[16], [1, 2, 3])
        found = steps_of(self.root)
        after = found[3]
        self.assertGreater(after, 16)
        chain = open_snapshot(
            point_files.table_path(point_files.path_of(self.root, after), 0)
        ).chain
        self.assertEqual([path for path, _ in chain][:1], bases[:1])
        self.assertLen(chain, 2)
        for step in found:
            self.assert_holds(step, steps.states[step])

    def test_an_error_comes_after_a_later_step(self):
        def fail(*args):
            self.begun.set()
            raise OSError(28, "No space left on device")

        model = self.model()
        reached = []
        last = _STEPS - 1
        actions = {n: self.wait_until_begun for n in range(5, last)}
        actions[last] = lambda: reached.append(True)
        with mock.patch.object(snapshot_ops, "sync_files", fail):
            with self.assertRaisesRegex(OSError, "No space left"):
                self.train(actions, model, steps=5)
        self.assertEmpty(reached)
        self.assertEmpty(steps_of(self.root))
        self.assertEqual(model.tables[0].rows.chain.saving, "")
        # Nothing that had changed is missing later.
        _, steps = self.train({}, model, steps=5)
        for step in (5, 10, _STEPS):
            self.assert_holds(step, steps.states[step])

    def test_an_interrupt_does_not_wait_for_a_disk_that_hangs(self):
        def interrupt():
            self.wait_until_begun()
            raise KeyboardInterrupt

        model = self.model()
        with (
            self.slow_sync(),
            mock.patch.object(beside, "_PATIENCE_SECONDS", 0.01),
        ):
            with self.assertRaises(KeyboardInterrupt):
                self.train({7: interrupt}, model, steps=5)
            self.assertEmpty(steps_of(self.root))
        # The point that hangs takes nothing from those that follow.
        first, self.root = self.root, self.directory()
        _, steps = self.train({9: self.go_on.set}, model, steps=5)
        for step in (5, 10, _STEPS):
            self.assert_holds(step, steps.states[step])
        self.assertEmpty(steps_of(first))

    def test_an_interrupt_waits_for_a_point_that_is_nearly_there(self):
        def interrupt():
            self.wait_until_begun()
            threading.Timer(0.1, self.go_on.set).start()
            raise KeyboardInterrupt

        with self.slow_sync(), self.assertRaises(KeyboardInterrupt):
            self.train({7: interrupt}, steps=5)
        self.assertEqual(steps_of(self.root), [5])
