# SPDX-License-Identifier: Apache-2.0
"""Rows of snapshots that are selected, or merged with others."""

import json
import unittest.mock

import numpy as np
import snapshot_util as util
from absl.testing import absltest, parameterized
from oracles import snapshot_files_util as files_util
from transform_util import TransformTestCase, by_sign
from transform_util import table as table_of

import tf_ext
from tf_ext.snapshot import cli, merging, open_snapshot, transform, writer
from tf_ext.snapshot.transforming import bytes_to_read


class RowsTest(TransformTestCase):
    """Rows that are selected, or merged."""

    def setUp(self):
        super().setUp()
        self.policy = {
            "statistics": ["show", "click"],
            "admission": tf_ext.admission.Count(2),
        }

    def _shown(self, shows, seed=0, **kwargs):
        """A table with rows of `{sign: show}`; and one sign that waits."""
        table = table_of(3, **self.policy, **kwargs)
        rng = np.random.default_rng(seed)
        signs = np.array(list(shows))
        table.import_rows(
            signs,
            {
                "weights": rng.normal(size=[len(signs), 3]),
                "accumulator": rng.random([len(signs), 3]),
                "show": np.array(list(shows.values()), float)[:, None],
                "click": np.ones([len(signs), 1]),
            },
        )
        table.push(
            [99], np.ones([1, 3], np.float32), statistics=np.ones([1, 2], "f")
        )
        return table

    def _signs(self, path):
        return sorted(by_sign(path)["weights"])

    @unittest.mock.patch.object(merging, "_BYTES_AT_ONCE", 300)
    @unittest.mock.patch.object(writer, "_SHARDS_AT_ONCE", 1)
    def test_how_much_will_be_read(self):
        paths = [self.path(name) for name in "abc"]
        for path, rows in zip(paths, (20, 40, 5)):
            self._shown(dict.fromkeys(range(rows), 1)).save(path)
        for merge in ([], paths[1:]):
            sizes = []
            new = self.path(f"{len(merge)}_merged")
            transform(paths[0], new, merge=merge, progress=sizes.append)
            self.assertEqual(sum(sizes), bytes_to_read([paths[0], *merge]))
        for shards in (2, 3):
            sizes = []
            new = self.path(f"{shards}_shards")
            tf_ext.snapshot.reshard(paths[0], new, shards, sizes.append)
            told = cli._bytes_to_rewrite(open_snapshot(paths[0]), shards)
            self.assertEqual(sum(sizes), told)

    def test_conditions(self):
        table = self._shown({sign: sign for sign in range(-3, 10)})
        table.save(self.path("old"))
        np.save(self.path("signs.npy"), np.array([1, 2, 99, 55]))
        weights = np.float64(table.pull(np.arange(-3, 10)))
        norms = np.linalg.norm(weights, axis=1)
        middle = float(np.mean(norms))
        everything = list(range(-3, 10))
        for index, (keep, drop, wanted, waits) in enumerate(
            [
                ("show >= 3", (), range(3, 10), True),
                ((), "show>=3", range(-3, 3), True),
                (["show > 3", "sign<8"], (), range(4, 8), False),
                ("sign == 99", (), [], True),
                ([], ["show < 0", "sign != 5"], [5], False),
                (self.path("signs.npy"), (), [1, 2], True),
                ((), self.path("signs.npy"), {*everything} - {1, 2}, False),
                ((), np.array([0], np.uint64), {*everything} - {0}, True),
                (
                    lambda signs, _: signs % 2 == 0,
                    (),
                    [-2, 0, 2, 4, 6, 8],
                    True,
                ),
                (
                    (),
                    lambda _, fields: fields["click"][:, 0] == 1,
                    [],
                    True,
                ),
                (
                    f"norm < {middle!r}",
                    "show == -3",
                    [
                        s
                        for s, n in zip(everything, norms)
                        if n < middle and s != -3
                    ],
                    True,
                ),
            ]
        ):
            out = self.path(f"out{index}")
            manifest = transform(
                self.path("old"), out, keep=keep, drop=drop, dim=2
            )
            self.assertEqual(self._signs(out), sorted(wanted), index)
            self.assertEqual(manifest.counters.count, int(waits), index)
            again = table_of(2, **self.policy)
            again.load(out)

    @parameterized.parameters(
        ({"keep": np.array([7])}, [7]),
        ({"drop": "norm > 0"}, []),
        ({"drop": lambda signs, _: signs == signs}, []),
    )
    def test_rows_that_are_shared_stay(self, selected, wanted):
        shared = {"unknown": "shared", "unknown_buckets": 2}
        table = table_of(3, **shared)
        table.import_rows(table.unknown_ids, {"weights": np.ones([2, 3])})
        table.push([7, 9], np.ones([2, 3], np.float32))
        table.save(self.path("old"))
        transform(self.path("old"), self.path("new"), **selected)
        self.assertEqual(
            self._signs(self.path("new")), sorted([*wanted, *table.unknown_ids])
        )
        again = table_of(3, **shared)
        again.load(self.path("new"))
        self.assertAllEqual(again.pull([9]), table.pull([1]))

    def test_a_row_that_a_save_has_twice(self):
        chunks = [{"rows": [(1, 1.0), (2, 5.0)]}, {"rows": [(1, 7.0)]}]
        files_util.write(self.path("old"), chunks)
        transform(self.path("old"), self.path("low"), keep="norm < 3")
        self.assertEqual(self._signs(self.path("low")), [])
        transform(self.path("old"), self.path("high"), keep="norm > 6")
        self.assertEqual(self._signs(self.path("high")), [1])
        transform(self.path("old"), self.path("all"), dim=2)
        [first, second] = by_sign(self.path("all"))["weights"].values()
        self.assertAllEqual(sorted([first[0], second[0]]), [5.0, 7.0])

    @parameterized.parameters("priority", "mean", "show")
    def test_merging(self, by):
        tables = [
            self._shown({1: 5, 2: 5, 3: 1}),
            self._shown({2: 6, 3: 1, 4: 1}, 1, name="other"),
            self._shown({3: 0, 5: 1, -9: 3}, 2),
        ]
        paths = [self.path(str(index)) for index in range(3)]
        for table, path in zip(tables, paths):
            table.save(path)
        rows = [by_sign(path) for path in paths]
        for parts in (1, 3):
            out = self.path(f"out{parts}")
            at_once = open_snapshot(paths[0]).bytes * 3 // parts
            with unittest.mock.patch.object(merging, "_BYTES_AT_ONCE", at_once):
                manifest = transform(paths[0], out, merge=paths[1:], by=by)
            self.assertEqual((manifest.label, manifest.rows), ("user", 6))
            self.assertEqual(manifest.counters.count, 1)
            found = by_sign(out)
            for name in found:
                self.assertSameElements(found[name], [1, 2, 3, 4, 5, -9])
                for sign in found[name]:
                    there = [each for each in rows if sign in each["show"]]
                    values = [each[name][sign] for each in there]
                    if by == "mean":
                        wanted = np.sum(np.array(values, float), axis=0)
                        if name in ("weights", "accumulator"):
                            wanted = wanted / len(values)
                        wanted = wanted.astype(np.float32)
                    else:
                        shows = [each["show"][sign][0] for each in there]
                        best = by == "show" and int(np.argmax(shows))
                        wanted = values[best or 0]
                    self.assertAllEqual(found[name][sign], wanted)
            table = table_of(3, **self.policy)
            table.load(out)

    def test_merging_ints_types_and_shrunk_rows(self):
        paths = []
        for index in range(2):
            table = table_of(3, "adam", dtype="float16", l2=0.5)
            for step in range(3 - index):
                util.push(table, [1, index + 7], step)
            paths.append(self.path(str(index)))
            table.save(paths[-1])
        rows = [by_sign(path) for path in paths]
        transform(paths[0], self.path("out"), merge=paths[1], by="mean")
        found = by_sign(self.path("out"))
        self.assertEqual(found["step"][1], [3])
        mean = np.mean([each["weights"][1].astype(float) for each in rows], 0)
        self.assertAllEqual(found["weights"][1], mean.astype(np.float16))
        for index in range(2):
            self.assertAllEqual(
                found["weights"][index + 7], rows[index]["weights"][index + 7]
            )
        transform(paths[0], self.path("first"), merge=[paths[1]], dim=4)
        found = by_sign(self.path("first"))
        self.assertAllEqual(found["weights"][1][:3], rows[0]["weights"][1])

    def test_rows_that_ids_share(self):
        kwargs = {"unknown": "shared", "unknown_buckets": 2}
        table = table_of(3, **kwargs)
        old = self.saved("old", table, [*table.unknown_ids, 1, 2])
        transform(old, self.path("wide"), dim=4)
        wide = table_of(4, **kwargs)
        wide.load(self.path("wide"))
        self.assertAllEqual(wide.pull([77])[:, :3], table.pull([77]))
        other = self.saved("other", table_of(3, unknown="shared"))
        with self.assertRaisesRegex(ValueError, "share 2 rows in the .* and 1"):
            transform(old, self.path("new"), merge=other)

    def test_the_vector_of_ids_without_a_row(self):
        old = self.saved("old", table_of(3, unknown=[0.5, 0.1, 3e-9]))
        matrix = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        for arguments, wanted in (
            ({"dim": 2}, [0.5, 0.1]),
            ({"dim": 5}, [0.5, 0.1, 3e-9, 0.0, 0.0]),
            ({"projection": matrix}, [0.5, 0.2]),
            ({"name": "b"}, [0.5, 0.1, 3e-9]),
        ):
            out = self.path(str(wanted))
            manifest = transform(old, out, **arguments)
            table = table_of(len(wanted), unknown=wanted, name=manifest.label)
            self.assertEqual(manifest.config, table.rows.config)

    def test_merging_chains(self):
        paths = []
        for index in range(2):
            table = table_of(3)
            util.push(table, [1, 2, 3], index)
            table.save(self.path(f"{index}/0"), incremental=True)
            util.push(table, [2, 4 + index], index + 5)
            table.erase([3])
            paths.append(self.path(f"{index}/1"))
            table.save(paths[-1], base=self.path(f"{index}/0"))
        transform(paths[0], self.path("out"), merge=paths[1])
        found, first, second = map(by_sign, [self.path("out"), *paths])
        self.assertEqual(sorted(found["weights"]), [1, 2, 4, 5])
        for sign, wanted in ((1, first), (2, first), (4, first), (5, second)):
            self.assertAllEqual(found["weights"][sign], wanted["weights"][sign])

    def test_the_record_of_columns_is_merged(self):
        tables = [table_of(3), table_of(3, name="b")]
        for name, table in zip("ab", tables):
            column = tf_ext.feature_column.category_column(name)
            tf_ext.layers.EmbeddingFeatures([column], table)
            self.saved(name, table)
        manifest = transform(
            self.path("a"), self.path("out"), merge=[self.path("b")]
        )
        columns = json.loads(manifest.state["columns"])
        self.assertEqual([name for name, _ in columns], ["a", "b"])


if __name__ == "__main__":
    absltest.main()
