# SPDX-License-Identifier: Apache-2.0
"""The data of the recommenders among the examples."""

import itertools
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from oracles.movielens_files import write_movielens
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples"))

import recommender_data

pytestmark = pytest.mark.slow_tests(
    "MovieLensTest::test_wrong_files_empty",
    "MovieLensTest::test_wrong_files_item",
    "MovieLensTest::test_wrong_files_user",
)


_FEATURES = {
    "user": (np.int64, ()),
    "item": (np.int64, ()),
    "age": (np.int64, ()),
    "gender": ("S", ()),
    "occupation": ("S", ()),
    "zip": ("S", ()),
    "genres": ("S", (None,)),
    "genre": ("S", ()),
    "history": (np.int64, (recommender_data.HISTORY,)),
    "history_genre": ("S", (recommender_data.HISTORY,)),
    "timestamp": (np.int64, ()),
    "rating": (np.float32, ()),
    "click": (np.float32, ()),
    "like": (np.float32, ()),
}


def _generate(**kwargs):
    sizes = {"events": 6_000, "users": 100, "items": 80, "days": 10}
    return recommender_data.generate(**{**sizes, **kwargs})


class HistoriesTest(tf.test.TestCase):
    def test_are_of_the_past_of_the_same_user(self):
        random = np.random.default_rng(1)
        source, events = (
            {
                "user": random.integers(1, 6, count),
                "item": random.integers(1, 99, count),
                # Few different seconds, so that many events have the same.
                "timestamp": random.integers(0, 90, count) + 900_000_000,
            }
            for count in (300, 50)
        )
        order = np.argsort(source["timestamp"], kind="stable")
        source = {name: values[order] for name, values in source.items()}
        found = recommender_data.histories(events, source)
        lengths = set()
        for place, history in enumerate(found):
            before = (source["user"] == events["user"][place]) & (
                source["timestamp"] < events["timestamp"][place]
            )
            items = source["item"][before][-recommender_data.HISTORY :]
            lengths.add(len(items))
            expected = np.pad(items, (0, recommender_data.HISTORY - len(items)))
            self.assertAllEqual(history, expected)
        self.assertIn(recommender_data.HISTORY, lengths)
        self.assertGreater(len(lengths), 3)

    def test_of_an_unknown_user_is_empty(self):
        source = {"user": [1, 3], "item": [7, 8], "timestamp": [5, 5]}
        events = {"user": [2, 9, 3], "item": [1, 1, 1], "timestamp": [9, 9, 9]}
        found = recommender_data.histories(
            {name: np.array(values) for name, values in events.items()},
            {name: np.array(values) for name, values in source.items()},
        )
        self.assertAllEqual(found[:, 0], [0, 0, 8])
        self.assertAllEqual(found[:, 1:], np.zeros_like(found[:, 1:]))


class GeneratedTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = _generate()

    def test_features(self):
        _check_features(self, self.data)

    def test_seeds(self):
        for name, values in _generate().test.items():
            self.assertAllEqual(values, self.data.test[name], name)
        other = _generate(seed=2)
        self.assertNotAllEqual(
            other.train["item"][:100], self.data.train["item"][:100]
        )

    def test_the_test_is_the_last_day(self):
        first = self.data.test["timestamp"].min()
        self.assertGreaterEqual(first, self.data.train["timestamp"].max())
        self.assertEqual(first // recommender_data.DAY, 19723 + 9)
        self.assertAllEqual(
            np.sort(self.data.train["timestamp"]), self.data.train["timestamp"]
        )

    def test_nobody_picks_twice_or_before_the_release(self):
        data = _generate(new_items=0.3)
        for part in (data.train, data.test):
            pairs = part["user"] * 1000 + part["item"]
            self.assertLen(np.unique(pairs), len(pairs))
            release = data.teacher.release[part["item"]]
            self.assertAllGreaterEqual(part["timestamp"] - release, 0)
        new = data.teacher.release > self.data.teacher.release.max()
        self.assertBetween(new.mean(), 0.15, 0.45)

    def test_labels_have_the_best_predictions(self):
        data = _generate(events=40_000, users=400, items=300)
        for label in recommender_data.LABELS:
            best = data.best(label, data.train)
            scale = 5.0 if label == "rating" else 1.0
            bounds = np.quantile(best, [0.0, 0.25, 0.5, 0.75, 1.0])
            for low, high in itertools.pairwise(bounds):
                chosen = (best >= low) & (best <= high)
                self.assertNear(
                    data.train[label][chosen].mean(),
                    best[chosen].mean(),
                    2.0 * scale / np.sqrt(chosen.sum()),
                    label,
                )

    def test_clicks_need_the_history(self):
        events = {**self.data.train}
        best = self.data.best("click", events)
        events["history"] = np.random.default_rng(1).permutation(
            events["history"]
        )
        shuffled = self.data.best("click", events)
        clicks = events["click"]
        self.assertGreater(
            recommender_data.auc(clicks, best),
            recommender_data.auc(clicks, shuffled) + 0.03,
        )

    def test_best_scores_rank_what_is_picked(self):
        data, test = self.data, self.data.test
        scores = data.best_scores(test)
        self.assertEqual(scores.shape, (len(test["user"]), 80))
        scores = data.without_seen(scores, test["user"])
        places = np.searchsorted(data.items["item"], test["item"])
        picked = scores[np.arange(len(places)), places]
        self.assertTrue(np.isfinite(picked).all())
        higher = (scores > picked[:, np.newaxis]).sum(1)
        popular = np.bincount(data.train["item"], minlength=81)[1:]
        popular = data.without_seen(
            np.tile(popular, (len(places), 1)), test["user"]
        )
        picked = popular[np.arange(len(places)), places]
        by_popularity = (popular > picked[:, np.newaxis]).sum(1)
        self.assertLess(np.mean(higher), 0.7 * np.mean(by_popularity))


def _check_features(test, data):
    for part in (data.train, data.test):
        test.assertCountEqual(part, _FEATURES)
        for name, (dtype, shape) in _FEATURES.items():
            test.assertTrue(
                np.issubdtype(part[name].dtype, dtype), (name, part[name].dtype)
            )
            test.assertLen(part[name], len(part["user"]))
            test.assertLen(part[name].shape, 1 + len(shape))
        test.assertAllEqual(part["genre"], part["genres"][:, 0])
        genre_of = dict(zip(data.items["item"], data.items["genres"][:, 0]))
        genre_of[0] = b""
        test.assertAllEqual(
            part["history_genre"][-1],
            [genre_of[i] for i in part["history"][-1]],
        )
        test.assertAllInRange(part["rating"], 1.0, 5.0)
        test.assertAllEqual(part["like"], part["rating"] == 5)
        for names, features in (
            (("age", "gender", "occupation", "zip"), data.users),
            (("genres",), data.items),
        ):
            key = "user" if "age" in names else "item"
            place = np.flatnonzero(features[key] == part[key][7])[0]
            for name in names:
                test.assertAllEqual(part[name][7], features[name][place])


class MovieLensTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.get_temp_dir(), "ml")
        self.events = write_movielens(self.folder)

    @parameterized.named_parameters(
        ("ua", "ua"), ("u1", "u1"), ("time", "time")
    )
    def test_features(self, split):
        data = recommender_data.read_movielens(self.folder, split)
        _check_features(self, data)
        found = [
            tuple(int(part[name][i]) for name in ("user", "item", "rating"))
            for part in (data.train, data.test)
            for i in range(len(part["user"]))
        ]
        self.assertCountEqual(found, [event[:3] for event in self.events])
        self.assertAllEqual(data.test["click"], data.test["rating"] >= 4)
        self.assertIsNone(data.best("click", data.test))
        self.assertIsNone(data.best_scores(data.test))
        self.assertAllEqual(
            data.items["genres"][:2],
            [[b"Adventure", b"Children's"], [b"Action", b"Comedy"]],
        )
        self.assertEqual(data.items["title"][0].decode(), "L'Été 1 (1995)")
        self.assertEqual(data.users["occupation"][0], b"student")

    def test_histories_are_of_training(self):
        data = recommender_data.read_movielens(self.folder, "u1")
        trained = set(zip(data.train["user"], data.train["item"]))
        count = 0
        for part in (data.train, data.test):
            for user, history in zip(part["user"], part["history"]):
                for item in history[history > 0]:
                    self.assertIn((user, item), trained)
                    count += 1
        self.assertGreater(count, 1000)

    def test_time(self):
        data = recommender_data.read_movielens(self.folder, "time")
        self.assertLen(data.test["user"], len(self.events) // 10)
        self.assertGreaterEqual(
            data.test["timestamp"].min(), data.train["timestamp"].max()
        )

    @parameterized.named_parameters(
        ("columns", "u.user", "1|2|M|x\n", r"u.user, line 1: .* 5 .*has 4: '1"),
        ("text", "u.user", "a|2|M|x|1\n", "u.user, line 1: 'a' is not an int"),
        ("flag", "u.item", "1|||" + "|0" * 19 + "|7\n", "u.item, line 1: .*0"),
        ("rating", "ua.base", "1\t1\t6\t9\n", "ua.base: .*1 to 5.* 6"),
        ("user", "ua.test", "1\t1\t5\t9\n99\t1\t5\t9\n",
         "ua.test: the user 99 is not in .*u.user"),
        ("item", "ua.test", "1\t99\t5\t9\n", "ua.test: the item 99 .*u.item"),
        ("empty", "ua.test", "", "ua.test is empty"),
    )  # fmt: skip
    def test_wrong_files(self, name, text, message):
        (self.folder / name).write_text(text)
        with self.assertRaisesRegex(ValueError, message):
            recommender_data.read_movielens(self.folder)

    def test_a_malformed_event(self):
        (self.folder / "ua.base").write_text("1\t1\t5\t9\n1\t1\tx\t9\n")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, r"ml/ua\.base: 1 bad number"
        ):
            recommender_data.read_movielens(self.folder)

    @parameterized.named_parameters(
        ("users", "u.user", "ua"),
        ("items", "u.item", "ua"),
        ("base", "u1.base", "u1"),
        ("test", "u1.test", "u1"),
        ("data", "u.data", "time"),
    )
    def test_missing_files(self, name, split):
        (self.folder / name).unlink()
        with self.assertRaisesRegex(
            FileNotFoundError, rf"There is no file .*{name}. --data must be"
        ):
            recommender_data.read_movielens(self.folder, split)


class DatasetTest(tf.test.TestCase):
    def test_batches(self):
        data = _generate(events=500)
        count = len(data.train["user"])
        names = ["user", "item"]
        for seed in (None, 3):
            batches = list(
                data.dataset(data.train, 64, names, "click", shuffle_seed=seed)
            )
            self.assertCountEqual(batches[0][0], names)
            self.assertEqual(batches[0][0]["user"].shape, [64])
            user, item, click = (
                np.concatenate(values)
                for values in zip(
                    *((x["user"], x["item"], y) for x, y in batches)
                )
            )
            self.assertLen(user, count)
            rows = list(zip(user, item, click))
            expected = list(
                zip(*(data.train[name] for name in (*names, "click")))
            )
            self.assertCountEqual(rows, expected)
            self.assertEqual(rows == expected, seed is None)

    def test_inputs_are_as_the_datasets(self):
        data = _generate(events=500)
        names = [n for n in data.train if n not in recommender_data.LABELS]
        dataset = data.dataset(data.test, 8, names, ["like", "rating"])
        features, labels = dataset.element_spec
        self.assertEqual(
            {name: spec.dtype for name, spec in labels.items()},
            {"like": tf.float32, "rating": tf.float32},
        )
        inputs = data.inputs(names)
        self.assertCountEqual(inputs, features)
        for name, spec in features.items():
            self.assertEqual(inputs[name].dtype, spec.dtype.name)
            self.assertEqual(tuple(inputs[name].shape), tuple(spec.shape))
            self.assertEqual(inputs[name].name, name)


class MeasuresTest(tf.test.TestCase):
    def test_auc_and_rmse(self):
        self.assertAllClose(
            recommender_data.auc([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.9]), 0.875
        )
        self.assertAllClose(
            recommender_data.rmse([1.0, 2.0], [1.0, 4.0]), 2**0.5
        )


if __name__ == "__main__":
    tf.test.main()
