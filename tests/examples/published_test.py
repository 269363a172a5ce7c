# SPDX-License-Identifier: Apache-2.0
"""The examples of published figures: short runs on files like theirs."""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import types
from unittest import mock

import pytest
import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "examples" / "published"))

import beauty
import beauty_din
import electronics
import gowalla
import measured
import numpy as np
import two_towers
import visits
from absl.testing import parameterized

import tf_ext

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "VisitsTest::test_finds_what_is_left_out_gowalla",
        "VisitsTest::test_finds_what_is_left_out_gowalla_drop",
        "VisitsTest::test_finds_what_is_left_out_two_towers",
        "BeautyTest::test_finds_the_next_item*",
        "DinTest::test_knows_the_next_item*",
    ),
]


class VisitsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.slow
    @parameterized.named_parameters(
        ("gowalla", gowalla, ["--negatives=64"]),
        ("gowalla_drop", gowalla, ["--negatives=64", "--drop=0.5"]),
        ("electronics", electronics, []),
        ("two_towers", two_towers, ["gowalla", "--temperature=0.2"]),
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
        common += ["--batch=20", "--dim=8", f"--log={folder}/log"]
        if program is not two_towers:
            common += ["--rate=0.05"]
        found = program.main(common)
        # Of 52 items, 20 are found by chance.
        self.assertGreater(found["recall@20"], 0.9)
        # Items of training are not ranked: two of the group are left.
        self.assertBetween(found["ndcg@20"], 0.6, 0.95)
        self.assertFalse((folder / "log").exists())
        found = program.main([*common, "--test"])
        # None of the test part is one of training, which is not ranked; that
        # of validation is one now.
        self.assertGreater(found["recall@20"], 0.9)
        if program is gowalla:
            self.assertGreater(found["ndcg@20"], 0.95)
        [line] = (folder / "log").read_text().splitlines()
        self.assertEqual(json.loads(line)["ndcg@20"], found["ndcg@20"])

    def test_parts(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        users = [[1, 2, 3, 4], list(range(10, 30)), [5]]
        parts = {
            "train": users,
            "valid": [[50], [51, 52], []],
            "test": [[60], [61], [62]],
        }
        for name, lists in parts.items():
            lines = [
                " ".join(map(str, [user, *its]))
                for user, its in enumerate(lists)
            ]
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")

        def parts_of(program, *arguments):
            with mock.patch.object(visits, "run") as run:
                program.main([f"--data={folder}", *arguments])
            return [
                [sorted(its.tolist()) for its in part]
                for part in run.call_args.args[1:]
            ]

        self.assertEqual(parts_of(gowalla), [users, parts["valid"]])
        both = [a + b for a, b in zip(users, parts["valid"])]
        self.assertEqual(parts_of(gowalla, "--test"), [both, parts["test"]])
        self.assertEqual(
            parts_of(electronics, "--test"), [users, parts["test"]]
        )
        wanted = [[] for _ in users]
        for tenth in range(10):
            train, some = found = parts_of(electronics, f"--tenth={tenth}")
            self.assertEqual(
                found, parts_of(electronics, f"--tenth={tenth}", "--seed=2")
            )
            for user, its in enumerate(users):
                self.assertEqual(sorted(train[user] + some[user]), its)
                wanted[user] += some[user]
        self.assertEqual([sorted(its) for its in wanted], users)

    @parameterized.product(drop=(0.0, 0.5), negatives=(0, 2))
    def test_losses_of_users(self, drop, negatives):
        rng = np.random.default_rng(1)
        args = argparse.Namespace(
            **{"gate": 0.4, "drop": drop, "temperature": 0.3, "rate": 0.1},
            **{"dim": 3, "negatives": negatives, "seed": 1},
        )
        model = visits.Visits(args, num_items=4, steps=10)
        lists = [[0, 2, 3], [1, 2]]
        inputs = {
            "user": tf.range(2, dtype=tf.int64),
            "visited": tf.ragged.constant(lists, tf.int64),
        }
        model(inputs, training=True)
        [user] = model.user.tables
        items, biases = model.item.tables
        for table in (user, items, biases):
            # The rates of rows fall to 0.
            rate = table.optimizer.learning_rate
            self.assertAllClose([rate(0), rate(5), rate(10)], [0.1, 0.05, 0.0])
        weights = {
            table: rng.normal(size=[4, table.dim]).astype(np.float32)
            for table in (user, items, biases)
        }
        for table, values in weights.items():
            table.import_rows(range(4), {"weights": values})
        linear = model.linear.get_weights()[0]
        linear += rng.normal(size=linear.shape)
        model.linear.set_weights([linear])
        ids, log_counts = np.arange(4), np.zeros(4)
        if negatives:
            ids, log_counts = np.array([3, 0]), np.array([0.5, -1.0])
            drawn = tf.constant(ids), tf.constant(log_counts, tf.float32), None
            model.negatives = lambda *_, **__: drawn

        def expected(predicted):
            losses, place = [], 0
            for number, its in enumerate(lists):
                given = np.array(predicted[place : place + len(its)], bool)
                place += len(its)
                its = np.array(its)
                read = its[~given] if drop and given.any() else its
                told = its[given] if drop and given.any() else its
                vector = 0.6 * weights[items][read].mean(0) @ linear
                vector += 0.4 * weights[user][number]
                vector /= np.linalg.norm(vector) * 0.3
                rows = weights[items]
                rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
                scores = rows @ vector + weights[biases][:, 0]
                others = np.log(np.exp(scores[ids] - log_counts).sum())
                mean = scores[told].mean()
                losses.append(np.log1p(np.exp(others - mean)) * len(told))
                lengths.append(len(told))
            return np.array(losses) / np.mean(lengths)

        lengths = []
        # All is read, and all is predicted.
        losses = expected([False] * 5)
        self.assertAllClose(model(inputs, training=False), losses, 1e-4, 1e-4)
        drawn_by = tf.constant([0.4, 0.9, 0.1, 0.6, 0.2])
        with mock.patch.object(tf.random, "uniform", return_value=drawn_by):
            found = model(inputs, training=True)
        if drop:
            lengths.clear()
            losses = expected(drawn_by < 0.5)
        self.assertAllClose(found, losses, 1e-4, 1e-4)

    def test_ranks_what_is_not_seen(self):
        scores = np.array([[0, 5, 4, 3] + [1] * 30, [9, 8, 7, 6] + [1] * 30])
        scores = np.concatenate([scores, scores]).astype(np.float32)

        class Model:
            items = tf.range(34)
            item = types.SimpleNamespace(
                tables=[
                    types.SimpleNamespace(pull=lambda items: tf.eye(34)),
                    types.SimpleNamespace(pull=lambda items: None),
                ]
            )

            def of_items(self, rows, bias):
                return rows

            def of_users(self, users, rows, of):
                self.read = rows, of
                return tf.gather(tf.constant(scores), users)

        model = Model()
        seen = [np.array([1]), np.array([0, 2]), np.array([0]), np.array([2])]
        # The third user has none to be found, and does not count.
        wanted = [np.array([3]), np.array([1, 3]), np.array([], int)]
        wanted.append(np.array([0]))
        found = visits.rank(model, seen, wanted)
        # The first user's item is the second of all but 1.
        places = [1 / np.log2(3), 1.0, 1.0]
        self.assertAllClose(found["ndcg@20"], np.mean(places))
        self.assertAllClose(found["recall@20"], 1.0)
        rows, of = model.read
        self.assertAllEqual(tf.argmax(rows, 1), [1, 0, 2, 2])
        self.assertAllEqual(of, [0, 1, 1, 2])

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


class BeautyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("bce", "softmax")
    def test_finds_the_next_item(self, loss):
        # Users go through the items of a circle, from anywhere.
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        lines = [
            " ".join(str(1 + (7 * user + i) % 40) for i in range(3 + user % 9))
            for user in range(300)
        ]
        lines = [f"{user} {line}" for user, line in enumerate(lines, 1)]
        (folder / "Beauty.txt").write_text("\n".join(lines) + "\n")
        common = [f"--data={folder}", f"--loss={loss}", f"--log={folder}/log"]
        common += ["--batch=200", "--dim=16", "--length=8", "--blocks=1"]
        beauty.main([*common, "--epochs=1"])
        self.assertFalse((folder / "log").exists())
        common += ["--epochs=20", "--rate=0.02", "--dropout=0.1", "--test"]
        found = beauty.main(common)
        # Of 40 items, 10 are found by chance.
        self.assertGreater(found["recall@10"], 0.9)
        self.assertGreater(found["ndcg@10"], 0.7)
        # Items of the past are before it only where they are ranked.
        self.assertGreaterEqual(
            found["ndcg@10"], found["of_all"]["ndcg@10"] - 1e-6
        )
        self.assertGreater(found["test"]["ndcg@10"], 0.7)
        [line] = (folder / "log").read_text().splitlines()
        self.assertEqual(json.loads(line)["test"], found["test"])

    @parameterized.parameters(([],), (["--test"],))
    def test_parts(self, more):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        users = [list(range(10, 18)), [1, 2, 3], [4, 5, 6, 7]]
        lines = [" ".join(map(str, [9, *items])) for items in users]
        (folder / "Beauty.txt").write_text("\n".join(lines) + "\n")
        with contextlib.ExitStack() as stack:
            mocks = {
                name: stack.enter_context(mock.patch.object(beauty, name))
                for name in ("SASRec", "compile_with_rate", "batches", "rank")
            }
            fit = mocks["SASRec"].return_value.fit
            fit.return_value.history = {"loss": [0.5]}
            ranked = mocks["rank"]
            ranked.side_effect = [{"recall": 1.0}, {"recall": 2.0}]
            arguments = [f"--data={folder}", "--epochs=1", "--length=3"]
            found = beauty.main([*arguments, *more])
        [train, _] = mocks["batches"].call_args.args
        # The latest of all but the last two; nothing follows the 1.
        self.assertEqual(
            [items.tolist() for items in train], [[12, 13, 14, 15], [4, 5]]
        )
        self.assertEqual(found["recall"], 1.0)
        for held_out, call in zip([-2, -1], ranked.call_args_list):
            _, past, wanted, length = call.args
            for items, its, one in zip(users, past, wanted, strict=True):
                self.assertEqual(items[:held_out], its.tolist())
                self.assertEqual(items[held_out], one)
            self.assertEqual(length, 3)
        # The test part is ranked only where that is asked for.
        self.assertLen(ranked.call_args_list, 1 + len(more))
        self.assertEqual(found["test"], {"recall": 2.0} if more else False)

    def test_a_reading_is_logged(self):
        log = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()), "log")
        for test in (False, True):
            args = argparse.Namespace(test=test, log=str(log))
            found = measured.report(args, {"figure": 0.5})
            self.assertEqual(log.exists(), test)
        self.assertEqual(json.loads(log.read_text()), found)

    @parameterized.parameters("bce", "softmax")
    def test_losses(self, loss):
        args = argparse.Namespace(
            loss=loss, matrix=False, length=4, dim=4, heads=2, blocks=1
        )
        args.dropout, args.seed, args.rate, args.dense_rate = 0, 1, 0.1, 0.1
        args.l2, args.rule = 0.0, None
        model = beauty.SASRec(args, 6, 10)
        items = np.array([[1, 2, 3], [4, 5, 0]])
        # To each of the items that follow another: who had what, and which.
        following, users = [2, 3, 5], [0, 0, 1]
        others = np.array([6, 4, 1])
        if loss == "bce":
            drawn = mock.Mock(return_value=(tf.constant(others)[:, None],))
            model.negatives = drawn
        losses = model({"items": tf.constant(items)}, training=True)
        if loss == "bce":
            chosen, bought = drawn.call_args.args
            self.assertAllEqual(chosen, following)
            self.assertAllEqual(bought, items[users])
        # The last item of a user is not read, not before padding either.
        past = tf.constant([[1, 2], [4, 0]])
        hidden = model.encode(past, model.rows(tf.reshape(past, [-1])))
        hidden = hidden.numpy()[users, [0, 1, 0]]
        scores = hidden @ model.rows(model.items).numpy().T
        positive = scores[range(3), np.array(following) - 1]
        if loss == "bce":
            other = scores[range(3), others - 1]
            each = np.log1p(np.exp(-positive)) + np.log1p(np.exp(other))
        else:
            each = np.log(np.exp(scores).sum(1)) - positive
        # Each item counts the same: the mean of the batch is that of items.
        self.assertAllClose(
            losses, [(each[0] + each[1]) * 2 / 3, each[2] * 2 / 3]
        )

    def test_places_and_dropout(self):
        args = argparse.Namespace(
            loss="softmax", matrix=False, length=3, dim=64, heads=2, blocks=0
        )
        args.dropout, args.seed, args.rate, args.dense_rate = 0.5, 1, 0.1, 0.1
        args.l2, args.rule = 0.0, "adagrad"
        model = beauty.SASRec(args, 2, 10)
        self.assertIsInstance(
            model.table.optimizer, tf_ext.optimizers.SparseAdagrad
        )
        rows = tf.random.stateless_normal([6, 64], [1, 2])
        past = tf.constant([[1, 1, 1], [2, 1, 0]], tf.int64)
        found = model.encode(past, rows, training=False)
        # The latest item has the last place.
        places = model.places.get_weights()[0][[[0, 1, 2], [1, 2, 2]]]
        self.assertAllClose(
            found, model.norm(tf.reshape(rows, [2, 3, 64]) + places)
        )
        short = model.encode(past[1:, :2], rows[3:5], training=False)
        self.assertAllClose(short, found[1:, :2])
        dropped = model.encode(past, rows, training=True).numpy()
        kept = dropped != 0
        self.assertBetween(kept.mean(), 0.3, 0.7)
        self.assertAllClose(dropped[kept], 2 * found[kept])

    @parameterized.parameters(0.0, 5.0)
    @pytest.mark.slow
    def test_a_table_is_trained_as_a_matrix(self, l2):
        args = argparse.Namespace(
            loss="bce", matrix=False, batch=60, length=8, dim=8, heads=2, l2=l2
        )
        args.blocks, args.dropout, args.seed, args.rule = 1, 0.0, 1, None
        args.rate, args.dense_rate = 0.02, 0.01
        # Most items are in few batches.
        sequences = [
            np.array([1 + (user * i) % 60 for i in range(user, user + 5)])
            for user in range(1, 60)
        ]
        data = beauty.batches(sequences, args)
        model = beauty.SASRec(args, 60, 3 * len(data))
        args.matrix = True
        twin = beauty.SASRec(args, 60, 3 * len(data))
        for one in (model, twin):
            one({"items": sequences[0][np.newaxis]}, training=False)
        first = model.rows(model.items, False)
        rows = tf.concat([tf.zeros([1, 8]), first / twin.scale], 0)
        twin.matrix.assign(rows)
        layers = [[one.places, one.norm, *one.blocks] for one in (model, twin)]
        for one, other in zip(*layers):
            other.set_weights(one.get_weights())
        for one in (model, twin):
            beauty.compile_with_rate(one, args, 3 * len(data))
            # Another dataset begins with the same shuffle.
            one.fit(beauty.batches(sequences, args), epochs=3, verbose=0)
        last = model.rows(model.items, False)
        self.assertGreater(np.abs(last - first).max(), 0.1)
        # Adam moves a weight whose gradients are next to 0 by the rate, up or
        # down as the order of sums has it: so the mean. That of a lazy Adam,
        # whose absent rows stay, is .006.
        apart = np.abs(last - twin.rows(twin.items, False))
        self.assertLess(apart.mean(), 2e-3)
        # Padding does not change the vectors of items before it.
        past = tf.constant([[3, 1, 2], [3, 1, 0], [3, 0, 0]], tf.int64)

        def encoded(past):
            return model.encode(past, model.rows(tf.reshape(past, [-1]), False))

        found = encoded(past)
        for row, length in ((1, 2), (2, 1)):
            alone = encoded(past[row : row + 1, :length])
            self.assertAllClose(found[row, :length], alone[0], atol=1e-5)

    def test_ranks_the_item_behind_the_last_among_all_but_the_past(self):
        # Scores of items 1 to 5 behind an item; that of padding is wrong.
        scores = [[9, 9, 9, 9, 9], [5, 4, 3, 2, 1], [5, 4, 3, 2, 2]]
        scores += [[1, 1, 1, 1, 1]] * 3

        class Model:
            items = tf.range(1, 6)

            def rows(self, items, training):
                return tf.one_hot(items - 1, 5)

            def encode(self, past, rows):
                self.read = past.shape[1]
                return tf.gather(tf.constant(scores, tf.float32), past)

        model = Model()
        past = [np.array([2, 1]), np.array([2]), np.array([5, 3, 4, 1, 2])]
        found = beauty.rank(model, past, np.array([3, 4, 2]), 3)
        # Behind item 1, only 3 is left before 3; behind 2, 5 is as good as 4.
        places = np.array([0, 3, 0])
        self.assertAllClose(
            {k: v for k, v in found.items() if k != "of_all"},
            beauty.figures([places]),
        )
        places = np.array([2, 4, 1])
        self.assertAllClose(found["of_all"], beauty.figures([places]))
        self.assertEqual(model.read, 3)

    def test_figures_of_places(self):
        found = beauty.figures([np.array([0, 6]), np.array([2, 10])])
        self.assertAllClose(found["recall@5"], 2 / 4)
        self.assertAllClose(found["recall@10"], 3 / 4)
        self.assertAllClose(found["ndcg@5"], (1 + 1 / 2) / 4)
        self.assertAllClose(found["ndcg@10"], (1 + 1 / 2 + 1 / 3) / 4)

    def test_batches_have_all_sequences_once(self):
        lengths = [2, 3, 3, 4, 7, 9, 9, 2, 5]
        sequences = [
            np.full(length, 100 + place) for place, length in enumerate(lengths)
        ]
        args = argparse.Namespace(length=8, batch=12, seed=1)
        data = beauty.batches(sequences, args)
        batches = [features["items"].numpy() for features, _ in data]
        self.assertLen(batches, len(data))
        rows = [row[row > 0] for batch in batches for row in batch]
        rows.sort(key=lambda row: row[0])
        for row, sequence in zip(rows, sequences, strict=True):
            self.assertAllEqual(row, sequence)
        # Positions of a batch are at most so many; nothing is padded much.
        for batch in batches:
            self.assertLessEqual(batch.size - len(batch), 12)


class TwoTowersTest(tf.test.TestCase):
    def test_losses_are_corrected_by_frequencies(self):
        args = argparse.Namespace(dim=4, rule=None, temperature=0.5)
        pairs = {"user": tf.range(8), "item": tf.constant([1] * 6 + [2, 3])}
        pairs = {key: tf.cast(ids, tf.int64) for key, ids in pairs.items()}
        losses = {}
        for args.frequency in ("estimated", "none"):
            tf.keras.utils.set_random_seed(1)
            model = two_towers.TwoTowers(args)
            for training in (True, False):
                losses[args.frequency] = model(pairs, training=training)
            vectors = model.item({"item": pairs["item"]})
            self.assertAllClose(tf.norm(vectors, axis=1), np.ones(8))
        # The popular item is the less of a negative for others.
        self.assertAllLess(losses["estimated"][6:] - losses["none"][6:], -0.1)


class DinTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("attention", "mean", "none")
    def test_knows_the_next_item(self, interest):
        # Of users who buy items of one half alone.
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        rng = np.random.default_rng(1)
        lines = [
            [user, *(1 + 50 * (user % 2) + rng.permutation(50)[: 3 + user % 6])]
            for user in range(400)
        ]
        text = "\n".join(" ".join(map(str, line)) for line in lines)
        (folder / "Beauty.txt").write_text(text)
        found = beauty_din.main(
            [f"--data={folder}", f"--interest={interest}", "--epochs=12"]
            + ["--batch=64", "--dim=8", "--rate=0.01"]
        )
        if interest == "none":
            self.assertBetween(found["auc"], 0.3, 0.7)
        else:
            # Half of the others are of the user's half.
            self.assertGreater(found["auc"], 0.7)

    def test_examples(self):
        sequences = [np.array([5, 6, 7, 8]), np.array([1, 2])]
        features, labels = beauty_din.examples(
            sequences, lambda items: range(1, len(items)), 9, seed=1
        )
        self.assertAllEqual(labels[:, 0], [1, 0] * 4)
        self.assertAllEqual(features["item"][::2], [6, 7, 8, 2])
        for place, other in enumerate(features["item"][1::2]):
            self.assertNotIn(other, sequences[place // 3])
            self.assertBetween(other, 1, 9)
        history = features["history"]
        self.assertEqual(history.shape, (8, beauty_din.LENGTH))
        self.assertAllEqual(history[::2], history[1::2])
        self.assertAllEqual(
            history[::2, :4],
            [[5, 0, 0, 0], [5, 6, 0, 0], [5, 6, 7, 0], [1, 0, 0, 0]],
        )
        features, _ = beauty_din.examples(
            [np.arange(1, 31)], lambda items: [29], 99, seed=1
        )
        self.assertAllEqual(features["history"][0], np.arange(10, 30))

    def test_auc(self):
        labels = np.array([1, 0, 1, 0, 1])[:, np.newaxis]
        scores = np.array([0.9, 0.1, 0.4, 0.4, 0.2])
        self.assertAlmostEqual(beauty_din.auc(labels, scores), 4.5 / 6)


if __name__ == "__main__":
    tf.test.main()
