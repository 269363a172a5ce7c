# SPDX-License-Identifier: Apache-2.0
"""The examples of published figures: short runs on files like theirs."""

import json
import pathlib
import sys
import tempfile

import pytest
import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples" / "published"))

import electronics
import gowalla
import numpy as np
import visits
from absl.testing import parameterized

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "VisitsTest::test_finds_what_is_left_out_gowalla",
        "VisitsTest::test_finds_what_is_left_out_gowalla_drop",
    ),
]


class VisitsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.slow
    @parameterized.named_parameters(
        ("gowalla", gowalla, ["--negatives=64"]),
        ("gowalla_drop", gowalla, ["--negatives=64", "--drop=0.5"]),
        ("electronics", electronics, []),
    )
    def test_finds_what_is_left_out(self, program, more):
        # Users of a group visit its ten items: all but two in training.
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        lines = {"train": [], "valid": [], "test": []}
        for user in range(200):
            items = [10 * (user % 6) + (user + i) % 10 for i in range(10)]
            for name, some in (
                ("train", items[:8]),
                ("valid", items[8:9]),
                ("test", items[9:]),
            ):
                lines[name].append(" ".join(map(str, [user, *some])))
        for name, text in lines.items():
            (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
        common = [f"--data={folder}", "--epochs=20", *more]
        common += ["--batch=20", "--dim=8", "--rate=0.05"]
        common += [f"--log={folder}/log"]
        found = program.main(common)
        # Of 52 items, 20 are found by chance.
        self.assertGreater(found["recall@20"], 0.9)
        # Items of training are not ranked: two of the group are left.
        self.assertBetween(found["ndcg@20"], 0.6, 0.95)
        self.assertFalse((folder / "log").exists())
        found = program.main([*common, "--test"])
        if program is gowalla:
            # That of validation is one of training now.
            self.assertGreater(found["ndcg@20"], 0.95)
        [line] = (folder / "log").read_text().splitlines()
        self.assertEqual(json.loads(line)["ndcg@20"], found["ndcg@20"])

    def test_means_of_the_rows_of_users(self):
        rows = tf.constant([[1.0], [3.0], [8.0]])
        # The second of three users, and the last, have no rows.
        of = [0, 0, 2]
        means, counts = visits.means_of(rows, of, 4)
        self.assertAllEqual(means, [[2], [0], [8], [0]])
        self.assertAllEqual(counts, [[2], [0], [1], [0]])
        means, sums = visits.means_of(rows, of, 3, tf.constant([3.0, 1, 0]))
        self.assertAllEqual(means, [[1.5], [0], [0]])
        self.assertAllEqual(sums, [[4], [0], [0]])

    def test_figures_of_a_user(self):
        # Found at the first and third of four places; three are wanted.
        recall, ndcg = visits.of_user(np.array([5, 6, 7, 8]), [7, 5, 9])
        self.assertAllClose(recall, 2 / 3)
        discounts = 1 / np.log2([2, 3, 4])
        best = discounts.sum()
        self.assertAllClose(ndcg, discounts[[0, 2]].sum() / best)
        # More are wanted than are looked for: all that were found is best.
        recall, ndcg = visits.of_user(np.array([5, 6]), [4, 5, 6])
        self.assertAllClose((recall, ndcg), (2 / 3, 1.0))


if __name__ == "__main__":
    tf.test.main()
