# SPDX-License-Identifier: Apache-2.0
"""GAUC, recall@k and NDCG@k against definitions, user by user."""

from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from cases import metric_cases as cases

import tf_ext
from tf_ext.metrics import gauc, ndcg_at_k, recall_at_k, user_means

pytestmark = pytest.mark.slow_tests(
    "GaucTest::test_of_many_rows[23]",
    "RankingTest::test_ties_are_means_over_orders1",
)


class GaucTest(parameterized.TestCase):
    @parameterized.product(text=[False, True], weighted=[False, True])
    def test_of_many_rows(self, text, weighted):
        users, labels, scores, weights = cases.samples(text=text)
        weights = weights if weighted else np.ones_like(weights)
        value, count, left_out = cases.expected_gauc(
            users, labels, scores, weights
        )
        self.assertGreater(left_out, 10)
        given = weights if weighted else None
        for order in (slice(None), slice(None, None, -1)):
            found = gauc(
                users[order],
                labels[order],
                scores[order],
                given if given is None else given[order],
            )
            self.assertAlmostEqual(found.value, value, delta=1e-9)
            self.assertEqual((found.users, found.left_out), (count, left_out))

    def test_ids_that_are_one_as_float64(self):
        # Of one user, the AUC would be 0.5.
        users = np.array([2**53, 2**53, 2**53 + 1, 2**53 + 1])
        found = gauc(users, [0, 1, 1, 0], [1, 2, 4, 3])
        self.assertEqual(found, (1.0, 2, 0))
        users = [b"a", b"a", b"a\0", b"a\0"]
        found = gauc(np.array(users, object), [0, 1, 1, 0], [1, 2, 4, 3])
        self.assertEqual(found, (1.0, 2, 0))

    def test_infinite_scores_are_tied(self):
        for infinite in (np.inf, -np.inf):
            found = gauc([7, 7], [0, 1], [infinite, infinite])
            self.assertEqual(found, (0.5, 1, 0))
        self.assertEqual(gauc([7, 7], [0, 1], [-np.inf, np.inf]).value, 1.0)

    def test_impressions_are_weights(self):
        # A user of four samples and AUC 1, and one of two and AUC 0.
        users = [1, 1, 1, 1, 2, 2]
        found = gauc(users, [1, 0, 0, 0, 0, 1], [9, 1, 1, 1, 5, 3])
        self.assertAlmostEqual(found.value, 4 / 6)

    def test_without_users(self):
        for arguments in (([], [], []), ([1, 1], [0, 0], [1, 2])):
            found = gauc(*arguments)
            self.assertTrue(np.isnan(found.value))
            self.assertEqual(found.users, 0)
        self.assertEqual(found.left_out, 1)
        # Samples of weight 0 make no class.
        found = gauc([1, 1], [0, 1], [1, 2], [0.0, 1.0])
        self.assertEqual((found.users, found.left_out), (0, 1))

    def test_accepts_columns_and_booleans(self):
        found = gauc([[1], [1]], [[True], [False]], np.array([[2], [1]], "u1"))
        self.assertEqual(found, (1.0, 1, 0))

    @parameterized.parameters(
        ("users", {"users": [1.0, 2.0]}, "integers or strings"),
        ("users", {"users": np.array([1, "a"], object)}, "objects of int, str"),
        ("users", {"users": [[1, 2], [3, 4]]}, r"shape \(2, 2\)"),
        ("labels", {"labels": [0, 2]}, r"0 or 1.*\b2\b"),
        ("labels", {"labels": [0, np.nan]}, "0 or 1"),
        ("labels", {"labels": [0, 1, 1]}, r"\[2\]"),
        ("labels", {"labels": ["0", "1"]}, "numbers"),
        ("scores", {"scores": [0.0, np.nan]}, "not NaN"),
        ("scores", {"scores": [0.0]}, r"\[2\]"),
        ("sample_weight", {"sample_weight": [1, -1]}, "at least 0"),
        ("sample_weight", {"sample_weight": [1, np.inf]}, "finite"),
    )
    def test_refuses(self, name, wrong, text):
        given = {"users": [1, 1], "labels": [0, 1], "scores": [1.0, 2.0]}
        with self.assertRaisesRegex(
            ValueError, rf"`{name}` of gauc must be .*{text}"
        ):
            gauc(**{**given, **wrong})


class RankingTest(parameterized.TestCase):
    @parameterized.parameters(3, 2**70)
    def test_ties_are_means_over_orders(self, k):
        labels, scores = (values[:80] for values in cases.rankings())
        recall, ndcg = cases.expected_rankings(labels, scores, k)
        left_out = cases.left_out(labels)
        for function, expected in ((recall_at_k, recall), (ndcg_at_k, ndcg)):
            found = function(labels, scores, k)
            self.assertAlmostEqual(found.value, expected, delta=0.005)
            self.assertEqual(found.left_out, left_out)
            self.assertEqual(found.users, len(labels) - left_out)

    @parameterized.parameters(1, 7, 200)
    def test_without_ties(self, k):
        """One order: exact, and over several blocks of users."""
        self.enterContext(mock.patch.object(user_means, "_BLOCK", 7_000))
        rng = np.random.default_rng(1)
        scores = rng.permuted(np.tile(np.arange(1_000.0), [300, 1]), axis=1)
        labels = rng.integers(0, 1_000, (300, 4))
        labels[:, 0] = scores.argmax(1)
        labels[5] = -1
        expected = cases.expected_rankings(labels, scores, k, orders=1)
        self.assertAlmostEqual(
            recall_at_k(labels, scores, k).value, expected[0], delta=1e-12
        )
        self.assertAlmostEqual(
            ndcg_at_k(labels, scores, k).value, expected[1], delta=1e-12
        )

    def test_equal_scores_are_no_hit_by_their_order(self):
        for item in (0, 9):
            found = recall_at_k([item], np.zeros([1, 10]), 2)
            self.assertAlmostEqual(found.value, 0.2)
        gains = (1 + 1 / np.log2(3)) / 10
        self.assertAlmostEqual(
            ndcg_at_k([3], np.zeros([1, 10]), 2).value, gains
        )

    def test_items_left_out_are_never_found(self):
        scores = np.full([1, 4], -np.inf)
        for k in (1, 4, 5):
            self.assertEqual(recall_at_k([2], scores, k), (0.0, 1, 0))
            self.assertEqual(ndcg_at_k([2], scores, k), (0.0, 1, 0))

    def test_repeated_items_count_once(self):
        scores = [[4.0, 3.0, 2.0, 1.0]]
        for function in (recall_at_k, ndcg_at_k):
            self.assertEqual(
                function([[0, 3, 0, -1, 3, 0]], scores, 2),
                function([[0, 3]], scores, 2),
            )
        self.assertEqual(recall_at_k([[0, 3, 0]], scores, 2).value, 0.5)

    def test_more_items_than_k_can_be_perfect(self):
        scores = [[4.0, 3.0, 2.0, 1.0]]
        self.assertEqual(ndcg_at_k([[0, 1, 2]], scores, 2).value, 1.0)
        self.assertEqual(recall_at_k([[0, 1]], scores, 1).value, 0.5)

    def test_without_users(self):
        for labels, scores, left_out in (
            (np.zeros([0], int), np.zeros([0, 3]), 0),
            ([-1, -1], np.zeros([2, 3]), 2),
            ([-1], np.zeros([1, 0]), 1),
            (np.zeros([2, 0], int), np.zeros([2, 3]), 2),
        ):
            for function in (recall_at_k, ndcg_at_k):
                found = function(labels, scores, 3)
                self.assertTrue(np.isnan(found.value))
                self.assertEqual(found[1:], (0, left_out))

    def test_integer_scores(self):
        for dtype in ("int8", "uint64", "float16"):
            scores = np.array([[1, 3, 2]], dtype)
            self.assertEqual(recall_at_k([1], scores, 1).value, 1.0)
            self.assertEqual(recall_at_k([2], scores, 1).value, 0.0)

    @parameterized.parameters(
        ("labels", [0.0], [[1.0]], 1, "integers"),
        ("labels", [1], [[1.0]], 1, "-1 or the index of one of 1 items"),
        ("labels", [-2], [[1.0]], 1, "-1 or the index"),
        ("labels", [0, 0], [[1.0]], 1, r"\[1\] or \[1, m\]"),
        ("scores", [0], [1.0], 1, r"\[users, items\]"),
        ("scores", [0], [["a"]], 1, "numbers"),
        ("scores", [0], [[1.0, np.nan]], 1, "not NaN"),
        ("k", [0], [[1.0]], 0, "at least 1"),
        ("k", [0], [[1.0]], 2.0, "an integer"),
    )
    def test_refuses(self, name, labels, scores, k, text):
        for function in (recall_at_k, ndcg_at_k):
            with self.assertRaisesRegex(
                ValueError, rf"`{name}` of {function.__name__} must be .*{text}"
            ):
                function(labels, scores, k)

    def test_names_are_public(self):
        for name in tf_ext.metrics.__all__:
            self.assertTrue(hasattr(tf_ext.metrics, name))


if __name__ == "__main__":
    absltest.main()
