"""A training on files that is killed reads each sample once."""

import pathlib
import re
import subprocess
import sys
import tempfile

import read_restart_program as program
from absl.testing import absltest
from paths import ROOT

import tf_ext


class RestartTest(absltest.TestCase):
    def test_lives_read_what_one_would_have(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for index in range(program.FILES):
                first = index * program.RECORDS
                lines = [
                    f"{number}\t1\n"
                    for number in range(first, first + program.RECORDS)
                ]
                lines.insert(index, "malformed\n")
                (folder / f"part-{index}").write_text("".join(lines))
            read = []
            # Within the first epoch, within the third, and never.
            for life, killed in enumerate((5, 12, 0)):
                ended = subprocess.run(
                    [
                        sys.executable,
                        ROOT / "tests/support/read_restart_program.py",
                        *(folder, str(life), str(killed)),
                    ],
                    timeout=240,
                    capture_output=True,
                    text=True,
                )
                expected = -9 if killed else 0
                self.assertEqual(ended.returncode, expected, ended.stderr)
                text = (folder / f"{life}.txt").read_text()
                read += [int(number) for number in re.findall(r"\d+", text)]
            self.assertEqual(read, self._whole(folder))

    def _whole(self, folder):
        schema = tf_ext.data.Schema(
            [
                tf_ext.data.Field("id", "int64"),
                tf_ext.data.Field("y", "float32"),
            ],
            label="y",
        )
        data = tf_ext.data.read(
            folder / "part-*",
            schema,
            "tsv",
            batch_size=program.BATCH,
            shuffle=40,
            repeat=True,
            max_errors=0.1,
        ).take(program.STEPS * program.EPOCHS)
        numbers = [n for x, _ in data for n in x["id"].numpy().tolist()]
        records = program.FILES * program.RECORDS
        for first in range(0, len(numbers) - records, records):
            self.assertCountEqual(
                numbers[first : first + records], range(records)
            )
        return numbers


if __name__ == "__main__":
    absltest.main()
