# SPDX-License-Identifier: Apache-2.0
"""The results of `column_importance`: intervals, text and plot."""

import importlib.util
import pathlib
import sys
import unittest.mock

import tensorflow as tf

import tf_ext
from tf_ext.analysis import importance, results


class ResultsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.importance = tf_ext.analysis.Importance(
            "AUC",
            0.75,
            "shuffle",
            (
                tf_ext.analysis.ColumnLoss("user", 0.2, 0.15, 0.25, (0.2, 0.2)),
                tf_ext.analysis.ColumnLoss(
                    "no", -0.01, -0.03, 0.01, (0.0, -0.02)
                ),
            ),
        )

    def test_text(self):
        self.assertEqual(
            str(self.importance),
            "AUC 0.7500; its loss if a column is shuffled:\n"
            "user   0.2000  [0.1500, 0.2500]\n"
            "no    -0.0100  [-0.0300, 0.0100]",
        )

    @unittest.skipUnless(
        importlib.util.find_spec("matplotlib"), "matplotlib is not installed"
    )
    def test_plot(self):
        path = pathlib.Path(self.get_temp_dir(), "importance.svg")
        figures = []

        class Figure(results._figure_class()):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                figures.append(self)

        with (
            unittest.mock.patch.dict(
                "matplotlib.rcParams", {"svg.fonttype": "none"}
            ),
            unittest.mock.patch.object(
                results, "_figure_class", return_value=Figure
            ),
        ):
            self.importance.plot(path)
        text = path.read_text()
        for words in (
            "loss of AUC if a column is shuffled, from 0.7500",
            "user",
            "no",
        ):
            self.assertIn(f">{words}<", text)
        # The first one is at the top.
        self.assertLess(text.index(">user<"), text.index(">no<"))
        [axes] = figures[0].axes
        self.assertAllClose(
            [bar.get_width() for bar in axes.patches], [0.2, -0.01]
        )
        [intervals] = [
            lines.get_segments()
            for container in axes.containers
            for lines in getattr(container, "lines", [(), (), ()])[2]
        ]
        self.assertAllClose(intervals[0], [[0.15, 0], [0.25, 0]])
        self.assertAllClose(intervals[1], [[-0.03, 1], [0.01, 1]])

    def test_plot_without_matplotlib(self):
        with (
            unittest.mock.patch.dict(sys.modules, {"matplotlib": None}),
            self.assertRaisesRegex(
                ModuleNotFoundError, r"pip install 'tf_ext\[plot\]'"
            ),
        ):
            self.importance.plot("never.png")


class IntervalTest(tf.test.TestCase):
    def test_quantiles_of_student(self):
        for freedom, quantile in (
            (1, 12.7062047),
            (2, 4.3026527),
            (9, 2.2621572),
            (99, 1.9842170),
        ):
            found = importance._t_quantile(freedom)
            self.assertAllClose(found, quantile, 1e-7, 0)


if __name__ == "__main__":
    tf.test.main()
