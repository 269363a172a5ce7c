# SPDX-License-Identifier: Apache-2.0
"""A training on files that is killed reads each sample once."""

import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest, parameterized
from oracles import readable_records as records
from paths import PROGRAMS
from processes import program_environment
from programs import read_restart_program as program

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "*[!0-9]",
        "*0",
    ),
]

# Within the first epoch, within the third, and never.
_KILLED = (5, 12, 0)


class _KilledError(Exception):
    pass


def _raise():
    raise _KilledError


def _write(folder, format):
    for index in range(program.FILES):
        first = index * program.RECORDS
        numbers = range(first, first + program.RECORDS)
        if format == "tsv":
            samples = [f"{number}\t1".encode() for number in numbers]
            bad = b"malformed"
        else:
            samples = [records.sample(number, format) for number in numbers]
            bad = records.malformed(format)
        samples.insert(index, bad)
        records.write_samples(folder / f"part-{index}", format, samples)


class RestartTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)

    def _check(self, format):
        """The lives have read what one would have."""
        read = []
        for life in range(len(_KILLED)):
            text = (self.folder / f"{life}.txt").read_text()
            read += [int(number) for number in re.findall(r"\d+", text)]
        data = program.read(self.folder, format)
        data = data.take(program.STEPS * program.EPOCHS)
        whole = [n for x, _ in data for n in x["number"].numpy().tolist()]
        self.assertEqual(read, whole)
        index, count = program.SHARD
        numbers = [
            number
            for file in range(program.FILES)[index::count]
            for number in range(program.RECORDS * program.FILES)
            if number // program.RECORDS == file
        ]
        passes = len(whole) // len(numbers)
        self.assertGreaterEqual(passes, 2)
        orders = set()
        for first in range(passes):
            one = whole[first * len(numbers) :][: len(numbers)]
            self.assertCountEqual(one, numbers)
            orders.add(tuple(one))
        self.assertLen(orders, passes)

    def _kill_processes(self, format):
        _write(self.folder, format)
        for life, killed in enumerate(_KILLED):
            ended = subprocess.run(
                [
                    sys.executable,
                    PROGRAMS / "read_restart_program.py",
                    *(self.folder, format, str(life), str(killed)),
                ],
                env=program_environment(),
                timeout=240,
                capture_output=True,
                text=True,
            )
            expected = -9 if killed else 0
            self.assertEqual(ended.returncode, expected, ended.stderr)
        self._check(format)

    @pytest.mark.slow
    def test_processes_that_are_killed(self):
        self._kill_processes("tsv")

    @parameterized.parameters(*records.FORMATS)
    @pytest.mark.slow
    def test_processes_that_are_killed_with_other_formats(self, format):
        self._kill_processes(format)

    @parameterized.parameters(*records.FORMATS)
    def test_training_that_fails(self, format):
        _write(self.folder, format)
        for life, killed in enumerate(_KILLED):
            stop = program.Stop(killed, _raise)
            if killed:
                with self.assertRaises(_KilledError):
                    program.train(self.folder, format, life, stop)
            else:
                program.train(self.folder, format, life, stop)
        self._check(format)


if __name__ == "__main__":
    absltest.main()
