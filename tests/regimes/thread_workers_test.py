# SPDX-License-Identifier: Apache-2.0
"""What synchronous workers compute together, as threads of one process."""

import contextlib
import pathlib
import tempfile
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import thread_workers
from models.model_building import rows_of

import tf_ext
from tf_ext.regimes import batches
from tf_ext.regimes.carried_words import Carried
from tf_ext.regimes.gathering import gathered_chunks
from tf_ext.regimes.plan import PullRequest, plan_pull, plan_pulls

pytestmark = pytest.mark.both_kerases(slow=True)

_SIZES = [2, 0, 3]


class _TestCase(tf.test.TestCase, parameterized.TestCase):
    def run_workers(self, function, size=3):
        found = thread_workers.run(size, function)
        errors = [one for one in found if isinstance(one, Exception)]
        if errors:
            raise errors[0]
        return found

    def assert_raises(self, expected, function, size=3):
        """What each worker raises, a regular expression or None."""
        caught = [None] * size

        def on(worker):
            try:
                function(worker)
            except Exception as error:
                caught[worker.workers.rank] = f"{type(error).__name__}: {error}"

        self.run_workers(on, size)
        for text, pattern in zip(caught, expected, strict=True):
            if pattern is None:
                self.assertIsNone(text)
            else:
                self.assertRegex(text or "", pattern)


class BatchTest(_TestCase):
    def test_samples_of_all_shares_and_their_gradients(self):
        total = sum(_SIZES)
        samples = tf.reshape(tf.range(total * 4, dtype=tf.float32), [-1, 2, 2])
        ids = tf.range(total, dtype=tf.int64) + 10
        # Of each worker's loss, other factors of each sample.
        factors = np.random.default_rng(1).integers(9, size=[3, total, 2, 2])

        def on(worker):
            rank = worker.workers.rank
            begin = sum(_SIZES[:rank])
            own = slice(begin, begin + _SIZES[rank])
            values = samples[own]
            with tf.GradientTape() as tape:
                tape.watch(values)
                (gathered, labels), offset = worker.exchange.gather_batch(
                    [values, ids[own]], "samples"
                )
                loss = tf.reduce_sum(gathered * factors[rank])
            self.assertAllEqual(gathered, samples)
            self.assertAllEqual(labels, ids)
            self.assertEqual(labels.dtype, tf.int64)
            self.assertEqual(int(offset), begin)
            gradient = tape.gradient(loss, values)
            self.assertAllEqual(gradient, factors.sum(0)[own])

        self.run_workers(on)

    def test_replicas_of_one_process(self):
        others = [tf.constant([2], tf.int64), tf.zeros([2, 3])]
        context = types.SimpleNamespace(
            replica_id_in_sync_group=1,
            all_gather=lambda one, axis: tf.concat([others.pop(0), one], axis),
        )
        [found], offset = batches.gather_replicas(context, [tf.ones([4, 3])])
        self.assertAllEqual(found[:, 0], [0, 0, 1, 1, 1, 1])
        self.assertEqual(int(offset), 2)


def _table(rank, rows, **options):
    table = tf_ext.SparseTable("t", 3, "adam", seed=rank, **options)
    if rows:
        signs = 100 * rank + tf.range(rows, dtype=tf.int64)
        table.push(signs, tf.random.normal([rows, 3], seed=rank), step=1)
    return table.rows


class RowsTest(_TestCase):
    def test_arrive_at_the_first_in_parts(self):
        tables = [
            _table(i, n, dtype="float16") for i, n in enumerate([5, 0, 9])
        ]

        def on(worker):
            rows = tables[worker.workers.rank]
            return list(worker.processes.chunks(rows.shards, rows.fields, 6))

        first, *others = self.run_workers(on)
        self.assertEqual(others, [[], []])
        self.assertGreater(len(first), 1)
        self.assertLessEqual(max(len(signs) for signs, _ in first), 6)
        expected = [rows.export() for rows in tables]
        wanted = {
            int(sign): {name: values[name][i] for name in values}
            for signs, values in expected
            for i, sign in enumerate(signs)
        }
        found = {
            int(sign): {name: values[name][i] for name in values}
            for signs, values in first
            for i, sign in enumerate(signs)
        }
        self.assertCountEqual(found, wanted)
        dtypes = {f.name: f.dtype for f in tables[0].fields}
        for sign, row in wanted.items():
            self.assertCountEqual(found[sign], row)
            for name, value in row.items():
                self.assertEqual(found[sign][name].dtype, dtypes[name])
                self.assertAllEqual(found[sign][name], value)

    def test_a_worker_that_stops(self):
        tables = [_table(i, 8) for i in range(2)]

        def on(worker):
            rank = worker.workers.rank
            rows = tables[rank]
            chunks = gathered_chunks(
                worker.workers, rows.shards[0], rows.fields, 2
            )
            with contextlib.closing(chunks):
                for _ in chunks:
                    if rank == 0:
                        raise KeyError("no space")

        self.assert_raises(
            ["KeyError", "RuntimeError: Worker 0 could not save the table"],
            on,
            size=2,
        )

    def test_are_in_the_checkpoint_of_the_first(self):
        tables = [_table(i, n) for i, n in enumerate([3, 20])]

        def on(worker):
            rows = tables[worker.workers.rank]
            return worker.processes.checkpoint_part(
                rows.shards[0], rows.fields, 8
            )

        (signs, values), (own, own_values) = self.run_workers(on, size=2)
        self.assertCountEqual(signs.numpy(), [*range(3), *range(100, 120)])
        self.assertCountEqual(own.numpy(), range(100, 120))
        places = np.argsort(signs)[3:]
        for name, value in own_values.items():
            self.assertAllEqual(
                tf.gather(values[name], places),
                tf.gather(value, np.argsort(own)),
            )


class TablesTest(_TestCase):
    def test_rows_are_pulled_and_pushed_as_in_one_process(self):
        generator = np.random.default_rng(3)
        signs = [generator.integers(-40, 40, n) for n in (60, 0, 90)]
        more = [generator.integers(0, 9, n) for n in (2, 5, 0)]
        gradients = [
            generator.normal(size=[len(own), 3]).astype(np.float32)
            for own in signs
        ]

        def made():
            return (
                tf_ext.SparseTable("a", 3, "sgd", "normal", seed=1),
                tf_ext.SparseTable("b", 8, "sgd", "normal", seed=2),
            )

        def on(worker):
            rank = worker.workers.rank
            tables = made()
            plans = plan_pulls([signs[rank], more[rank]], num_shards=3)
            # Twice: the second time the widths are those of the first.
            for _ in range(2):
                for plan in plans:
                    plan.route = None
                rows = worker.exchange.pull(
                    [
                        PullRequest(table, plan, True)
                        for table, plan in zip(tables, plans, strict=True)
                    ],
                    tf.constant(""),
                )
            words = Carried(tf.constant([rank, 7], tf.int32))
            [merged] = worker.exchange.merge(
                [
                    (
                        tables[0],
                        [
                            (tf.constant(part), tf.constant(values))
                            for part, values in zip(
                                np.array_split(signs[rank], 2),
                                np.array_split(gradients[rank], 2),
                                strict=True,
                            )
                        ],
                    )
                ],
                [words],
            )
            self.assertAllEqual(words.gathered, [[0, 7], [1, 7], [2, 7]])
            self.assertTrue(merged.finite)
            if len(merged.signs):
                tables[0].push(merged.signs, merged.values, learning_rate=0.5)
            pulled = [
                tf.gather(part, plan.inverse)
                for part, plan in zip(rows, plans, strict=True)
            ]
            return pulled, [rows_of(table) for table in tables]

        alone = made()
        found = self.run_workers(on)
        for (pulled, _), own, other in zip(found, signs, more, strict=True):
            self.assertAllEqual(pulled[0], alone[0].pull(own))
            self.assertAllEqual(pulled[1], alone[1].pull(other))
        alone[0].push(
            np.concatenate(signs), np.concatenate(gradients), learning_rate=0.5
        )
        wanted = rows_of(alone[0])
        parts, others = zip(*(rows for _, rows in found), strict=True)
        self.assertEqual(sum(map(len, parts)), len(wanted))
        for sign, row in wanted.items():
            [part] = [part for part in parts if sign in part]
            self.assertAllClose(part[sign], row, rtol=1e-5, atol=1e-6)
        inserted = [sign for part in others for sign in part]
        self.assertCountEqual(inserted, {*np.concatenate(more).tolist()})

    def test_an_error_of_one_is_raised_by_all(self):
        def on(worker):
            table = tf_ext.SparseTable("a", 3, "sgd")
            signs = tf.range(5, dtype=tf.int64)
            error = "no such id" if worker.workers.rank else ""
            worker.exchange.pull(
                [PullRequest(table, plan_pull(signs, 2), False)],
                tf.constant(error),
            )

        self.assert_raises(
            ["InvalidArgumentError: .*Worker 1: no such id"] * 2, on, size=2
        )


class ProcessesTest(_TestCase):
    def test_values_of_all_and_of_the_first(self):
        def on(worker):
            processes, rank = worker.processes, worker.workers.rank
            self.assertEqual((processes.count, processes.rank), (3, rank))
            self.assertAllEqual(
                processes.gather(tf.constant([rank, 7], tf.int64)),
                [[0, 7], [1, 7], [2, 7]],
            )
            # Of lengths that differ, beyond one message.
            texts = [{"a": "x" * 300_000 * i} for i in range(3)]
            self.assertEqual(processes.gather_json(texts[rank]), texts)
            self.assertEqual(processes.from_first([rank]), [0])
            found = processes.from_first(rank + 5, str, lambda v: int(v) * 2)
            self.assertEqual(found, 10)
            self.assertEqual(processes.int_of_first(-rank - 1), -1)

        self.run_workers(on)

    def test_programs_that_differ(self):
        def check(worker, values):
            worker.processes.check_same("fit", lambda: values)

        self.run_workers(lambda worker: check(worker, {"dim": 2}))
        self.assert_raises(
            [
                "ValueError: The programs of the synchronous workers differ "
                "in fit: dim is 0 on /job:worker/task:0, /job:worker/task:1 "
                "but 1 on /job:worker/task:2"
            ]
            * 3,
            lambda w: check(w, {"dim": w.workers.rank // 2, "name": "a"}),
        )

        def unknown(worker):
            def values():
                raise NotImplementedError

            worker.processes.check_same("fit", values)

        self.run_workers(unknown)

    def test_an_error_of_one_is_raised_by_all(self):
        def on(worker):
            with worker.processes.together("Loading"):
                if worker.workers.rank:
                    raise KeyError("ä" * worker.workers.rank)

        self.assert_raises(
            [
                "RuntimeError: Loading failed. Worker 1: KeyError: 'ä'$",
                "KeyError: 'ä'",
                "KeyError: 'ää'",
            ],
            on,
        )

        def fine(worker):
            with worker.processes.together("Loading"):
                return worker.workers.rank

        self.assertEqual(self.run_workers(fine), [0, 1, 2])

    @parameterized.named_parameters(
        ("no_utf8", OSError("no file \udcff"), r"OSError: no file \\udcff$"),
        ("cut", OSError("ä" * 999), "OSError: ä+$"),
    )
    def test_an_error_of_one_is_any_text(self, error, told):
        def on(worker):
            with worker.processes.together("Loading"):
                if worker.workers.rank:
                    raise error

        self.assert_raises(
            [f"RuntimeError: Loading failed. Worker 1: {told}", "^OSError"],
            on,
            size=2,
        )

    def test_the_first_writes_the_file(self):
        folder = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory(prefix="tf_ext_"))
        )
        path = str(folder / "model.keras")
        paths = [None] * 2

        def on(worker):
            rank = worker.workers.rank
            with worker.processes.file_of_all(path) as own:
                paths[rank] = own
                pathlib.Path(own).write_text(f"of {rank}")

        self.run_workers(on, size=2)
        self.assertEqual(paths[0], path)
        self.assertEqual(pathlib.Path(paths[1]).name, "model.keras")
        self.assertFalse(pathlib.Path(paths[1]).parent.exists())
        self.assertEqual(pathlib.Path(path).read_text(), "of 0")
        # What there was stays until the first worker writes.
        self.assert_raises(
            [r"Worker 1 could not save '.*model\.keras'", "OSError: full"],
            lambda worker: _fail(worker, path),
            size=2,
        )
        self.assertEqual(pathlib.Path(path).read_text(), "of 0")

    def test_a_file_that_cannot_be_written(self):
        entered = threading.Event()

        def on(worker):
            with worker.processes.file_of_all("/proc/no/model.h5"):
                entered.set()

        self.assert_raises(
            ["OpError|NotFound|Permission|Failed", "RuntimeError: Worker 0"],
            on,
            size=2,
        )
        self.assertFalse(entered.is_set())
        # A check of what is not there leaves nothing.
        with tempfile.TemporaryDirectory(prefix="tf_ext_") as folder:
            path = f"{folder}/model.h5"
            self.assert_raises(
                ["Worker 1", "OSError"], lambda w: _fail(w, path), size=2
            )
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])


def _fail(worker, path):
    with worker.processes.file_of_all(path):
        if worker.workers.rank:
            raise OSError("full")


class ExchangeTest(_TestCase):
    def test_gradients_of_variables_and_tables_are_summed(self):
        dtypes = tf.float32, tf.float64, tf.float16
        # Together, and apart from the tables' as they are large.
        for width in 2, 300_000:
            tables = [tf_ext.SparseTable("t", 1, "sgd") for _ in range(2)]

            def on(worker, tables=tables, width=width):
                rank = worker.workers.rank
                own = [tf.fill([width], tf.cast(rank + 1, t)) for t in dtypes]
                slices = tf.IndexedSlices(
                    tf.ones([2, 1]), tf.constant([1, 2], tf.int64)
                )
                parts = [
                    (
                        tables[rank],
                        [
                            (
                                tf.range(4 + rank, dtype=tf.int64),
                                tf.fill([4 + rank, 1], 10.0**rank),
                            )
                        ],
                    )
                ]
                dense = [own[0], slices, *own[1:]]
                for given in ([], parts):
                    sums, merged = worker.exchange.merge_beside(dense, given)
                    self.assertIs(sums[1], slices)
                    for value, dtype in zip(
                        [sums[0], *sums[2:]], dtypes, strict=True
                    ):
                        self.assertEqual(value.dtype, dtype)
                        self.assertAllEqual(value, tf.fill([width], 3.0))
                [table] = merged
                self.assertTrue(table.finite)
                return dict(
                    zip(
                        table.signs.numpy().tolist(),
                        table.values[:, 0].numpy().tolist(),
                        strict=True,
                    )
                )

            first, second = self.run_workers(on, size=2)
            self.assertTrue(first)
            self.assertTrue(second)
            self.assertEqual(
                first | second, {**dict.fromkeys(range(4), 11.0), 4: 10.0}
            )
            self.assertEqual(len(first) + len(second), 5)

    def test_weights_of_replicas(self):
        def on(worker):
            values = [
                tf.constant([2.0]),
                tf.constant([3.0], tf.float64),
                tf.constant([5.0, 7.0]),
                tf.constant([np.nan]),
            ]
            half, none = (
                worker.exchange.weighted_values(values, tf.constant(f))
                for f in (0.5, 0.0)
            )
            self.assertAllEqual(
                [h.dtype for h in half], [v.dtype for v in values]
            )
            self.assertAllEqual(half[0], [1.0])
            self.assertAllEqual(half[1], [1.5])
            self.assertAllEqual(half[2], [2.5, 3.5])
            # A replica without samples adds nothing.
            self.assertAllEqual(
                tf.concat([none[0], none[2], none[3]], 0), [0] * 4
            )
            other = worker.exchange.weighted_values(
                values[1:2], tf.constant(3.0)
            )
            self.assertAllEqual(other, [[9.0]])

        self.run_workers(on, size=1)

    def test_what_is_not_finite_is_so_everywhere(self):
        def on(worker):
            rank = worker.workers.rank
            table = tf_ext.SparseTable("t", 1, "sgd")
            found = []
            for bad in 0.0, np.inf:
                slices = tf.IndexedSlices(
                    tf.constant([[1.0], [bad if rank else 1.0]]),
                    tf.constant([1, 2], tf.int64),
                )
                dense, tables = worker.exchange.sum_everywhere(
                    [tf.constant([1.0])], [(table, slices)], None
                )
                found.append(float(dense[0][0]))
                [(of, merged)] = tables
                self.assertIs(of, table)
                self.assertEqual(merged.values.shape[1:], [1])
            return found

        for found in self.run_workers(on, size=2):
            self.assertEqual(found[0], 2.0)
            self.assertTrue(np.isnan(found[1]))

    def test_totals_and_errors(self):
        def on(worker):
            rank = worker.workers.rank
            total = worker.exchange.total(tf.constant(rank + 2, tf.int64))
            self.assertEqual(int(total), 9)
            worker.exchange.raise_error(tf.constant(""))
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "too few"
            ):
                worker.exchange.raise_error(tf.constant("too few"))

        self.run_workers(on)


if __name__ == "__main__":
    tf.test.main()
