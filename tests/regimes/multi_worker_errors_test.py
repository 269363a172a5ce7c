# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers agree on errors, and on models and data of all kinds."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import multi_worker_clock_cases as clocks
from cases import multi_worker_difference_cases as differences
from cases import multi_worker_error_cases as cases
from cases import multi_worker_model_cases as models
from cases import multi_worker_notice_cases as notices
from cases import multi_worker_point_cases as points
from clusters.case_workers import alone, merge_rows, shared_workers

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ArgumentTest::test_*",
        "AsOneProcessTest::test_as_one_process_last_batches",
        "ClockTest::test_all_take_that_of_the_first_trained_by_clocks",
        "DifferentProgramsTest::*_rule",
        "DifferentProgramsTest::test_names_what_differs_dim",
        "DifferentProgramsTest::test_names_what_differs_samples_of_arrays",
        "DifferentProgramsTest::test_names_what_differs_schedule",
        "InputErrorTest::test_training_goes_on",
        "PointsTest::test_the_last_point_has_the_rows_of_all",
    ),
]

_WORKERS = 3
_CASES = shared_workers(_WORKERS)


# tf_keras's LossScaleOptimizer counts steps that it leaves out, too.
_COUNTS_SKIPPED = {cases.loss_scaling_skips} if not IS_KERAS_3 else set()

_FIELDS = ("weights", "accumulator")


def _rows(results, time):
    return merge_rows([{key: r[time][key] for key in _FIELDS} for r in results])


class NonfiniteTest(parameterized.TestCase, tf.test.TestCase):
    """A gradient that is not finite, on the last worker alone."""

    def _assert_nothing_changed(self, case):
        for result in _CASES[case]:
            before, after = result["before"], result["after"]
            self.assertEqual(before["iterations"], 1)
            self.assertEqual(after["iterations"], 1 + (case in _COUNTS_SKIPPED))
            for one, other in zip(before["variables"], after["variables"]):
                self.assertAllEqual(one, other)
            for field in _FIELDS:
                self.assertNotEmpty(before[field])
                self.assertEqual(before[field].keys(), after[field].keys())
                for sign, row in before[field].items():
                    self.assertAllEqual(row, after[field][sign])

    def _assert_goes_on(self, case):
        results = _CASES[case]
        before, later = _rows(results, "before"), _rows(results, "later")
        for field in _FIELDS:
            for sign, row in before[field].items():
                self.assertTrue(np.all(np.isfinite(later[field][sign])))
                self.assertFalse(np.array_equal(row, later[field][sign]))
        for result in results:
            self.assertIsNone(result["before"]["error"])
            self.assertIsNone(result["later"]["error"])
            self.assertEqual(
                result["later"]["iterations"], 2 + (case in _COUNTS_SKIPPED)
            )
            for one, other in zip(
                result["later"]["variables"], results[0]["later"]["variables"]
            ):
                self.assertAllEqual(one, other)

    @parameterized.named_parameters(
        ("", cases.nonfinite_raises),
        ("with_clipping", cases.nonfinite_raises_with_clipping),
    )
    def test_raises_on_all(self, case):
        for result in _CASES[case]:
            self.assertRegex(
                result["after"]["error"],
                "InvalidArgumentError: .*\\s*Gradients of table 'sum', or of "
                "one that is updated with it, are not finite on at least one "
                "worker; no table was changed.",
            )
        self._assert_nothing_changed(case)
        self._assert_goes_on(case)

    @parameterized.named_parameters(
        ("by_argument", cases.nonfinite_skips),
        ("by_loss_scaling", cases.loss_scaling_skips),
    )
    def test_skips_on_all(self, case):
        for result in _CASES[case]:
            self.assertIsNone(result["after"]["error"])
        self._assert_nothing_changed(case)
        self._assert_goes_on(case)

    def test_loss_scale_falls_on_all(self):
        for result in _CASES[cases.loss_scaling_skips]:
            scales = [
                result[time]["other"] for time in ("before", "after", "later")
            ]
            self.assertEqual(scales, [[1024.0], [512.0], [512.0]])


class ClockTest(parameterized.TestCase):
    """Workers whose clocks are hours apart."""

    @parameterized.named_parameters(
        (case, getattr(clocks, case)) for case in clocks.CASES
    )
    def test_all_take_that_of_the_first(self, case):
        for result in _CASES[case]:
            self.assertEqual(result["seen"], [clocks.PRESENT])
            examined, evicted = result["evicted"]
            self.assertGreater(examined, 20)
            self.assertEqual(evicted, 0)


class NoticeTest(tf.test.TestCase):
    def test_all_are_told_with_the_step_of_one_workers_notice(self):
        steps = range(notices.STEPS)
        # In tf_keras, whose loop tells nothing, callbacks ask.
        told = [one >= notices.NOTICE for one in steps if IS_KERAS_3]
        self.assertEqual(_CASES[notices.told_of_sigterm], [told] * _WORKERS)


class PointsTest(tf.test.TestCase):
    def test_the_last_point_has_the_rows_of_all(self):
        results = _CASES[points.points_beside_training]
        rows = merge_rows([result["rows"] for result in results])
        for result in results:
            self.assertEqual(result["saved"], rows)
            self.assertEqual(result["kinds"][0], "full")
            self.assertLess(len(result["kinds"]), 13)
            self.assertEqual(result["steps"][-1], 4 * points.STEPS)
            # More than one chain.
            self.assertGreater(len(result["steps"]), 13)


class DifferentProgramsTest(parameterized.TestCase):
    """The last worker runs another program."""

    @parameterized.named_parameters(
        ("dim", differences.dim, "dim is 4 {} but 8 {}"),
        (
            "rule",
            differences.rule,
            "class_name is 'SparseSGD' {} but 'SparseAdagrad' {}",
        ),
        (
            "rate_of_a_rule",
            differences.rate_of_a_rule,
            "learning_rate is 0.75 {} but 0.25 {}",
        ),
        (
            "schedule",
            differences.schedule,
            "config.decay_steps is 5 {} but 7 {}",
        ),
        (
            "clipping",
            differences.clipping,
            "config.clipnorm is 2.0 {} but 1.0 {}",
        ),
        ("epochs", differences.epochs, "`epochs` of fit is 1 {} but 2 {}"),
        (
            "batch_size_of_arrays",
            differences.batch_size_of_arrays,
            "`batch_size` of fit is 16 {} but 8 {}",
        ),
        (
            "samples_of_arrays",
            differences.samples_of_arrays,
            "the number of samples of `x` is 64 {} but 48 {}",
        ),
        (
            "batch_size_of_a_dataset",
            differences.batch_size_of_a_dataset,
            "the batch size of `x` is 16 {} but 8 {}",
        ),
    )
    def test_names_what_differs(self, case, difference):
        text = difference.format(
            "on /job:worker/task:0, /job:worker/task:1",
            "on /job:worker/task:2",
        )
        for error in _CASES[case]:
            self.assertStartsWith(
                error, "ValueError: The programs of the synchronous workers"
            )
            self.assertIn(text, error)

    @parameterized.named_parameters(
        (
            "batch_size_behind_a_map",
            differences.batch_size_behind_a_map,
            (5, 5, 3),
        ),
        ("samples_behind_a_map", differences.samples_behind_a_map, (5, 5, 0)),
    )
    def test_names_the_sizes_of_parts(self, case, sizes):
        if not IS_KERAS_3:
            self.skipTest("Workers tell each other no sizes.")
        each = ", ".join(
            f"{size} on /job:worker/task:{task}"
            for task, size in enumerate(sizes)
        )
        for error in _CASES[case]:
            self.assertStartsWith(
                error, "ValueError: The synchronous workers read different"
            )
            self.assertIn(f"these parts are {each}. Give all workers", error)

    @parameterized.named_parameters(
        (case, getattr(differences, case)) for case in differences.LEGAL
    )
    def test_takes(self, case):
        for error in _CASES[case]:
            self.assertIsNone(error)


class InputErrorTest(tf.test.TestCase):
    def test_all_raise_the_error_of_one(self):
        results = _CASES[cases.input_errors]
        order = (
            "The indices of the SparseTensor of feature 'sparse' must be in "
            "row-major order: use tf.sparse.reorder."
        )
        structure = (
            "Worker 1: The weights 'w' must have the structure of the feature "
            "'tags', but their indices or row_splits differ."
        )
        for result in results:
            for error, expected in zip(
                result["errors"],
                (structure, f"Worker 0: {order}", f"Worker 1: {order}"),
                strict=True,
            ):
                self.assertStartsWith(error, "InvalidArgumentError: ")
                self.assertIn(expected, error)
            self.assertEqual(result["rows_after_errors"], 0)

    def test_training_goes_on(self):
        results = _CASES[cases.input_errors]
        rows = merge_rows([{"weights": r["rows"]} for r in results])["weights"]
        # Weights are 1, 2 and 3 of signs 1, 2 and 3; each worker has the same
        # two samples.
        expected = {1: -0.5, 2: -1.0, 3: -1.5, 4: -0.5, 5: -0.5}
        self.assertEqual({k: v[0] for k, v in rows.items()}, expected)

    def test_training_goes_on_after_one_beside_a_gather(self):
        for error, later, ended in _CASES[cases.input_error_beside_a_gather]:
            self.assertIn("Worker 1: The weights 'w' must have", error)
            self.assertIsNone(later)
            # None was cancelled.
            self.assertEqual(ended, 2)

    def test_data_that_cannot_be_read_end_the_training_of_all(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras reads data by itself.")
        for result in _CASES[cases.pipeline_error]:
            self.assertRegex(
                result["error"],
                "RuntimeError: The data of a worker cannot be read, so "
                "training ends on all workers. Worker 1: InvalidArgumentError: "
                "[^$]*sample 40 cannot be read",
            )
            # Batches of 16: sample 40 is in the third. Then all 8.
            self.assertEqual(result["steps"], 2)
            self.assertEqual(result["all_steps"], 10)

    def test_a_layer_that_needs_samples_on_all_is_refused_on_all(self):
        for result in _CASES[cases.a_share_without_samples]:
            if IS_KERAS_3:
                self.assertIsNone(result["error"])
            else:
                self.assertRegex(
                    result["error"] or "",
                    "InvalidArgumentError: Layer .* of tf_keras does not "
                    "update its moving averages on a replica without samples",
                )

    def test_files_that_cannot_be_read(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras reads data by itself.")
        for result in _CASES[cases.unreadable_file]:
            self.assertRegex(
                result["error"],
                "^TooManyErrorsError: The data of a worker cannot be read, "
                "so training ends on all workers. Worker 1: 1 of the first 1 "
                "records are malformed",
            )


class ArgumentTest(tf.test.TestCase):
    def _assert_refused(self, name, text):
        for result in _CASES[cases.bad_arguments]:
            self.assertIn(text, result[name])

    def test_gradients_of_several_tasks(self):
        self._assert_refused(
            "tasks",
            "ValueError: pcgrad must be called without a tf.distribute "
            "strategy, because it needs the gradients of the global batch. "
            "Under MultiWorkerMirroredStrategy, a replica or worker has only "
            "those of its own share",
        )

    def test_on_nonfinite(self):
        self._assert_refused(
            "on_nonfinite",
            "ValueError: Argument `on_nonfinite` of "
            "tf_ext.optimizers.Optimizer must be 'raise' or 'skip'. Received: "
            "on_nonfinite='x'",
        )

    def test_loss_that_is_no_mean(self):
        self._assert_refused(
            "loss",
            "ValueError: Loss 'mean_squared_error' has the reduction 'sum': "
            "under MultiWorkerMirroredStrategy a loss must be the sum over "
            "the global batch divided by its number of samples.",
        )

    def test_composed_optimizer_of_a_plain_one(self):
        self._assert_refused(
            "composed",
            "ValueError: SGD of the composed optimizer gives the workers' "
            "gradients the same weight, whatever the sizes of their shares.",
        )

    def test_fit_of_a_plain_model(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3's fit fails there by itself.")
        self._assert_refused(
            "plain_model",
            "a Keras model with tables that is not a tf_ext.Model, under "
            "MultiWorkerMirroredStrategy: Keras would sum metrics",
        )

    def test_table_made_outside_of_the_scope(self):
        self._assert_refused(
            "outside",
            "Table 'outside' was created outside of the scope of the "
            "MultiWorkerMirroredStrategy, for this process alone. Create it, "
            "and the model, under `with strategy.scope():`.",
        )

    def test_steps_per_execution(self):
        if not IS_KERAS_3:
            self.skipTest("Works in tf_keras.")
        self._assert_refused(
            "steps_per_execution",
            "ValueError: Argument `steps_per_execution` of compile must be 1 "
            "under a strategy with several replicas",
        )


class AsOneProcessTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        (name, getattr(models, name)) for name in models.AS_ONE_PROCESS
    )
    def test_as_one_process(self, case):
        results, expected = _CASES[case], case(alone())
        for result in results:
            self.assertEqual(result["iterations"], expected["iterations"])
            for part in ("found", "variables"):
                for one, other in zip(
                    result[part], expected[part], strict=True
                ):
                    self.assertAllClose(one, other, rtol=1e-5, atol=1e-5)
        for name, fields in expected["tables"].items():
            merged = merge_rows([r["tables"][name] for r in results])
            for field, rows in fields.items():
                self.assertCountEqual(merged[field], rows)
                for sign, row in rows.items():
                    self.assertAllClose(
                        merged[field][sign], row, rtol=1e-5, atol=1e-6
                    )


class PolicyTest(parameterized.TestCase, tf.test.TestCase):
    """What each auto_shard_policy means for datasets of 20 samples."""

    @parameterized.parameters(
        ("shared_by_default", 20, [3]),
        ("shared_by_data", 20, [3]),
        ("shared_by_hint", 20, [3, 4]),
        # Each worker has 20. Keras 3 makes parts of one batch of equal size.
        ("not_shared", 20 * _WORKERS, [8, 9]),
    )
    def test_trains_all_samples(self, name, ids, steps):
        results = _CASES[getattr(models, name)]
        counts = merge_rows([{"step": r["counts"]} for r in results])["step"]
        self.assertEqual(counts, dict.fromkeys(range(ids), 1))
        for result in results:
            self.assertAllClose(
                result["loss"], [np.mean(range(ids))], rtol=1e-6
            )
            self.assertIn(result["steps"], steps)


if __name__ == "__main__":
    tf.test.main()
