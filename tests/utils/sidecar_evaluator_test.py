# SPDX-License-Identifier: Apache-2.0
"""tf_ext.utils.SidecarEvaluator: recovery points are evaluated as they come."""

import glob
import importlib
import json
import os
import shutil
import tempfile
from unittest import mock

import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from programs import sidecar_evaluator_program as program
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files
from tf_ext.utils import SidecarEvaluator

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ProcessTest::test_follows_a_training_that_removes_its_points",
        "SidecarEvaluatorTest::test_a_damaged_point",
        "SidecarEvaluatorTest::test_a_point_that_is_removed_while_it_is_read0",
        "SidecarEvaluatorTest::test_ends_after_max_evaluations",
        "SidecarEvaluatorTest::test_writes_summaries_at_the_step_of_the_point",
    ),
]

_STEPS = 4  # of an epoch, at whose end there is a point
_POINTS = 3


class _OnTestEnd(keras.callbacks.Callback):
    """Calls a function after each evaluation, with its number from 1."""

    def __init__(self, action):
        super().__init__()
        self._action = action
        self.evaluations = 0

    def on_test_end(self, logs=None):
        self.evaluations += 1
        self._action(self.evaluations)


class SidecarEvaluatorTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = tempfile.TemporaryDirectory(prefix="tf_ext_points_")
        cls.addClassCleanup(temporary.cleanup)
        cls.recorded = temporary.name
        cls.expected = {}
        model = program.build()
        points = tf_ext.callbacks.TableSnapshot(cls.recorded, keep=99)
        for epoch in range(_POINTS):
            model.fit(
                program.data(),
                epochs=epoch + 1,
                initial_epoch=epoch,
                verbose=0,
                callbacks=[points],
            )
            cls.expected[_STEPS * (epoch + 1)] = model.evaluate(
                program.data(), verbose=0, return_dict=True
            )

    def setUp(self):
        super().setUp()
        self.root = self.directory()

    def publish(self, *numbers):
        """Puts points, which count from 1, where they are looked for."""
        for number in numbers:
            name = os.path.basename(
                point_files.path_of(self.recorded, _STEPS * number)
            )
            source = os.path.join(self.recorded, name)
            path = os.path.join(self.root, name)
            shutil.copytree(
                source, path, ignore=shutil.ignore_patterns(point_files.NAME)
            )
            shutil.copy(os.path.join(source, point_files.NAME), path)

    def remove(self, *numbers):
        for number in numbers:
            shutil.rmtree(point_files.path_of(self.root, _STEPS * number))

    def evaluator(self, build=program.build, **options):
        options = {"every": 0.01, "timeout_seconds": 0.0, **options}
        return SidecarEvaluator(build(), program.data(), self.root, **options)

    def assert_evaluated(self, found, *numbers):
        steps = [_STEPS * number for number in numbers]
        self.assertEqual(list(found), steps)
        for step in steps:
            self.assertAllClose(found[step], self.expected[step], 0, 1e-6)

    def test_evaluates_each_point_as_the_training_program_does(self):
        aucs = [logs["auc"] for logs in self.expected.values()]
        self.assertLen(set(aucs), _POINTS)
        self.publish(1)
        later = _OnTestEnd(lambda n: n < _POINTS and self.publish(n + 1))
        found = self.evaluator(callbacks=[later]).start()
        self.assert_evaluated(found, 1, 2, 3)

    def test_takes_the_newest_point(self):
        self.publish(1, 2, 3)
        evaluator = self.evaluator()
        self.assert_evaluated(evaluator.start(), 3)
        self.assertEqual(evaluator.start(), {})

    def test_needs_no_slots(self):
        def build():
            with tf_ext.serving.weights_only():
                return program.build()

        self.publish(1, 2)
        self.assert_evaluated(self.evaluator(build).start(), 2)

    def test_ends_after_max_evaluations(self):
        self.publish(1)
        later = _OnTestEnd(lambda n: n < _POINTS and self.publish(n + 1))
        evaluator = self.evaluator(
            callbacks=[later], max_evaluations=2, timeout_seconds=None
        )
        self.assert_evaluated(evaluator.start(), 1, 2)

    def test_waits_for_the_first_point(self):
        waits = []

        def wait(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                self.publish(1)

        with mock.patch("time.sleep", wait):
            found = self.evaluator(
                timeout_seconds=None, every=7.0, max_evaluations=1
            ).start()
        self.assert_evaluated(found, 1)
        self.assertEqual(waits, [7.0] * 3)

    def test_without_any_point(self):
        os.mkdir(point_files.path_of(self.root, 4))  # It is being written.
        with self.assertRaisesRegex(
            TimeoutError,
            f"no recovery point to evaluate in {self.root} for 0.0 s",
        ):
            self.evaluator().start()

    def _replacing(self, original):
        """A function that first replaces point 1, once, by point 2."""

        def call(*args):
            if os.path.exists(point_files.path_of(self.root, _STEPS)):
                self.remove(1)
                self.publish(2)
            return original(*args)

        return call

    @parameterized.parameters("read_arrays", "read_manifest", "_Change.apply")
    def test_a_point_that_is_removed_while_it_is_read(self, function):
        self.publish(1)
        module = importlib.import_module("tf_ext.serving.following")
        *class_name, name = function.split(".")
        owner = getattr(module, *class_name) if class_name else module
        call = self._replacing(getattr(owner, name))
        evaluator = self.evaluator(timeout_seconds=None, max_evaluations=1)
        with (
            mock.patch.object(owner, name, call),
            self.assertLogs("tf_ext", "WARNING") as logs,
        ):
            found = evaluator.start()
        self.assertLen(logs.output, 1)
        self.assertIn("A recovery point cannot be evaluated", logs.output[0])
        self.assert_evaluated(found, 2)

    def test_a_damaged_point(self):
        self.publish(1, 2)
        file = os.path.join(
            point_files.path_of(self.root, 2 * _STEPS), point_files.NAME
        )
        with open(file, "r+b") as opened:
            opened.truncate(100)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.assert_evaluated(self.evaluator().start(), 1)
        self.assertLen(logs.output, 1)
        self.assertIn(f"{file} is damaged", logs.output[0])

    def test_another_model_is_refused(self):
        self.publish(1)
        other = small.functional(small.table("adam"))
        with self.assertRaisesRegex(ValueError, "variable model/.* the shape"):
            self.evaluator(lambda: small.compiled(other)).start()

    def test_writes_summaries_at_the_step_of_the_point(self):
        folder = self.directory()
        board = keras.callbacks.TensorBoard(folder, write_graph=False)
        self.publish(1)
        later = _OnTestEnd(lambda n: n < _POINTS and self.publish(n + 1))
        found = self.evaluator(callbacks=[board, later]).start()
        written = {}
        for path in glob.glob(f"{folder}/validation/*"):
            for event in tf.compat.v1.train.summary_iterator(path):
                for value in event.summary.value:
                    if value.tag == "evaluation_auc_vs_iterations":
                        number = float(tf.make_ndarray(value.tensor))
                        written[event.step] = number
        self.assertCountEqual(found, written)
        for step, logs in found.items():
            self.assertAllClose(written[step], logs["auc"])

    @parameterized.parameters(
        ({"every": 0}, "`every` of SidecarEvaluator must be a positive"),
        ({"steps": 0}, "`steps` of SidecarEvaluator must be an integer of at"),
        ({"max_evaluations": 1.5}, "`max_evaluations` of .*=1.5"),
        ({"timeout_seconds": -1}, "`timeout_seconds` of .*or None. .*=-1"),
        (
            {"build": lambda: small.functional(small.table())},
            "`model` of SidecarEvaluator must be a built and compiled model",
        ),
        (
            {"build": lambda: small.compiled(small.Subclassed(small.table()))},
            "`model` of SidecarEvaluator must be a built and compiled model",
        ),
        (
            {"build": lambda: keras.Sequential([keras.Input([1])])},
            "`model` of SidecarEvaluator must be a built model with tables",
        ),
    )
    def test_bad_arguments(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            self.evaluator(**options)


class ProcessTest(TestCase):
    def test_follows_a_training_that_removes_its_points(self):
        directory = self.directory()
        config = {
            "cluster": {"worker": ["a:1"], "evaluator": ["b:1"]},
            "task": {"type": "evaluator", "index": 0},
        }
        evaluator = self.enterContext(
            processes.Program(
                "sidecar_evaluator_program.py",
                directory,
                5,
                TF_CONFIG=json.dumps(config),
            )
        )
        model = program.build()
        expected = {}

        class Evaluate(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                expected[batch + 1] = self.model.evaluate(
                    program.data(), verbose=0, return_dict=True
                )
                if evaluator.has_ended():
                    self.model.stop_training = True

        points = tf_ext.callbacks.TableSnapshot(
            directory, steps=1, keep=1, incremental=True
        )
        model.fit(
            program.data().repeat(),
            steps_per_epoch=100_000,
            verbose=0,
            callbacks=[points, Evaluate()],
        )
        found = json.loads(evaluator.wait().splitlines()[-1])
        self.assertLen(found, 5)
        for step, logs in found.items():
            self.assertAllClose(logs, expected[int(step)], 0, 1e-6)


if __name__ == "__main__":
    tf.test.main()
