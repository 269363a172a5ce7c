# SPDX-License-Identifier: Apache-2.0
"""The real data of the Wide & Deep example, in small files."""

import contextlib
import io
import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

pytestmark = pytest.mark.slow_tests(
    "AdultTest::test_epochs_are_shuffled_the_test_part_is_not",
    "CriteoCsvTest::test_the_last_fifth_of_the_lines_is_held_out",
    "CriteoTest::test_parts_and_orders_of_many_windows",
)

_EXAMPLES = ROOT / "examples"

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_EXAMPLES))

import wide_deep  # noqa: E402
import wide_deep_data  # noqa: E402

_ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
    "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
)


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
        self.assertAllEqual(features["workclass"], [b" State-gov"])
        self.assertAllEqual(features["native_country"], [b" United-States"])
        self.assertAllEqual(labels, [0.0])
        self.assertAllEqual(data.test_labels(), [1.0])
        self.assertIsNone(data.best_predictions())
        self.assertEmpty(errors)

    def test_inputs_and_columns_are_as_the_schema(self):
        data, _ = self._read(_ADULT_LINE)
        inputs = wide_deep.make_inputs(data.schema)
        self.assertEqual(inputs["age"].dtype, "float32")
        self.assertEqual(inputs["sex"].dtype, "string")
        self.assertNotIn("income", inputs)
        columns, _ = wide_deep.make_columns(data, None)
        found = {column.key: column.boundaries for column in columns}
        self.assertCountEqual(found, inputs)
        self.assertAllEqual(found["age"], [39.0])
        self.assertIsNone(found["sex"])

    def test_malformed_records_are_counted_reported_and_left_out(self):
        lines = [
            _ADULT_LINE.replace("39", "20"),
            "39, State-gov",
            _ADULT_LINE.replace("39", "21"),
            _ADULT_LINE.replace("39", "22") + ", one field too many",
            _ADULT_LINE.replace("39", "old"),
            _ADULT_LINE.replace("39", "nan"),
            _ADULT_LINE.replace("39", "1e999"),
            "",
            _ADULT_LINE.replace("<=50K", "unknown"),
            # Otherwise a larger share than a hundredth.
            *[_ADULT_LINE] * 704,
        ]
        text = "\n".join(lines)
        test = "\n".join([lines[1], *[_ADULT_LINE] * 100])
        data, errors = self._read(text, test, 99)
        self.assertEndsWith(
            errors,
            "Left out 7 of 813 records: bad number: 3, unknown value: 1, "
            "wrong number of fields: 3\n",
        )
        self.assertEqual(data.train_examples, 706)
        self.assertEqual(data.test_examples, 100)
        ages = [features["age"].numpy() for features, _ in data.train()]
        self.assertCountEqual(np.concatenate(ages), [20, 21, *[39] * 704])
        self.assertEqual([len(batch) for batch in ages], [99] * 7 + [13])
        self.assertEqual(data.train().cardinality(), 8)

    def test_too_many_malformed_records(self):
        with self.assertRaisesRegex(
            tf.errors.OpError, "1 of the first 2 records are malformed, a share"
        ):
            self._read(f"{_ADULT_LINE}\nbad")

    def test_missing_values_read_as_the_default(self):
        line = _ADULT_LINE.replace("State-gov", "?").replace("39", "?")
        data, errors = self._read(f"{line}\n{_ADULT_LINE}", line)
        self.assertEmpty(errors)
        features, _ = next(iter(data.test()))
        self.assertAllEqual(features["workclass"], [b""])
        self.assertAllEqual(features["age"], [float("-inf")])
        self.assertEqual(data.boundaries["age"], [39.0])

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

    def test_a_part_without_records(self):
        with self.assertRaisesRegex(
            ValueError, "No record of .*/adult-test.csv can be read."
        ):
            self._read(_ADULT_LINE, "\n")


class CriteoCsvTest(tf.test.TestCase):
    """Reading small files with a header, separated by commas."""

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
                folder, wide_deep_data.CRITEO_CSV, batch_size=4, seed=1
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
        self.assertLen(data.schema.features, 39)
        features, _ = next(iter(data.test()))
        self.assertAllEqual(features["I1"], [1, float("-inf"), float("-inf")])
        self.assertAllEqual(features["C1"], [b"3380029.0", b"", b"1.0"])


class CriteoTest(tf.test.TestCase):
    """Reading small files as Criteo distributes them."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def _line(self, i, label=None, last="fb936136"):
        numbers = [str(i), "-1", "", *["7"] * 10]
        ids = [f"{i:08x}", "", *["68fd1e64"] * 23, last]
        label = str(i % 2) if label is None else label
        return "\t".join([label, *numbers, *ids])

    def _load(self, lines, name="train.txt"):
        (self.folder / name).write_text("".join(f"{one}\n" for one in lines))
        args = wide_deep.parse_arguments(
            [f"--data={self.folder}", "--format=criteo", "--batch_size=4"]
        )
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            return wide_deep.load_data(args), errors.getvalue()

    def test_values_labels_and_empty_fields(self):
        # No line is a header, and the last field may be empty, too.
        data, errors = self._load(
            [self._line(i, last="" if i % 2 else "0a") for i in range(10)]
        )
        self.assertEmpty(errors)
        self.assertEqual((data.train_examples, data.test_examples), (8, 2))
        self.assertLen(data.schema.features, 39)
        ((features, labels),) = data.test()
        self.assertAllEqual(labels, [0.0, 1.0])
        self.assertAllEqual(features["I1"], [8.0, 9.0])
        self.assertAllEqual(features["I2"], [-1.0, -1.0])
        self.assertAllEqual(features["I3"], [float("-inf")] * 2)
        self.assertAllEqual(features["C1"], [b"00000008", b"00000009"])
        self.assertAllEqual(features["C2"], [b"", b""])
        self.assertAllEqual(features["C26"], [b"0a", b""])

    def test_a_file_without_labels(self):
        # As the challenge's test.txt.
        lines = [self._line(i).partition("\t")[2] for i in range(4)]
        with self.assertRaisesRegex(
            tf.errors.OpError, "4 of the first 4 .* 4 wrong number of fields"
        ):
            self._load(lines)

    def test_parts_and_orders_of_many_windows(self):
        with mock.patch.object(wide_deep_data, "WINDOW_SIZE", 7):
            data, _ = self._load([self._line(i) for i in range(47)])
            dataset, again = data.train(), data.train()
        epochs = [
            np.concatenate([features["I1"] for features, _ in part])
            for part in (dataset, dataset, again, data.test())
        ]
        self.assertCountEqual(epochs[0], range(38))
        self.assertCountEqual(epochs[1], range(38))
        self.assertNotAllEqual(epochs[0], epochs[1])
        self.assertAllEqual(epochs[0], epochs[2])
        # Together are the rows of a window.
        self.assertCountEqual(epochs[0][:7], range(7))
        self.assertNotAllEqual(epochs[0][:7], range(7))
        self.assertAllEqual(epochs[3], range(38, 47))
        # Of training alone.
        self.assertEqual(max(data.boundaries["I1"]), 35)

    def test_days_and_no_archives(self):
        (self.folder / "day_0.gz").write_text("not text")
        self._load([self._line(i) for i in range(5)], "day_11")
        data, _ = self._load([self._line(i) for i in range(5)], "day_2")
        self.assertEqual(data.train_examples + data.test_examples, 10)

    def test_a_folder_without_the_files(self):
        with self.assertRaisesRegex(
            FileNotFoundError,
            "No file 'train.txt' or 'dac_sample.txt' or .* or 'part_.*csv' in "
            f"the folder {self.folder}",
        ):
            wide_deep_data.find_format(self.folder, "criteo")


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


if __name__ == "__main__":
    tf.test.main()
