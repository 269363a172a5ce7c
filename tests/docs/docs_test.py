# SPDX-License-Identifier: Apache-2.0
"""The code of README.md and of some pages of docs/ runs, in their order."""

import dataclasses
import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from docs_util import Block, blocks, definitions, program
from oracles import tensornet_files, tfra_files
from paths import ROOT
from processes import run_program

from tf_ext._keras import IS_KERAS_3

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "CodeTest::test_from_tensornet",
        "CodeTest::test_from_tfra",
        "CodeTest::test_importance",
        "CodeTest::test_reading",
        "PagesTest::test_*",
    ),
]

_SNAPSHOTS = "docs/snapshots.md"
_SERVING = "docs/serving.md"
_MODELS = "docs/models.md"
_SEQUENCES = "docs/sequences.md"
_EVALUATION = "docs/evaluation.md"
# They continue each other.
_RECIPES = [
    "DIN",
    "Multi-task: MMoE",
    "SASRec",
    "Sampled negatives and losses",
    "Transfer learning",
    "Training day by day",
    "Several models",
    "Custom training loops",
]
_STOCK = "A SavedModel of TensorFlow's own ops"
_STORE = "Rows in a key-value store"
_FOLLOW = "Rows that follow training"
_SHOW_ERROR = """
try:
{}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}"[:500])
"""
# A training that the page speaks of, and what is to be true afterwards.
_POINTS = Block(
    "here",
    "python",
    'points = tf_ext.callbacks.TableSnapshot("/data/points")\n'
    "model.fit(dataset, callbacks=[points])\n",
)
_SAME_ANSWERS = Block(
    "here",
    "python",
    "assert (served.predict(features) == model.predict(features)).all()\n"
    "follower.close()\n",
)
# Of a subclassed model: saves it, and what it predicts of which features.
_SAVE = """
import numpy as np
features_of_{name} = {{k: np.asarray(v) for k, v in {features}.items()}}
{name}.save("{name}.keras")
np.savez(
    "{name}.npz",
    features=features_of_{name},
    outputs=np.array(tf.nest.flatten({name}.predict(features_of_{name}))),
)
"""
_LOAD = """
import numpy as np
loaded = keras.models.load_model(
    "{name}.keras", custom_objects={{"{cls}": {cls}}}, compile={compile}
)
saved = np.load("{name}.npz", allow_pickle=True)
outputs = np.array(tf.nest.flatten(loaded.predict(saved["features"].item())))
np.testing.assert_allclose(outputs, saved["outputs"], rtol=0, atol=1e-6)
"""
_PAGES = [
    "README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]


class PagesTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *((re.sub(r"\W", "_", page), page) for page in _PAGES)
    )
    def test_python_is_python(self, page):
        if "```python" not in (ROOT / page).read_text():
            self.skipTest("no Python")
        for block in blocks(page, "python"):
            compile(block.text, block.place, "exec")

    def test_links_lead_somewhere(self):
        for page in [
            *_PAGES,
            "CONTRIBUTING.md",
            "RELEASE.md",
            "benchmarks/README.md",
        ]:
            path = ROOT / page
            for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
                if link.startswith("http"):
                    continue
                file, _, heading = link.partition("#")
                target = path.parent / file if file else path
                self.assertTrue(target.exists(), f"{page}: {link}")
                if heading:
                    self.assertIn(heading, _anchors(target), f"{page}: {link}")


def _anchors(page):
    """What headings of a page are linked by."""
    lines = page.read_text().splitlines()
    headings = [one.lstrip("# ").lower() for one in lines if one[:1] == "#"]
    return {re.sub(r"[^\w\- ]", "", h).replace(" ", "-") for h in headings}


def _documented_errors():
    """The parts of each error that _SERVING has of loading without tf_ext."""
    text = (ROOT / _SERVING).read_text()
    _, _, table = text.partition("Without `import tf_ext`, loading fails")
    rows = re.findall(r"^\| `+(.*?)`+ +\|", table, re.MULTILINE)
    return [one.strip().split("...") for one in rows[:2]]


class CodeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def _run(self, page_blocks):
        return run_program(program(page_blocks, self.folder), self.folder)

    def _run_and_load(self, page_blocks, name, cls, features, compile=True):
        """Runs blocks, and loads one of their models in a new process."""
        names = {
            "name": name,
            "cls": cls,
            "features": features,
            "compile": compile,
        }
        save = Block("save", "python", _SAVE.format(**names))
        printed = self._run([*page_blocks, save])
        load = Block("load", "python", _LOAD.format(**names))
        self._run([definitions(page_blocks), load])
        return printed

    @pytest.mark.documents(
        "README.md", _SNAPSHOTS, "docs/rows.md", _EVALUATION, _SERVING
    )
    def test_quick_start_loading_and_snapshots(self):
        start = blocks("README.md", "python", section="Quick start")
        rows = blocks("docs/rows.md", "python")
        metrics = blocks(
            _EVALUATION, "python", section="Metrics and multi-task"
        )
        printed = self._run_and_load(
            [*start, *blocks(_SNAPSHOTS, "python"), *rows, *metrics],
            "two_tasks",
            "ClickAndBuy",
            "features",
        )
        shown = (ROOT / "README.md").read_text().split("It prints,")[1]
        losses = [_losses(text)[:2] for text in (printed, shown)]
        self.assertLen(losses[1], 2)
        np.testing.assert_allclose(*losses, atol=2e-3)
        for block in blocks(_SERVING, "python", section="Loading with tf_ext"):
            # In a process of its own, which has not loaded anything before.
            self.assertRegex(
                self._run([block]), r"\[\[0\.\d+.*\]\s+\[0\.\d+.*\]\]"
            )
            text = block.text.replace("import tf_ext\n", "")
            text = _SHOW_ERROR.format(textwrap.indent(text, "    "))
            found = self._run([dataclasses.replace(block, text=text)])
            if "load_model" in text and not IS_KERAS_3:
                self.assertRegex(found, r"\[\[0\.\d+")
                continue
            self.assertTrue(
                any(
                    all(part in found for part in error)
                    for error in _documented_errors()
                ),
                found,
            )

        self._run_commands(_SNAPSHOTS, 7)
        self.assertTrue(pathlib.Path(self.folder, "deep.parquet").exists())

    @pytest.mark.documents(_SEQUENCES)
    def test_sequences_and_retrieval(self):
        sequences = blocks(_SEQUENCES, "python", section="Sequences")
        retrieval = blocks(_SEQUENCES, "python", section="Retrieval")
        printed = self._run_and_load(
            [*sequences, *retrieval],
            "towers",
            "TwoTowers",
            "pairs",
            compile=False,  # Its loss is a lambda.
        ).split("\n")
        # As the comments say.
        self.assertEqual(printed[0], "5")
        found = re.findall(r"b'(\w+)'", printed[1])
        self.assertCountEqual(found, ["bread", "soap", "rice"])

    def test_reading(self):
        first = blocks("docs/data.md", "python")[0]
        shown = (ROOT / "docs/data.md").read_text().split("```")[3].strip()
        self.assertEqual(self._run([first]).strip(), shown)

    @pytest.mark.documents("docs/streaming.md")
    def test_streaming(self):
        first = blocks("docs/streaming.md", "python")[0]
        shown = (ROOT / "docs/streaming.md").read_text().split("```")[3]
        (store,) = blocks(
            "docs/streaming.md", "python", section="Publishing to a store"
        )
        printed = self._run([first, store]).strip()
        self.assertStartsWith(printed, shown.strip())
        self.assertRegex(printed, r"Versions\(current=\d, .*pinned=False\)$")

    @pytest.mark.documents("docs/recipes.md")
    def test_recipes(self):
        printed = self._run_and_load(
            [
                block
                for section in _RECIPES
                for block in blocks(
                    "docs/recipes.md", "python", section=section
                )
            ],
            "sasrec",
            "SASRec",
            "sequences",
        ).split("\n")
        # As the comments say.
        self.assertEqual(printed[0], "5")
        self.assertEqual(
            printed[1:3],
            [
                "2024-01-30 Evicted(examined=2, evicted=0)",
                "2024-01-31 Evicted(examined=2, evicted=0)",
            ],
        )

    @pytest.mark.documents(_MODELS)
    def test_ranking(self):
        section = "Ranking: DCN and DLRM"
        printed = self._run(blocks(_MODELS, "python", section=section))
        self.assertEqual(printed.split(), ["True"] * 3)

    def test_importance(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("matplotlib is not installed")
        section = "Importance of columns"
        printed = self._run(blocks(_EVALUATION, "python", section=section))
        names = [line.split()[0] for line in printed.splitlines()]
        self.assertEqual(names[:4], ["AUC", "user", "item", "city"])
        self.assertTrue(pathlib.Path(self.folder, "importance.png").exists())

    @pytest.mark.documents("docs/recommenders.md")
    def test_recommenders(self):
        # Each library runs with one of the two Kerases.
        section = "keras-rs" if IS_KERAS_3 else "TensorFlow Recommenders"
        page = "docs/recommenders.md"
        self._run(blocks(page, "python", section=section))

    def test_from_tfra(self):
        values = np.random.default_rng(0).random((9, 32)).astype(np.float32)
        lookup = "{}_embedding-parameter/DynamicEmbedding/look/{}"
        variables = {
            name: (np.arange(9), values)
            for key in ("user", "movie")
            for name in (
                f"{key}_embedding-parameter",
                lookup.format(key, "m"),
                lookup.format(key, "v"),
            )
        }
        folder = pathlib.Path(self.folder, "data", "tfra")
        folder.mkdir(parents=True)
        end = "__.ATTRIBUTES__VARIABLE_VALUE"
        kernel = np.zeros([64, 5], np.float32)
        tfra_files.save_checkpoint(
            str(folder / "checkpoint"),
            variables,
            **{
                f"ratings__kernel{end}": kernel,
                f"ratings__bias{end}": np.log([1, 2, 3, 4, 6]).astype("f"),
                f"optimizer___iterations{end}": np.int64(4),
            },
        )
        show = Block(
            "show",
            "python",
            'ids = {key: tf.constant([3]) for key in ["user", "movie"]}\n'
            "print(np.round(model(ids)[0] * 16))\n"
            'sign = columns["user"].signs([3])\n'
            'print(float(tables["user"].pull(sign)[0, 0]))',
        )
        start = Block("start", "python", "import numpy as np\n")
        page = blocks("docs/from_tfra.md", "python")
        printed = self._run([start, *page, show]).splitlines()
        rows = "9 rows, 0 left, slots ('m', 'v', 'step')"
        self.assertEqual(printed[:3], [rows, rows, "[1. 2. 3. 4. 6.]"])
        self.assertAlmostEqual(float(printed[3]), float(values[3, 0]))

    def test_from_tensornet(self):
        day = pathlib.Path(self.folder, "data", "model", "2026-11-26")
        signs, fields = rows = tensornet_files.random_rows(0, 20, 8)
        tensornet_files.save(day, "deep", rows, mode="bin", ranks=2)
        show = f"print(table.pull([{signs.view(np.int64)[0]}])[0, 0].numpy())\n"
        page = blocks("docs/from_tensornet.md", "python")
        printed = self._run([*page, Block("show", "python", show)])
        first, weight = printed.splitlines()
        self.assertEqual(first, "20 rows, ('accumulator', 'show')")
        self.assertEqual(float(weight), float(str(fields["weights"][0, 0])))

    @pytest.mark.documents("docs/from_keras.md")
    def test_from_keras(self):
        printed = self._run(blocks("docs/from_keras.md", "python"))
        taken, rows, shape, left = printed.splitlines()
        self.assertEqual(taken, "3 rows were taken")
        self.assertEqual(rows, "4 rows")
        self.assertIn("'embeddings' 4 rows", shape)
        self.assertIn("dim=16 instead of 8", shape)
        self.assertEqual(left, "rows of no vocabulary: {'embeddings': 0}")

    @pytest.mark.documents("README.md", _SERVING)
    def test_serving(self):
        start = blocks("README.md", "python", section="Quick start")
        export, *served = blocks(_SERVING, "python", section=_STOCK)
        split, look_up = blocks(_SERVING, "python", section=_STORE)
        # One process trains; all others are new, as servers are.
        short = blocks("README.md", "python", section="Serving without tf_ext")
        (follow,) = blocks(_SERVING, "python", section=_FOLLOW)
        self._run(
            [*start, *short, export, split, _POINTS, follow, _SAME_ANSWERS]
        )
        answers = [_numbers(self._run([block])) for block in served]
        answers.append(_numbers(self._run([look_up])))
        self.assertEqual([len(one) for one in answers], [4, 2])
        for found in (answers[0][:2], answers[0][2:], answers[1]):
            np.testing.assert_allclose(found, answers[0][:2], atol=2e-6)
        self._run_commands(_SERVING, 3)

    def _run_commands(self, page, count):
        commands = self._commands(page)
        self.assertLen(commands, count)
        for command in commands:
            done = subprocess.run(
                command,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
            self._check_output(page, command, done.stdout)

    def _commands(self, page):
        (console,) = blocks(page, "console")
        return [
            [
                sys.executable,
                *shlex.split(line, comments=True)[2:],
            ]
            for line in self._shown(console.text)
            if line.startswith("$ python ")
        ]

    def _shown(self, text):
        return text.replace("/data/", f"{self.folder}/data/").splitlines()

    def _check_output(self, page, command, printed):
        """Each line that the page shows below a command is printed by it."""
        (console,) = blocks(page, "console")
        lines = iter(self._shown(console.text))
        for line in lines:
            if line.startswith("$") and shlex.split(line)[2:5] == command[1:4]:
                break
        for line in lines:
            if line.startswith(("$", "...")):
                break
            # Columns are as wide as this folder's name makes them.
            self.assertIn(
                " ".join(line.split()),
                [" ".join(one.split()) for one in printed.splitlines()],
            )


def _losses(log):
    """The losses of the lines that `fit` logs."""
    return [float(one) for one in re.findall(r"\bloss: (0\.\d+)", log)]


def _numbers(printed):
    """The numbers of the arrays that were printed."""
    return [float(one) for one in re.findall(r"0\.\d+", printed)]


if __name__ == "__main__":
    absltest.main()
