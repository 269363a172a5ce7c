# SPDX-License-Identifier: Apache-2.0
"""The Wide & Deep example: its data, and whole runs of it as a program."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import ROOT
from tensorflow import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "GeneratedRunTest::test_tensorboard_logs",
        "GeneratedRunTest::test_legacy_keras_two_epochs_and_small_rows",
        "BackupTest::*",
    ),
]

_EXAMPLES = ROOT / "examples"
_DATA = ROOT.parent / "shared" / "data"
_TIMEOUT_SECONDS = 240

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_EXAMPLES))

import wide_deep  # noqa: E402
import wide_deep_generator  # noqa: E402


def _run(*arguments, **environment):
    """Runs the example; returns the JSON of its last line."""
    environment = {**os.environ, **environment}
    # The program finds its modules because they are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    run = subprocess.run(
        [sys.executable, str(_EXAMPLES / "wide_deep.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        env=environment,
    )
    if run.returncode:
        raise AssertionError(
            f"wide_deep.py {' '.join(arguments)} ended with status "
            f"{run.returncode}:\n{run.stdout[-2000:]}\n{run.stderr[-8000:]}"
        )
    result = json.loads(run.stdout.splitlines()[-1])
    print(f"wide_deep.py {' '.join(arguments)}: {result}")
    return result


class GeneratedRunTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_learns_what_fixed_buckets_cannot(self):
        arguments = ["--examples=300000", "--batch_size=1024"]
        result = _run(*arguments)
        self.assertCountEqual(
            result,
            [
                "auc",
                "log_loss",
                "best_auc",
                "rows",
                "bytes",
                "saturated",
                "seconds",
                "examples",
            ],
        )
        self.assertEqual(result["examples"], 300_000)
        self.assertGreater(result["rows"], 200_000)
        self.assertGreater(result["bytes"], result["rows"] * 8)
        self.assertGreater(result["auc"], result["best_auc"] - 0.04)
        self.assertLess(result["auc"], result["best_auc"])
        self.assertLess(result["log_loss"], 0.53)

        hashed = _run(*arguments, "--bucket_size=1000")
        self.assertEqual(hashed["best_auc"], result["best_auc"])
        self.assertLess(hashed["auc"], result["auc"] - 0.03)
        self.assertLess(hashed["rows"], 20_000)

        limited = _run(*arguments, "--admission=2", "--evict=100")
        self.assertLess(limited["rows"], result["rows"] / 2)
        self.assertGreater(limited["auc"], result["auc"] - 0.01)

    def test_legacy_keras_two_epochs_and_small_rows(self):
        if importlib.util.find_spec("tf_keras") is None:
            self.skipTest("tf_keras is not installed")
        result = _run(
            "--examples=40000",
            "--batch_size=512",
            "--epochs=2",
            "--dtype=float16",
            "--slot_dtype=bfloat16",
            TF_USE_LEGACY_KERAS="1",
        )
        self.assertEqual(result["examples"], 80_000)
        self.assertGreater(result["auc"], 0.7)
        # With float32 rows, it is 65 bytes.
        self.assertLess(result["bytes"], 58 * result["rows"])

    def test_tensorboard_logs(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("tensorboard is not installed")
        log_dir = pathlib.Path(self.get_temp_dir(), "logs")
        files = pathlib.Path(self.get_temp_dir(), "files")
        files.mkdir()
        _run(
            *("--examples=5000", "--batch_size=512", f"--log_dir={log_dir}"),
            TMPDIR=str(files),
        )
        # What was generated is gone.
        self.assertEmpty(list(files.glob("wide_deep_*")))
        self.assertNotEmpty(list(log_dir.rglob("events.out.tfevents.*")))


class RealDataRunTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("adult", "adult", "adult", 0.905, 32_561),
        ("criteo", "criteo", "criteo_kaggle_20k", 0.76, 16_000),
    )
    def test_auc(self, name, folder, bound, examples):
        path = _DATA / folder
        if not path.exists():
            self.skipTest(f"there is no {path}")
        result = _run(f"--data={path}", f"--format={name}")
        self.assertGreater(result["auc"], bound)
        self.assertIsNone(result["best_auc"])
        self.assertEqual(result["examples"], examples)


class BackupTest(tf.test.TestCase):
    def test_each_epoch_has_each_example_once_in_spite_of_a_failure(self):
        folder = pathlib.Path(self.get_temp_dir())
        expected = _trained(folder / "whole")
        with self.assertRaisesRegex(RuntimeError, "killed"):
            _trained(folder / "failed", _FailingBackup)
        found = _trained(folder / "failed")
        # Three epochs of 16 batches: the begun one is trained from its begin.
        self.assertEqual(found.optimizer.iterations, 48)
        [[batch, _], *_] = _small(folder)[0].test()
        # Before the last epoch, they differ by more than 0.01.
        self.assertAllClose(found(batch), expected(batch), atol=1e-3)


class _FailingBackup(keras.callbacks.BackupAndRestore):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.model.optimizer.iterations == 37:
            raise RuntimeError("killed")


def _small(folder):
    """Data and arguments of a short training."""
    args = wide_deep.parse_arguments(
        ["--examples=1000", "--batch_size=64", "--epochs=3"]
        + [f"--backup_dir={folder}"]
    )
    return wide_deep.load_data(args), args


def _trained(folder, backup=keras.callbacks.BackupAndRestore):
    """A model after `wide_deep.train`; without what differs by chance."""
    data, args = _small(folder)
    keras.utils.set_random_seed(args.seed)
    with mock.patch.object(wide_deep, "DROPOUT", 0.0):
        model = wide_deep.make_model(data, *wide_deep.make_tables(args), None)
    wide_deep.compile_model(model, args)
    with mock.patch.object(keras.callbacks, "BackupAndRestore", backup):
        wide_deep.train(model, data, args)
    return model


class GeneratedStreamTest(tf.test.TestCase):
    def test_a_batch_is_a_function_of_seed_and_index(self):
        first = wide_deep_generator.GeneratedStream(1000, 64, seed=3).batch(5)
        again = wide_deep_generator.GeneratedStream(1000, 64, seed=3).batch(5)
        other = wide_deep_generator.GeneratedStream(1000, 64, seed=4).batch(5)
        self.assertAllEqual(first["user"], again["user"])
        self.assertAllEqual(first["label"], again["label"])
        self.assertNotAllEqual(first["user"], other["user"])

    def test_datasets_hold_what_the_batches_do(self):
        stream = wide_deep_generator.GeneratedStream(1000, 64, seed=3)
        batches = list(stream.train())
        self.assertEqual(sum(len(labels) for _, labels in batches), 1000)
        self.assertEqual(stream.train().cardinality(), 16)
        features, labels = batches[5]
        expected = stream.batch(5)
        self.assertAllEqual(features["item"], expected["item"])
        self.assertAllEqual(features["user"], expected["user"].astype(str))
        self.assertAllEqual(features["tags"].flat_values, expected["tags"])
        self.assertAllEqual(
            features["tags"].row_lengths(), expected["tag_counts"]
        )
        for name in ("campaign", "hour", "price"):
            self.assertAllEqual(features[name], expected[name])
        self.assertAllEqual(features["device"], expected["device"].astype(str))
        self.assertAllEqual(labels, expected["label"])
        self.assertIn(0, expected["tag_counts"])
        # The file is written once.
        path = pathlib.Path(stream._folder, "train.tsv")
        changed = path.stat().st_mtime_ns
        stream.train()
        self.assertEqual(path.stat().st_mtime_ns, changed)

    def test_test_examples_follow_the_training_examples(self):
        stream = wide_deep_generator.GeneratedStream(1000, 64, seed=3)
        labels = np.concatenate([labels for _, labels in stream.test()])
        self.assertLen(labels, 100)
        self.assertAllEqual(labels, stream.test_labels())
        self.assertLen(stream.best_predictions(), 100)
        self.assertNotAllEqual(labels, stream.batch(0)["label"][:100])

    def test_the_vocabulary_grows(self):
        stream = wide_deep_generator.GeneratedStream(200_000, 20_000, seed=3)
        early = np.unique(stream.batch(0)["item"])
        late = np.unique(stream.batch(9)["item"])
        self.assertGreater(len(np.setdiff1d(late, early)), 0.3 * len(late))

    def test_labels_have_the_teachers_probabilities(self):
        batch = wide_deep_generator.GeneratedStream(10**6, 10**5, 3).batch(0)
        for low in np.arange(0.0, 1.0, 0.25):
            chosen = np.abs(batch["probability"] - low - 0.125) < 0.125
            deviation = 0.5 / np.sqrt(chosen.sum())
            self.assertNear(
                batch["label"][chosen].mean(),
                batch["probability"][chosen].mean(),
                4.0 * deviation,
            )

    def test_an_effect_depends_on_the_id_alone(self):
        ids = wide_deep_generator.hash_ids(np.arange(100_000), salt=1)
        self.assertLen(np.unique(ids), 100_000)
        effects = wide_deep_generator.effects_of(ids, salt=1, deviation=0.5)
        self.assertAllEqual(
            effects[::-1],
            wide_deep_generator.effects_of(ids[::-1], salt=1, deviation=0.5),
        )
        self.assertNear(effects.mean(), 0.0, 0.01)
        self.assertNear(effects.std(), 0.5, 0.01)

    def test_mean_of_bags(self):
        means = wide_deep_generator.mean_of_bags(
            np.array([1.0, 3.0, 5.0]), np.array([0, 2, 1, 0])
        )
        self.assertAllEqual(means, [0.0, 2.0, 5.0, 0.0])


class MeasuresTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("right", [0.1, 0.2, 0.8, 0.9], 1.0),
        ("wrong", [0.9, 0.8, 0.2, 0.1], 0.0),
        ("tied", [0.5, 0.5, 0.5, 0.5], 0.5),
        ("one_pair_tied", [0.1, 0.4, 0.4, 0.9], 0.875),
    )
    def test_auc(self, predictions, expected):
        labels = np.array([0, 0, 1, 1])
        self.assertEqual(
            wide_deep.auc(labels, np.array(predictions, np.float32)), expected
        )

    def test_log_loss(self):
        loss = wide_deep.log_loss(
            np.array([1.0, 0.0]), np.array([0.5, 1.0], np.float32)
        )
        self.assertAllClose(loss, (np.log(2.0) - np.log(1e-7)) / 2, rtol=1e-5)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("data_without_format", "--data=x", "--data and --format go together"),
        ("format_alone", "--format=adult", "--data and --format go together"),
        ("no_examples", "--examples=0", "0 is not greater than 0"),
        ("no_tensorboard", "--log_dir=x", "needs TensorBoard: pip install"),
    )
    def test_refused(self, argument, message):
        errors = io.StringIO()
        no_module = mock.patch.object(
            importlib.util, "find_spec", return_value=None
        )
        with contextlib.redirect_stderr(errors), no_module:
            with self.assertRaises(SystemExit):
                wide_deep.parse_arguments([argument])
        self.assertIn(message, errors.getvalue())


if __name__ == "__main__":
    tf.test.main()
