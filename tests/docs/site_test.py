# SPDX-License-Identifier: Apache-2.0
"""The site of docs/conf.py is built without a warning, and is whole."""

import html
import inspect
import json
import pathlib
import re
import tempfile
import zlib

from absl.testing import absltest
from paths import ROOT
from processes import run

import tf_ext

# On a busy machine; on an idle one of two cores it takes less than a minute.
_TIMEOUT_SECONDS = 500
_PAGE_WITH_BROKEN_REFERENCES = """# Page

[a page](nowhere.md), [a heading](#nowhere)

```{eval-rst}
`tf_ext.Nowhere`, :doc:`/docs/nowhere`
```
"""


def _build(source, target):
    """Builds the site as CONTRIBUTING.md says."""
    arguments = ["-q", "-W", "--keep-going", "-c", ROOT / "docs"]
    return run(
        *["-m", "sphinx", *arguments, source, target],
        timeout_seconds=_TIMEOUT_SECONDS,
    )


def _public_names():
    """The full names of what users may call, without attributes."""
    for package in sorted(set(tf_ext.__all__) - {"__version__"}):
        value = getattr(tf_ext, package)
        if not inspect.ismodule(value):
            yield f"tf_ext.{package}", value
            continue
        yield f"tf_ext.{package}", value
        for name in value.__all__:
            yield f"tf_ext.{package}.{name}", getattr(value, name)


def _public_members(cls):
    """The methods and properties that tf_ext documents."""
    members = {}
    for base in cls.__mro__:
        if base.__module__.startswith("tf_ext"):
            for name in vars(base):
                members.setdefault(name, inspect.getattr_static(base, name))
    for name, member in members.items():
        is_method = isinstance(member, property | classmethod | staticmethod)
        is_method = is_method or inspect.isroutine(member)
        if is_method and member.__doc__ and not name.startswith("_"):
            yield name


class SiteTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.site = pathlib.Path(folder, "site")
        _build(ROOT, cls.site)

    def _text(self, page):
        """The text of a page, in which tags are left out."""
        text = (self.site / page).read_text()
        return html.unescape(re.sub(r"<[^>]+>", "", text))

    def test_reference_has_all_public_names(self):
        inventory = (self.site / "objects.inv").read_bytes()
        # Four lines, then zlib: a line for each name, which begins with it.
        content = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
        found = {
            line.split(" ")[0]
            for line in content.splitlines()
            if line.split(" ")[1].startswith("py:")
        }
        missing = []
        for name, value in _public_names():
            missing += [name] * (name not in found)
            if inspect.isclass(value):
                missing += [
                    f"{name}.{member}"
                    for member in _public_members(value)
                    if f"{name}.{member}" not in found
                ]
        self.assertEmpty(missing, "see docs/reference")

    def test_search_index_has_all_pages(self):
        text = (self.site / "searchindex.js").read_text()
        index = json.loads(
            text.removeprefix("Search.setIndex(").removesuffix(")")
        )
        guides = {
            str(path.relative_to(ROOT).with_suffix(""))
            for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
        }
        others = {"benchmarks/README", "docs/tutorial", "docs/reference/layers"}
        self.assertContainsSubset(guides | others, index["docnames"])
        # Words are reduced to their stems.
        self.assertContainsSubset({"snapshot", "sparset"}, index["terms"])

    def test_pages_load_nothing_from_elsewhere(self):
        pages = list(self.site.rglob("*.html"))
        self.assertNotEmpty(pages)
        for page in pages:
            found = re.search(
                r"<(script|link|img)[^>]+(src|href)=\"(https?:)?//[^>]*",
                page.read_text(),
            )
            self.assertIsNone(found, f"{page}: {found and found[0]}")

    def test_docstrings_are_rendered(self):
        page = (self.site / "docs/reference/layers.html").read_text()
        for what, part in {
            "a link": 'href="https://arxiv.org/abs/1502.03167"',
            "a name": 'href="#tf_ext.layers.ItemFrequency" title',
            "code": '<span class="pre">[batch_size,</span>',
            "a section": ">Call arguments<",
            "a formula": '<span class="n">moving_mean</span> <span class="o">=',
            "an example": '<span class="gp">&gt;&gt;&gt; </span>',
        }.items():
            self.assertIn(part, page, what)
        text = self._text("docs/reference/layers.html")
        self.assertIn("class tf_ext.layers.EmbeddingFeatures(columns", text)

    def test_tutorial_trains_and_serves(self):
        text = self._text("docs/tutorial.html")
        self.assertRegex(text, r" read_errors: 50\.0+\n")
        self.assertIn("{'bad number': 20, 'wrong number of fields': 30}", text)
        found, best = re.search(
            r"\nAUC (0\.\d+), at best (0\.\d+)\n", text
        ).groups()
        self.assertBetween(float(found), 0.7, float(best))
        stored = re.search(r"AUC (0\.\d+), at best", str(_stored_outputs()))
        self.assertAlmostEqual(float(stored[1]), float(found), delta=0.01)
        # The least important column.
        self.assertRegex(text, r"\ncity .*\n\n")
        served, model = (
            [float(one) for one in pair]
            for pair in re.findall(r"\[\[(0\.\d+) *\]\n \[(0\.\d+) *\]\]", text)
        )
        self.assertNotEqual(served[0], served[1])
        for one, other in zip(served, model, strict=True):
            self.assertAlmostEqual(one, other, delta=0.01)


def _stored_outputs():
    """The outputs of each cell of code that are stored in the notebook."""
    tutorial = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    return [
        (cell["execution_count"], cell["outputs"])
        for cell in tutorial["cells"]
        if cell["cell_type"] == "code"
    ]


class TutorialTest(absltest.TestCase):
    """Of the outputs that docs/run_tutorial.py has stored."""

    def test_they_are_of_one_run(self):
        counts = [count for count, _ in _stored_outputs()]
        self.assertEqual(counts, list(range(1, len(counts) + 1)))

    def test_they_have_no_logs_and_no_folders(self):
        for _, outputs in _stored_outputs():
            for output in outputs:
                self.assertNotEqual(output.get("name"), "stderr")
                text = "".join(output.get("text", []))
                self.assertNotRegex(text, r"INFO:|/(tmp|root|home|work)/")


class BrokenReferencesTest(absltest.TestCase):
    def test_they_fail_the_build(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "docs").mkdir()
            page = pathlib.Path(folder, "docs", "index.md")
            page.write_text(_PAGE_WITH_BROKEN_REFERENCES)
            with self.assertRaisesRegex(AssertionError, "sphinx") as caught:
                _build(folder, f"{folder}/site")
        for part in (
            "nowhere.md",
            "'nowhere'",
            "tf_ext.Nowhere",
            "docs/nowhere",
        ):
            self.assertIn(part, str(caught.exception))


if __name__ == "__main__":
    absltest.main()
