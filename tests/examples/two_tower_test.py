# SPDX-License-Identifier: Apache-2.0
"""The example of two towers: short runs on made-up data and on files."""

import pathlib
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from oracles.movielens_files import write_movielens
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples"))

import two_tower

pytestmark = pytest.mark.both_kerases(slow=True)


class TwoTowerTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_made_up_data(self):
        found = two_tower.main(["--events=40000", "--users=1000", "--epochs=2"])
        self.assertEqual(found["items"], 800)
        # By chance it would be 1 / 16.
        self.assertGreater(found["recall@50"], 0.35)
        for k in two_tower.TOP:
            best = found[f"best_recall@{k}"]
            self.assertGreater(found[f"recall@{k}"], 0.6 * best)
            self.assertLess(found[f"recall@{k}"], best + 0.02)

    def test_losses_without_what_was_rated(self):
        random = np.random.default_rng(1)
        users, items = random.normal(size=(2, 4, 3)).astype(np.float32)
        ids = np.array([3, 1, 3, 2])
        # The second user has rated the last item, the fourth one item 3.
        history = np.array([[0, 0], [2, 5], [0, 0], [3, 0]])
        counts = np.array([0.0, 4.0, 1.0, 9.0])
        inputs = dict.fromkeys([*two_tower.USER, *two_tower.ITEM], ids)
        model = two_tower.TwoTowers(
            lambda *_, **__: users, lambda *_, **__: items, counts
        )
        found = model({**inputs, "item": ids, "history": history})
        logits = users @ items.T - np.log(counts[ids])
        for row, column in ((0, 2), (2, 0), (1, 3), (3, 0), (3, 2)):
            logits[row, column] = -np.inf
        sums = np.exp(logits).sum(1)
        expected = np.log(sums) - np.diagonal(logits)
        self.assertAllClose(found, expected, 1e-5, 1e-5)

    @pytest.mark.slow
    def test_files_and_export(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        write_movielens(folder / "data")
        found = two_tower.main(
            [f"--data={folder / 'data'}", "--epochs=10"]
            + [f"--export={folder / 'export'}"]
        )
        self.assertCountEqual(found, ["items", "recall@10", "recall@50"])
        self.assertEqual(found["items"], 30)
        # There are fewer than 50.
        self.assertEqual(found["recall@50"], 1.0)
        self.assertGreater(found["recall@10"], 0.5)
        loaded = tf.saved_model.load(str(folder / "export" / "1"))
        self.assertIn(
            "seen",
            loaded.signatures["serving_default"].structured_input_signature[1],
        )


if __name__ == "__main__":
    tf.test.main()
