"""The benchmark of admission runs, at a tiny size."""

import contextlib
import importlib.util
import io
import pathlib
import sys
from unittest import mock

import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import harness
import lifetime_benchmarks
import run

_SIZES = {
    "_BATCH": 110,
    "_STREAM_BATCHES": 8,
    "_ROWS": 300,
    "_EXAMPLES": 2000,
    "_THRESHOLDS": (1, 2),
}


class LifetimeBenchmarkTest(tf.test.TestCase):
    def _run(self, name):
        """Runs in this process; returns what was printed and the results."""
        folder = self.get_temp_dir()
        path = pathlib.Path(folder, "results")
        args = run.parse_arguments(
            [
                *(name, "--dim=4", "--repeats=2"),
                f"--json={path}",
                f"--output={folder}",
            ]
        )
        printed = io.StringIO()
        with (
            mock.patch.multiple(lifetime_benchmarks, **_SIZES),
            contextlib.redirect_stdout(printed),
        ):
            run.run(name, args, threads=2)
        return printed.getvalue(), harness.read_json(path)

    def test_lifetime_then_plot(self):
        printed, lines = self._run("lifetime")
        every, count, forget, plain, *_, first, second = lines
        self.assertEqual(count["case"], "Count(2)")
        self.assertLess(count["rows"], every["rows"] / 4)
        self.assertEqual(count["rows"], forget["rows"])
        self.assertEqual(plain["case"], "no options")
        self.assertLess(second["rows"], first["rows"])
        self.assertEqual([first["admission"], second["admission"]], [1, 2])
        self.assertIn("of every id's", printed)
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("matplotlib is not installed")
        self._run("plot_lifetime")
        plot = pathlib.Path(self.get_temp_dir(), "rows.png")
        self.assertGreater(plot.stat().st_size, 0)


if __name__ == "__main__":
    tf.test.main()
