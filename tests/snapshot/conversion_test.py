# SPDX-License-Identifier: Apache-2.0
"""Rows of snapshots that are loaded into tables of other types."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.small_rows import DTYPES, make_table, stored_bytes, train
from saving_util import TestCase

import tf_ext
from tf_ext.snapshot.manifest import Conversion

pytestmark = pytest.mark.slow_tests(
    "ConversionTest::test_of_all_pairs_of_*",
    "ConversionTest::test_rounds_to_nearest_and_counts_*",
)

_LARGE = ("float32", "float32")
_SMALL = ("float16", "bfloat16")
# Values of float32; what becomes of them; and whether that differs from them.
_TO_FLOAT16 = (
    (1.0, 1.0),
    (0.1, 0.0999755859375),
    # Halfway between neighbours, to that of an even last bit.
    (2049.0, 2048.0),
    (2051.0, 2052.0),
    (65519.0, 65504.0),
    (-1e9, -65504.0),
    (float("inf"), 65504.0),
    (float("nan"), float("nan")),
    # Subnormal ones.
    (2.0**-24, 2.0**-24),
    (2.0**-25, 0.0),
    (-0.0, -0.0),
    (-(1.5 * 2.0**-24), -(2.0**-23)),
)
_TO_BFLOAT16 = (
    (1.0, 1.0),
    (0.1, 0.10009765625),
    (257.0, 256.0),
    (259.0, 260.0),
    (65519.0, 65536.0),
    (-1e9, -998244352.0),
    (float("inf"), 3.3895313892515355e38),
    (float("nan"), float("nan")),
    (2.0**-24, 2.0**-24),
    (3.4e38, 3.3895313892515355e38),
    (-0.0, -0.0),
    (2.0**-133, 2.0**-133),
)


def _weights(table):
    signs, fields = table.export_rows()
    return fields["weights"][np.argsort(signs)].ravel()


class ConversionTest(TestCase):
    @parameterized.named_parameters(
        # 0.1, the two halves, 65519, -1e9, inf, 2^-25 and 1.5 * 2^-24; beyond
        # 65504 are 65519, -1e9 and inf.
        ("float16", "float16", _TO_FLOAT16, Conversion(12, 8, 3)),
        # 0.1, the two halves, 65519, -1e9, inf and 3.4e38; beyond are the
        # last two.
        ("bfloat16", "bfloat16", _TO_BFLOAT16, Conversion(12, 7, 2)),
    )
    def test_rounds_to_nearest_and_counts(self, dtype, values, expected):
        given, wanted = np.array(values, np.float32).T
        table = make_table(_LARGE)
        table.import_rows(range(4), {"weights": given.reshape([4, 3])})
        path = self.path("saved")
        table.save(path)
        other = make_table((dtype, "float32"), shards=3)
        manifest = other.load(path, convert=True)
        self.assertEqual(manifest.conversion, expected)
        self.assertEqual(_weights(other).tobytes(), wanted.tobytes())
        # The same as by import_rows.
        imported = make_table((dtype, "float32"))
        imported.import_rows(range(4), {"weights": given.reshape([4, 3])})
        self.assertEqual(stored_bytes(imported), stored_bytes(other))
        # And exact on the way back.
        back = self.path("back")
        other.save(back)
        self.assertEqual(
            table.load(back, convert=True).conversion, Conversion(12, 0, 0)
        )
        self.assertEqual(_weights(table).tobytes(), wanted.tobytes())

    @parameterized.product(shards=(1, 2, 5), in_place=(False, True))
    def test_of_all_pairs_of_types(self, shards, in_place):
        dtypes = (_LARGE, *DTYPES)
        tables = {}
        for one in dtypes:
            tables[one] = make_table(one, 2)
            train(tables[one], range(100))
            tables[one].save(self.path("x"))
        for source, saved in tables.items():
            path = self.path("saved")
            saved.save(path)
            signs, fields = saved.export_rows()
            for target in dtypes:
                loaded = make_table(target, shards)
                train(loaded, [3, 2000])
                manifest = loaded.load(path, convert=True, in_place=in_place)
                imported = make_table(target)
                imported.import_rows(signs, fields)
                self.assertEqual(stored_bytes(loaded), stored_bytes(imported))
                self.assertEqual(manifest.rows, 100)
                # Rows of 3 weights, and 6 slots.
                found = manifest.conversion
                values = 300 * (source[0] != target[0])
                values += 600 * (source[1] != target[1])
                self.assertEqual(found.values, values)
                _, after = loaded.export_rows()
                order = np.argsort(signs), np.argsort(loaded.export_rows()[0])
                changed = sum(
                    np.sum(fields[n][order[0]] != after[n][order[1]])
                    for n in fields
                )
                self.assertEqual(found.rounded, changed)
                self.assertEqual(found.saturated, 0)

    def test_chains_and_deltas(self):
        paths = [self.path(str(i)) for i in range(3)]
        trained = make_table(_LARGE, 2)
        train(trained, range(100))
        trained.save(paths[0], incremental=True)
        train(trained, range(50, 150), seed=1)
        trained.erase(range(10))
        trained.save(paths[1], base=paths[0])
        served = make_table(_SMALL, 5)
        # 100 rows of the first snapshot and 100 of the second.
        found = served.load(paths[1], convert=True).conversion
        self.assertEqual(found.values, 200 * 9)
        self._assert_rounded(served, trained)
        train(trained, range(20), seed=2)
        trained.erase([77])
        trained.save(paths[2], base=paths[1])
        with self.assertRaisesRegex(ValueError, "its `dtype` is 'float16'"):
            served.apply_delta(paths[2])
        found = served.apply_delta(paths[2], convert=True).conversion
        self.assertEqual(found.values, 20 * 9)
        self._assert_rounded(served, trained)

    def _assert_rounded(self, served, trained):
        expected = make_table(_SMALL)
        expected.import_rows(*trained.export_rows())
        self.assertEqual(stored_bytes(served), stored_bytes(expected))

    def test_weights_alone(self):
        table, path = make_table(_LARGE), self.path("saved")
        train(table, range(10))
        table.save(path)
        other = make_table(
            _SMALL,
            optimizer=tf_ext.optimizers.SparseAdagrad(0.1),
            eviction=None,
            statistics=None,
        )
        manifest = other.load(path, convert=True, weights_only=True)
        self.assertEqual(manifest.conversion.values, 30)
        accumulators = other.export_rows()[1]["accumulator"]
        self.assertAllEqual(accumulators, np.full([10, 3], 0.10009765625))
        with self.assertRaisesRegex(ValueError, "its `dtype` is 'float16'"):
            other.load(path, weights_only=True)
        # The types of slots do not matter to weights.
        slots = make_table(("float32", "bfloat16"))
        self.assertIsNone(slots.load(path, weights_only=True).conversion)

    def test_logs_what_it_rounded(self):
        table, path = make_table(_LARGE), self.path("saved")
        table.import_rows([1], {"weights": [[0.5, 0.1, 70000.0]]})
        table.save(path)
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            make_table(("float16", "float32")).load(path, convert=True)
        self.assertIn(
            f"from {path!r}: of 3 values that were of another type, 2 were "
            "rounded, of which 1 were limited to the largest finite value.",
            logs.output[0],
        )

    def test_refusals(self):
        table, path = make_table(_LARGE), self.path("saved")
        train(table, range(10))
        table.save(path)
        small = make_table(_SMALL)
        with self.assertRaisesRegex(
            ValueError, "`convert` and `incremental` cannot both be True"
        ):
            small.load(path, convert=True, incremental=True)
        for arguments, key in (
            ({"optimizer": "adagrad"}, "optimizer"),
            ({"seed": 5}, "seed"),
            ({"statistics": None}, "statistics"),
        ):
            with self.assertRaisesRegex(ValueError, f"its `{key}` is"):
                make_table(_SMALL, **arguments).load(path, convert=True)
        self.assertEqual(small.size(), 0)

    def test_saturation_is_counted_by_stats(self):
        table, path = make_table(_LARGE), self.path("saved")
        table.import_rows([1, 2], {"weights": [[1e9, 1, -1e9], [70000, 1, 2]]})
        table.save(path)
        small = make_table(("float16", "float32"), 2)
        small.load(path, convert=True)
        self.assertEqual(small.stats()["saturated"], 3)
        small.import_rows([5], {"weights": [[1e6, 0, 0]]})
        self.assertEqual(small.stats()["saturated"], 4)


if __name__ == "__main__":
    tf.test.main()
