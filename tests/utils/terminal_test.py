# SPDX-License-Identifier: Apache-2.0
"""What commands print, and the status that they end with."""

import contextlib
import io
from unittest import mock

from absl.testing import absltest, parameterized

from tf_ext import _terminal


class _DamagedError(ValueError):
    pass


class RunTest(parameterized.TestCase):
    def run_with(self, effect):
        """The status of a command, and what it prints."""
        parser = _terminal.new_parser("it", "Does it.", "Do it.")
        parser.set_defaults(run=mock.Mock(side_effect=effect))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = _terminal.run(parser, [], _DamagedError, (KeyError,))
        self.assertEmpty(out.getvalue())
        return status, err.getvalue()

    @parameterized.parameters(
        (_DamagedError("a\nfile"), 1, "a file"),
        (ValueError("a"), 2, "a"),
        (OSError("a"), 2, "a"),
        (ModuleNotFoundError("a"), 2, "a"),
        (KeyError("a"), 2, "'a'"),
        (MemoryError(), 2, "there is not enough memory."),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written."),
    )
    def test_errors_take_a_line(self, error, status, text):
        found = self.run_with(error)
        self.assertEqual(found, (status, f"it: error: {text}\n"))

    def test_defects_are_raised(self):
        with self.assertRaises(TypeError):
            self.run_with(TypeError)

    def test_the_status_is_that_of_the_command(self):
        self.assertEqual(self.run_with([0]), (0, ""))
        self.assertEqual(self.run_with([1]), (1, ""))


class HelpTest(absltest.TestCase):
    def test_paragraphs_stay_as_they_are(self):
        ends = "Status:\n  0  all is well\n  1  files are damaged"
        parser = _terminal.new_parser("it", "Does\nit.", ends)
        parser.add_argument("--a-long-name", help="what it is for")
        text = parser.format_help()
        self.assertStartsWith(text, "usage: it ")
        self.assertIn("\nDoes\nit.\n", text)
        self.assertEndsWith(text, f"\n{ends}\n")
        # Help begins beside names of this width, not in a line of its own.
        self.assertRegex(text, r"--a-long-name A_LONG_NAME\n {16}what it is")


class WordsTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1449, "1.4 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (999_950_000, "1.0 GB"),
        (999_949_999_999, "999.9 GB"),
        (999_950_000_000, "1.0 TB"),
        (2_345_000_000_000_000, "2,345.0 TB"),
    )
    def test_sizes(self, size, words):
        self.assertEqual(_terminal.size(size), words)

    @parameterized.parameters(
        (0, "0 files"), (1, "1 file"), (2, "2 files"), (1000, "1,000 files")
    )
    def test_counts(self, count, words):
        self.assertEqual(_terminal.count(range(count), "file"), words)

    def test_columns(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            _terminal.print_columns(
                [("rows", "name", ""), ("1,000", "a", "x"), ("7", "bcdef", "")],
                [1, 2],
            )
        self.assertEqual(
            out.getvalue(), " rows  name\n1,000  a      x\n    7  bcdef\n"
        )


if __name__ == "__main__":
    absltest.main()
