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
import tensorflow as tf
from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXAMPLES = _ROOT / "examples"
_DATA = _ROOT.parent / "shared" / "data"
_TIMEOUT_SECONDS = 240

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_EXAMPLES))

import wide_deep  # noqa: E402
import wide_deep_data  # noqa: E402
import wide_deep_generator  # noqa: E402

_ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
    "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
)


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

    def test_legacy_keras_and_two_epochs(self):
        if importlib.util.find_spec("tf_keras") is None:
            self.skipTest("tf_keras is not installed")
        result = _run(
            "--examples=40000",
            "--batch_size=512",
            "--epochs=2",
            TF_USE_LEGACY_KERAS="1",
        )
        self.assertEqual(result["examples"], 80_000)
        self.assertGreater(result["auc"], 0.7)

    def test_tensorboard_logs(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("tensorboard is not installed")
        log_dir = pathlib.Path(self.get_temp_dir(), "logs")
        _run("--examples=5000", "--batch_size=512", f"--log_dir={log_dir}")
        self.assertNotEmpty(list(log_dir.rglob("events.out.tfevents.*")))


class RealDataRunTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("adult", "adult", "adult", 0.905, 4 * 32_561),
        ("criteo", "criteo", "criteo_kaggle_20k", 0.76, 4 * 16_000),
    )
    def test_auc(self, name, folder, bound, examples):
        path = _DATA / folder
        if not path.exists():
            self.skipTest(f"there is no {path}")
        result = _run(f"--data={path}", f"--format={name}")
        self.assertGreater(result["auc"], bound)
        self.assertIsNone(result["best_auc"])
        self.assertEqual(result["examples"], examples)


class AdultTest(tf.test.TestCase):
    """Reading small files of the format of the Adult data set."""

    def _read(self, train, test=_ADULT_LINE, batch_size=2):
        """Returns the data set and what was said on standard error."""
        folder = pathlib.Path(self.get_temp_dir())
        (folder / "adult-train.csv").write_text(train)
        (folder / "adult-test.csv").write_text(test)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            data = wide_deep_data.TextFiles(
                folder, wide_deep_data.ADULT, batch_size, seed=1
            )
        return data, errors.getvalue()

    def test_values_and_labels(self):
        data, errors = self._read(
            _ADULT_LINE, _ADULT_LINE.replace("<=50K", ">50K.")
        )
        features, labels = next(iter(data.train()))
        self.assertEqual(len(features), 14)
        self.assertAllEqual(features["age"], [39.0])
        self.assertAllEqual(features["workclass"], [b"State-gov"])
        self.assertAllEqual(features["native_country"], [b"United-States"])
        self.assertAllEqual(labels, [0.0])
        self.assertAllEqual(data.test_labels(), [1.0])
        self.assertIsNone(data.best_predictions())
        self.assertEmpty(errors)

    def test_fields_say_how_the_model_reads_them(self):
        fields = {
            field.name: field for field in self._read(_ADULT_LINE)[0].fields
        }
        self.assertEqual(fields["age"].dtype, "float32")
        self.assertEqual(fields["age"].boundaries, [39.0])
        self.assertEqual(fields["sex"].dtype, "string")
        self.assertIsNone(fields["sex"].boundaries)
        self.assertNotIn("income", fields)

    def test_bad_lines_are_counted_reported_and_left_out(self):
        good = [_ADULT_LINE.replace("39", f"{age}") for age in range(20, 27)]
        lines = [
            good[0],
            "39, State-gov",
            good[1],
            good[2] + ", one field too many",
            good[3],
            _ADULT_LINE.replace("39", "old"),
            _ADULT_LINE.replace("39", "nan"),
            _ADULT_LINE.replace("39", "1e999"),
            _ADULT_LINE.replace("<=50K", "unknown"),
            _ADULT_LINE.replace("<=50K", ""),
            *good[4:],
        ]
        # Age 22 has too many fields.
        data, errors = self._read("\n".join(lines), lines[1] + "\n" + good[0])
        self.assertEqual(
            errors,
            "Skipped 7 of 13 lines of the training part: "
            "wrong number of fields: 2, unparsable number: 3, "
            "unknown label: 2\n"
            "Skipped 1 of 2 lines of the test part: "
            "wrong number of fields: 1\n",
        )
        self.assertEqual(data.train_examples, 6)
        self.assertEqual(data.test_examples, 1)
        ages = np.concatenate([f["age"] for f, _ in data.train()])
        self.assertCountEqual(ages, [20, 21, 23, 24, 25, 26])

    def test_batches_are_full_in_spite_of_bad_lines(self):
        lines = [_ADULT_LINE, "bad", "bad", "bad", _ADULT_LINE, "bad"]
        data, _ = self._read("\n".join(lines * 3))
        sizes = [len(labels) for _, labels in data.train()]
        self.assertEqual(sizes, [2, 2, 2])
        self.assertEqual(data.train().cardinality(), 3)

    def test_empty_lines_are_not_bad(self):
        data, errors = self._read(f"\n{_ADULT_LINE}\n   \n{_ADULT_LINE}\n\n")
        self.assertEqual(data.train_examples, 2)
        self.assertEmpty(errors)

    def test_missing_values_read_as_the_default(self):
        line = _ADULT_LINE.replace("State-gov", "?").replace("39", "?")
        data, errors = self._read(f"{line}\n{_ADULT_LINE}", line)
        self.assertEmpty(errors)
        features, _ = next(iter(data.test()))
        self.assertAllEqual(features["workclass"], [b""])
        self.assertAllEqual(features["age"], [float("-inf")])
        (age,) = [field for field in data.fields if field.name == "age"]
        self.assertEqual(age.boundaries, [39.0])

    def test_epochs_are_shuffled_the_test_part_is_not(self):
        ages = list(range(20, 60))
        text = "\n".join(_ADULT_LINE.replace("39", str(age)) for age in ages)
        data, _ = self._read(text, text, batch_size=7)
        epochs = [
            np.concatenate([f["age"] for f, _ in part]).tolist()
            for part in (data.train(), data.train(), data.test())
        ]
        self.assertCountEqual(epochs[0], ages)
        self.assertNotEqual(epochs[0], ages)
        self.assertEqual(epochs[0], epochs[1])
        self.assertEqual(epochs[2], ages)
        dataset = data.train()
        epochs = [[f["age"][0] for f, _ in dataset] for _ in range(2)]
        self.assertNotEqual(epochs[0], epochs[1])

    def test_a_folder_without_the_files(self):
        folder = self.get_temp_dir()
        with self.assertRaisesRegex(
            FileNotFoundError,
            f"No file 'adult-train.csv' in the folder {folder}",
        ):
            wide_deep_data.TextFiles(folder, wide_deep_data.ADULT, 2, 1)

    def test_a_part_without_a_good_line(self):
        with self.assertRaisesRegex(
            ValueError, "The test part has no line that can be read."
        ):
            self._read(_ADULT_LINE, "bad")


class CriteoTest(tf.test.TestCase):
    """Reading small files of the format of the Criteo data set."""

    def _read(self, *files):
        folder = pathlib.Path(self.get_temp_dir())
        names = ["Id", "Label"] + [f"I{i}" for i in range(1, 14)]
        names += [f"C{i}" for i in range(1, 27)]
        for i, lines in enumerate(files):
            text = "\n".join([",".join(names), *lines])
            (folder / f"part_{i}.csv").write_text(text)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            data = wide_deep_data.TextFiles(
                folder, wide_deep_data.CRITEO, batch_size=4, seed=1
            )
        return data, errors.getvalue()

    def _line(self, first_number, first_id="1.0", label="0"):
        numbers = [str(first_number)] + ["2.5"] * 12
        return ",".join(["77", label, *numbers, first_id] + ["8.0"] * 25)

    def test_the_last_fifth_of_the_lines_is_held_out(self):
        lines = [self._line(i, label=str(i % 2)) for i in range(10)]
        data, errors = self._read(lines[:7], lines[7:])
        self.assertEmpty(errors)
        self.assertEqual(data.train_examples, 8)
        trained = np.concatenate([f["I1"] for f, _ in data.train()])
        self.assertCountEqual(trained, range(8))
        ((features, labels),) = data.test()
        self.assertAllEqual(features["I1"], [8.0, 9.0])
        self.assertAllEqual(labels, [0.0, 1.0])
        self.assertAllEqual(data.test_labels(), [0.0, 1.0])

    def test_missing_values_and_ids_as_text(self):
        lines = [
            self._line(1, "3380029.0"),
            self._line("", ""),
            self._line('""'),
        ]
        data, errors = self._read(lines * 5)
        self.assertEmpty(errors)
        self.assertEqual(len(data.fields), 39)
        features, _ = next(iter(data.test()))
        self.assertAllEqual(features["I1"], [1, float("-inf"), float("-inf")])
        self.assertAllEqual(features["C1"], [b"3380029.0", b"", b"1.0"])

    def test_bad_lines(self):
        lines = [
            self._line(1),
            "77,0",
            self._line("1.0.0"),
            self._line(1, label=""),
        ]
        data, errors = self._read(lines * 5)
        self.assertEqual(
            errors,
            "Skipped 12 of 16 lines of the training part: "
            "wrong number of fields: 4, unparsable number: 4, "
            "unknown label: 4\n"
            "Skipped 3 of 4 lines of the test part: "
            "wrong number of fields: 1, unparsable number: 1, "
            "unknown label: 1\n",
        )
        self.assertEqual(data.train_examples, 4)


class QuantileBoundariesTest(tf.test.TestCase):
    def test_buckets_are_about_equally_full(self):
        numbers = np.random.default_rng(1).normal(size=10_000)
        boundaries = wide_deep_data.quantile_boundaries(
            numbers.astype(np.float32), buckets=10
        )
        counts = np.bincount(np.digitize(numbers, boundaries), minlength=11)
        self.assertEqual(counts[0], 0)
        self.assertAllClose(counts[1:], [1000] * 10, rtol=0.01)

    def test_a_common_number_has_a_bucket_of_its_own(self):
        numbers = np.array([-1.0, 0, 0, 0, 0, 0, 0, 0, 2, 3], np.float32)
        boundaries = wide_deep_data.quantile_boundaries(numbers, buckets=3)
        buckets = np.digitize([-1.0, 0, 2], boundaries)
        self.assertLen(set(buckets), 3)

    def test_one_number(self):
        self.assertEqual(
            wide_deep_data.quantile_boundaries(np.full(5, 7.0, np.float32)), [7]
        )

    def test_no_number(self):
        self.assertEqual(
            wide_deep_data.quantile_boundaries(np.full(5, -np.inf)), [0]
        )


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
        self.assertAllEqual(labels, expected["label"])
        self.assertIn(0, expected["tag_counts"])

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
