# SPDX-License-Identifier: Apache-2.0
"""Training on synchronous workers: what one process would come to."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import (
    metric_cases,
    negative_cases,
    reading_cases,
    sequence_cases,
    small_row_cases,
    two_tower_cases,
    uneven_share_cases,
    warm_start_cases,
)
from cases import multi_worker_log_cases as logs
from cases import multi_worker_metric_cases as metrics
from cases import multi_worker_round_trip_cases as round_trips
from cases import multi_worker_step_cases as step
from cases import multi_worker_training_cases as training
from clusters.case_workers import alone, merge_rows, shared_workers
from models import counted_rows
from oracles.readable_records import FORMATS

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "EpochTest::test_custom_loop_trains_every_sample_once",
        "EpochTest::test_trains_every_sample_once0",
        "NegativesTest::test_draws_of_workers_differ",
        "OneBatchTest::test_pushes_the_global_gradient_one_empty_share",
    ),
]

_DIM = step.DIM

# What one process returns, by case.
_expected = {}

_CASES = {size: shared_workers(size) for size in (2, 3)}


def _tables(results):
    """The rows of all workers, by table."""
    return {
        name: merge_rows([result["tables"][name] for result in results])
        for name in results[0]["tables"]
    }


def _arrays(rows, expected):
    """Values of two dicts by sign, in the same order."""
    assert rows.keys() == expected.keys()
    return [np.array([d[sign] for sign in expected]) for d in (rows, expected)]


class TrainingTest(parameterized.TestCase, tf.test.TestCase):
    """200 steps on the same global batches, by a table of each rule."""

    def _compare(self, case, workers):
        if case not in _expected:
            _expected[case] = case(alone())
        results, expected = _CASES[workers][case], _expected[case]
        self.assertLen(expected["losses"], training.STEPS)
        # They learn, and so rows and accumulators move.
        self.assertLess(expected["losses"][-1], 0.8 * expected["losses"][0])
        for result in results:
            self.assertAllClose(
                result["losses"], expected["losses"], rtol=1e-5, atol=0.0
            )
            for one, other in zip(result["variables"], expected["variables"]):
                self.assertAllClose(one, other, rtol=0.0, atol=1e-5)
        for rule, stats in expected["stats"].items():
            for name in ("rows", "waiting", "admitted", "evicted", "updated"):
                for result in results:
                    found = result["stats"][rule][name]
                    self.assertEqual(found, stats[name], f"{rule} {name}")
        tables = _tables(results)
        for rule, fields in expected["tables"].items():
            for field, rows in fields.items():
                values, wanted = _arrays(tables[rule][field], rows)
                with self.subTest(f"{rule} {field}"):
                    self._compare_rows(rule, field, values, wanted)

    def _compare_rows(self, rule, field, values, wanted):
        largest = np.abs(wanted).max()
        difference = np.abs(values - wanted).max(axis=1)
        print(rule, field, "largest", largest, "off", difference.max())
        if field == "accumulator":
            moved = wanted > 10 * training.INITIAL_ACCUMULATOR
            self.assertGreater(np.mean(moved), 0.9)
        if rule in ("sgd", "adagrad") or field != "weights":
            self.assertLess(difference.max(), 1e-5 * largest)
        else:
            self.assertGreaterEqual(np.mean(difference <= 1e-5), 0.9999)
            self.assertLess(difference.max(), 2 * training.RATES[rule])

    @parameterized.named_parameters(
        (name, getattr(training, name)) for name in training.CASES
    )
    def test_two_workers(self, case):
        self._compare(case, 2)

    @parameterized.named_parameters(
        (name, getattr(training, name)) for name in training.CASES
    )
    @pytest.mark.slow
    def test_three_workers(self, case):
        self._compare(case, 3)

    def test_rows_come_and_go(self):
        results = _CASES[2][training.with_rows_that_come_and_go]
        stats = results[0]["stats"]
        for rule, counts in stats.items():
            self.assertGreater(counts["evicted"], 0)
            again = counts["admitted"] > counts["rows"]
            self.assertEqual(again, rule in ("sgd", "ftrl"), rule)
        self.assertGreater(stats["sgd"]["waiting"], 0)

    def test_reports_are_of_all_workers(self):
        first, second = _CASES[2][training.with_rows_that_come_and_go]
        self.assertEqual(second["written"], [])
        reports = first["written"]
        self.assertEqual([r["step"] for r in reports], [50, 100, 150, 200])
        # Of the same samples, but another clock.
        self.assertEqual(reports[-1], first["report"])
        self.assertEqual(reports[-1]["tables"], second["report"]["tables"])
        for found in reports[-1]["tables"]:
            stats = first["stats"][found["table"]]
            for name in ("rows", "bytes", "updated", "admitted", "evicted"):
                self.assertEqual(found[name], stats[name], name)
            self.assertEqual(found["weights"]["sampled"], stats["rows"])
            rows = [shard["rows"] for shard in found["shards"]]
            self.assertLen(rows, 2)
            self.assertGreater(min(rows), 0)
            self.assertEqual(sum(rows), stats["rows"])
            sampled = [s["weights"]["sampled"] for s in found["shards"]]
            self.assertEqual(sampled, rows)

    def test_clipping_acts(self):
        losses = [
            _CASES[2][getattr(training, name)][0]["losses"][-1]
            for name in training.CASES
        ]
        # With another rate the steps are others, too.
        self.assertLen(set(losses), len(training.CASES))


class OneBatchTest(parameterized.TestCase, tf.test.TestCase):
    """One batch's gradients against sums in float64."""

    @parameterized.named_parameters(
        (name, getattr(step, name)) for name in step.PUSHES
    )
    def test_pushes_the_global_gradient(self, case):
        results = _CASES[2][case]
        rows = merge_rows([{"weights": r["weights"]} for r in results])
        features, targets = step.dot_batch()
        targets = targets.astype(np.float64) / len(targets)
        sums, magnitudes = {}, {}
        for sample, target in enumerate(targets):
            parts = [(features["user"][sample], target[:_DIM])]
            items = features["items"][sample]
            parts += [(item, target[_DIM:] / len(items)) for item in items]
            for sign, part in parts:
                sums[sign] = sums.get(sign, 0.0) + part
                magnitudes[sign] = magnitudes.get(sign, 0.0) + np.abs(part)
        values, wanted = _arrays(rows["weights"], sums)
        _, allowed = _arrays(sums, magnitudes)
        self.assertTrue(np.all(np.abs(values + wanted) <= 1e-6 * allowed))
        for result in results:
            self.assertAllClose(result["loss"], [0.0])  # Rows were zeros.


class MetricsTest(parameterized.TestCase, tf.test.TestCase):
    """Metrics of 100,000 rows in uneven shares are those of all rows."""

    def assert_all_have(self, results, expected, tolerance):
        for result in results:
            for name, value in expected.items():
                self.assertAllClose(result[name], value, 0.0, tolerance, name)

    def check(self, cases):
        expected = metric_cases.expected(*metric_cases.rows())
        for case in (metrics.rates, metrics.rates_of_uneven_parts):
            self.assert_all_have(cases[case], expected, 1e-6)
        expected = metrics.users(alone())
        self.assertGreater(expected["left_out gauc"], 0)
        self.assert_all_have(cases[metrics.users], expected, 1e-9)

    def test_two_workers(self):
        self.check(_CASES[2])

    @pytest.mark.slow
    def test_three_workers(self):
        self.check(_CASES[3])


class EpochTest(parameterized.TestCase, tf.test.TestCase):
    """Shares of different lengths: every sample is trained once."""

    @parameterized.parameters(
        ("epochs_of_thirds", range(300), 2),
        (
            "epoch_of_thirds_in_static_batches",
            [*range(96), *range(100, 292)],
            1,
        ),
        ("epoch_of_one_without_data", range(300), 1),
        ("epoch_by_file", range(300), 1),
        ("epoch_by_file_in_static_batches", range(300), 1),
    )
    def test_trains_every_sample_once(self, name, ids, epochs):
        results = _CASES[2][getattr(step, name)]
        counts = merge_rows([{"step": r["counts"]} for r in results])["step"]
        self.assertEqual(counts, dict.fromkeys(ids, epochs))
        for result in results:
            self.assertAllClose(
                result["loss"], [np.mean(ids)] * epochs, rtol=1e-6
            )

    def test_custom_loop_trains_every_sample_once(self):
        results = _CASES[2][step.custom_loop]
        # Files of 100 and 200 samples, each worker's share of a batch is 10.
        self.assertEqual([r["steps"] for r in results], [20, 20])
        rows = merge_rows([{"weights": r["weights"]} for r in results])
        self.assertCountEqual(rows["weights"], range(300))
        for sign, row in rows["weights"].items():
            self.assertAllEqual(row, [-1.0] * _DIM, f"sample {sign}")


class ReadingTest(parameterized.TestCase, tf.test.TestCase):
    """Malformed records in files, of which each worker reads all or some."""

    @parameterized.parameters(*FORMATS)
    def test_exactly_the_malformed_records_are_lost(self, format):
        results = [r[format] for r in _CASES[2][reading_cases.trained]]
        shown = merge_rows([exported for *_, exported in results])["show"]
        written = results[0][0]
        reading_cases.check(self, written, shown, 2 * reading_cases.EPOCHS)
        for rank, (_, whole, by_file, _) in enumerate(results):
            reading_cases.check_counts(self, written, whole)
            reading_cases.check_counts(self, written, by_file, [rank])


class SumTest(tf.test.TestCase):
    def test_over_workers(self):
        parts = zip(*map(step.summands, range(2)))
        expected = [first + second for first, second in parts]
        expected.append(np.stack([step.told_by(rank) for rank in range(2)]))
        for result in _CASES[2][step.sums]:
            self.assertLen(result, len(expected))
            for one, other in zip(result, expected):
                self.assertEqual(one.dtype, other.dtype)
                self.assertAllEqual(one, other)


class RoundTripsTest(tf.test.TestCase):
    """A collective takes a round trip, so a step waits for those in a row."""

    def test_of_a_step(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras sums metrics by TensorFlow's collectives")
        for result in _CASES[2][round_trips.collectives_in_a_row]:
            # Rows, and gradients, which take metrics and the signs of the next
            # batch along. A function sends the signs of the first one, and both
            # send signs again that are many more than before.
            self.assertEqual(result[-1], (2, 2))

    def test_sizes_of_batches_take_none(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras reads batches by itself")
        for steps in _CASES[2][round_trips.reads_ahead]:
            # A batch ahead, but not of the next epoch.
            self.assertEqual([s["read"] for s in steps], [2, 3, 3, 5, 6, 6])
            asked = [s["asked"] for s in steps]
            self.assertEqual(asked, [asked[0]] * 3 + [asked[0] + 1] * 3)


class LogsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        (name, getattr(logs, name)) for name in logs.CASES
    )
    def test_as_one_process(self, case):
        if not IS_KERAS_3:
            self.skipTest("tf_keras adds up the logs of workers")
        expected = case(alone())
        for result in _CASES[2][case]:
            self.assertLen(result["logs"], len(expected["logs"]))
            for one, other in zip(result["logs"], expected["logs"]):
                self.assertAllClose(one, other, rtol=1e-4, atol=1e-5)
            self.assertAllClose(
                result["variables"], expected["variables"], rtol=0.0, atol=1e-4
            )
        # They depend on the step.
        first, *_, last = expected["logs"]
        self.assertNotAllClose(first["loss"], last["loss"], atol=1e-3)


class EntangledTest(parameterized.TestCase, tf.test.TestCase):
    """Gradients of a table that come from several calls, or from none."""

    @parameterized.named_parameters(
        (name, getattr(step, name)) for name in step.ENTANGLED
    )
    def test_as_one_process(self, case):
        results, expected = _CASES[2][case], case(alone())
        for result in results:
            for one, other in zip(result["variables"], expected["variables"]):
                self.assertAllClose(one, other, rtol=0.0, atol=1e-5)
        tables = _tables(results)
        self.assertEqual(tables.keys(), expected["tables"].keys())
        for name, fields in expected["tables"].items():
            for field, rows in fields.items():
                values, wanted = _arrays(tables[name][field], rows)
                limit = 1e-5 * np.abs(wanted).max(initial=0.0)
                self.assertTrue(np.all(np.abs(values - wanted) <= limit), name)
        self.assertGreater(
            np.abs(list(tables["shared"]["weights"].values())).max(), 0.1
        )
        self.assertEmpty(tables["frozen"]["weights"])
        self.assertNotEmpty(tables["unreached"]["weights"])
        for row in tables["unreached"]["weights"].values():
            self.assertAllEqual(row, [0.0] * _DIM)


class SequencesTest(tf.test.TestCase, parameterized.TestCase):
    def test_as_one_process(self):
        results = _CASES[2][sequence_cases.trained]
        expected = sequence_cases.trained(alone())
        for result in results:
            self.assertAllClose(
                result["losses"], expected["losses"], rtol=1e-5, atol=0.0
            )
            for one, other in zip(result["variables"], expected["variables"]):
                self.assertAllClose(one, other, rtol=0.0, atol=1e-5)
        values, wanted = _arrays(
            _tables(results)["item"]["weights"],
            expected["tables"]["item"]["weights"],
        )
        self.assertAllClose(values, wanted, rtol=0.0, atol=1e-5)

    @parameterized.parameters(
        sequence_cases.trained_on_hashed, sequence_cases.trained_on_hashed_parts
    )
    def test_same_bits_with_hashed_columns(self, case):
        wanted, found = _CASES[2][sequence_cases.trained], _CASES[2][case]
        for one, other in zip(wanted, found, strict=True):
            tf.nest.map_structure(self.assertAllEqual, one, other)


class TwoTowersTest(tf.test.TestCase, parameterized.TestCase):
    """A softmax over the items of all workers."""

    @parameterized.parameters(
        two_tower_cases.global_negatives,
        two_tower_cases.global_negatives_of_strings,
    )
    def test_as_one_process(self, case):
        results, expected = _CASES[2][case], case(alone())
        self.assertLess(expected["losses"][-2], expected["losses"][0])
        for result in results:
            for name in ("losses", "variables", "frequency"):
                for one, other in zip(result[name], expected[name]):
                    self.assertAllClose(one, other, rtol=0.0, atol=1e-5)
        tables = _tables(results)
        for name, fields in expected["tables"].items():
            values, wanted = _arrays(tables[name]["weights"], fields["weights"])
            self.assertAllClose(values, wanted, rtol=0.0, atol=1e-5)

    def test_own_negatives(self):
        case = two_tower_cases.own_negatives
        results, expected = _CASES[2][case], case(alone())
        for result in results:
            # Items are counted on all workers; there are fewer negatives.
            for one, other in zip(result["frequency"], expected["frequency"]):
                self.assertAllClose(one, other, 1e-6)
            self.assertLess(result["losses"][0], expected["losses"][0] - 0.1)


class NegativesTest(tf.test.TestCase, parameterized.TestCase):
    """Negatives that each worker draws for itself."""

    def test_draws_of_workers_differ(self):
        case = negative_cases.draws_of_worker
        drawn = [one for result in _CASES[2][case] for [one] in result]
        self.assertLen({str(one) for one in drawn}, 6)
        # With those of a process alone: which worker it is, is all.
        self.assertAllEqual(drawn[:3], np.concatenate(case(alone())))

    @parameterized.parameters(
        negative_cases.trained_by_workers,
        negative_cases.trained_with_own_negatives,
    )
    def test_learns(self, case):
        first, second = _CASES[2][case]
        self.assertEqual(first["losses"], second["losses"])
        self.assertLess(first["losses"][-1], 0.9 * first["losses"][0])
        for result in (first, second):
            self.assertEqual(result["steps"], 4 * 7)
        rows = _tables([first, second])["item"]["weights"]
        self.assertLen(rows, negative_cases.ITEMS)


class UnevenSharesTest(parameterized.TestCase, tf.test.TestCase):
    """Layers that sum over workers, and logs, whatever each worker has."""

    def check(self, workers, case):
        expected = case(alone())
        # A diverging model would hide differences, or invent them.
        self.assertLess(max(expected["logs"]["loss"]), 100.0)
        uneven_share_cases.assert_same(self, _CASES[workers][case], expected)

    @parameterized.named_parameters(
        (name, getattr(uneven_share_cases, name))
        for name in uneven_share_cases.COMPARED
    )
    @pytest.mark.slow
    def test_two_workers(self, case):
        self.check(2, case)

    def test_two_workers_of_several_outputs(self):
        self.check(2, uneven_share_cases.shares_of_two_outputs)

    @parameterized.named_parameters(
        (name, getattr(uneven_share_cases, name))
        for name in uneven_share_cases.COMPARED + uneven_share_cases.OTHERS
    )
    @pytest.mark.slow
    def test_three_workers(self, case):
        self.check(3, case)

    def test_a_step_that_would_weight_its_loss_too_late_is_refused(self):
        for text in _CASES[2][uneven_share_cases.refused_step]:
            self.assertRegex(text, uneven_share_cases.LATE_STEP_REFUSAL)


class SmallRowsTest(tf.test.TestCase):
    def test_same_bits_as_one_process(self):
        results = _CASES[2][small_row_cases.trained]
        small_row_cases.assert_same_bits(
            results, small_row_cases.trained(alone())
        )


class StatisticsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        (name, getattr(step, name)) for name in step.STATISTICS
    )
    def test_count_the_global_batch(self, case):
        counts = counted_rows.Counts()
        for rank in (0, 1):
            for index, features in enumerate(step.statistics_batches(rank)):
                # The second step is left out.
                if index != 1:
                    counts.add_model(features)
        rows = merge_rows([{"rows": result} for result in _CASES[2][case]])
        self.assertEqual(rows["rows"], counts.rows)
        self.assertGreater(max(show for show, _ in counts.rows.values()), 2)


class WarmStartTest(tf.test.TestCase):
    def test_as_one_process(self):
        expected = warm_start_cases.warm_started(alone())
        for size in (2, 3):
            results = _CASES[size][warm_start_cases.warm_started]
            for index, one in enumerate(expected):
                of_workers = [each[index] for each in results]
                rows = merge_rows([each["rows"] for each in of_workers])
                self.assertEqual(rows.keys(), one["rows"].keys())
                for name, wanted in one["rows"].items():
                    self.assertAllEqual(*_arrays(rows[name], wanted))
                for each in of_workers:
                    self.assertEqual(each["found"], one["found"])
                    for mine, theirs in zip(each["weights"], one["weights"]):
                        self.assertAllEqual(mine, theirs)

    def test_by_fit_as_one_process(self):
        expected = warm_start_cases.warm_started_by_fit(alone())
        self.assertEqual([epochs for epochs, *_ in expected], [[0], [1]])
        for results in _CASES[2][warm_start_cases.warm_started_by_fit]:
            for found, wanted in zip(results, expected, strict=True):
                self.assertEqual(found[0], wanted[0])
                self.assertAllClose(found[1], wanted[1], 1e-5, 1e-5)
                self.assertAllClose(found[2], wanted[2], 1e-5, 1e-5)


if __name__ == "__main__":
    tf.test.main()
