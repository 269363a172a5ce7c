"""The code of README.md and docs/snapshots.md runs, in the pages' order."""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized
from docs_util import ROOT, blocks, program
from processes import run_program

_SNAPSHOTS = "docs/snapshots.md"
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
        for page in [*_PAGES, "CONTRIBUTING.md", "benchmarks/README.md"]:
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


class CodeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def _run(self, page_blocks):
        return run_program(program(page_blocks, self.folder), self.folder)

    def test_quick_start_loading_and_snapshots(self):
        start = blocks("README.md", "python", section="Quick start")
        self._run([*start, *blocks(_SNAPSHOTS, "python")])
        for block in blocks(
            "README.md", "python", section="Loading and serving"
        ):
            # In a process of its own, which has not loaded anything before.
            self.assertRegex(
                self._run([block]), r"\[\[0\.\d+.*\]\s+\[0\.\d+.*\]\]"
            )

        commands = self._commands()
        self.assertLen(commands, 5)
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
            self._check_output(command, done.stdout)
        self.assertTrue(pathlib.Path(self.folder, "deep.parquet").exists())

    def _commands(self):
        (console,) = blocks(_SNAPSHOTS, "console")
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

    def _check_output(self, command, printed):
        """Each line that the page shows below a command is printed by it."""
        (console,) = blocks(_SNAPSHOTS, "console")
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


if __name__ == "__main__":
    absltest.main()
