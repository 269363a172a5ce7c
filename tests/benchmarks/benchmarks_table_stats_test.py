"""The plot of reports of TableStats."""

import importlib.util
import pathlib
import sys

import numpy as np
import tensorflow as tf
from models.model_building import generator
from models.small_models import batch, compiled, functional, table
from paths import ROOT

from tf_ext.callbacks import TableStats

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import run


class TableStatsPlotTest(tf.test.TestCase):
    def _plot(self, path):
        folder = self.get_temp_dir()
        args = run.parse_arguments(
            ["plot_table_stats", f"--json={path}", f"--output={folder}"]
        )
        run.run("plot_table_stats", args, threads=2)
        return pathlib.Path(folder, "table_stats.png")

    def test_plots_reports(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("matplotlib is not installed")
        from matplotlib import image

        model = compiled(functional(table()))
        folder = self.get_temp_dir()
        features, labels = batch(generator(self), 64)
        model.fit(
            features,
            labels,
            batch_size=8,
            callbacks=[TableStats(folder, every=2)],
            verbose=0,
        )
        drawn = image.imread(self._plot(f"{folder}/tables.jsonl"))
        self.assertGreater(len(np.unique(drawn.reshape(-1, 4), axis=0)), 20)

    def test_refuses_other_files(self):
        path = pathlib.Path(self.get_temp_dir(), "results")
        path.write_text('{"benchmark": "pull"}\n')
        with self.assertRaisesRegex(SystemExit, "no reports of TableStats"):
            self._plot(path)


if __name__ == "__main__":
    tf.test.main()
