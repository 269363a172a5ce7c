# SPDX-License-Identifier: Apache-2.0
"""Documents and messages avoid phrases that are not idiomatic English."""

import ast
import json
import re

from absl.testing import absltest
from paths import ROOT

# What to write instead of each. Only what editing has found in this project.
_PHRASES = {
    r"(?<!there )\b(?:is|are) no (?!longer\b|less\b|more\b)": "`is not a`",
    r"\balso (?:if|when|without)\b": "`even if`",
    r"\bgo(?:es)? on (?:at|from|with)\b": "`resumes`, `continues`",
    r"\bmade[- ]up\b": "`generated`",
    r"\bmend\b": "`repair`",
    r"\bnowadays\b": "`today`",
    r"\bsee that\b": "`make sure that`",
    r"\bstops? to \w+": "`stops ...ing`",
    r"\b(?:is|are) there twice\b": "`occurs twice`",
    r"\bwithout end\b": "`forever`",
    r"\banew\b": "`again`",
    r"\bin own \w+": "`in your own`",
    r"\b(?:code|loops?|layers?|call) of your own\b|\bof yours\b": "`your own`",
    r"(?:^|[.:;] )(?:not )?(?:refused|supported|built) are\b": "`... are ...`",
    r"\bwithout, ": "`otherwise`",
    r"\bone a (?:batch|column|day|row|step|task|user|worker)\b": "`one per`",
    r"\b(?:a|one) \w+ at least\b": "`at least one`",
    r"\btimes at most\b": "`at most ... times`",
    r"\b(?:texts?|numbers|means|sums) alone\b|\btexts only\b": "`only ...`",
    r"\bone batch size\b": "`the same batch size`",
    r"\bof which (?:it|some|the log|they)\b": "two sentences",
    r"\bmakes? use of\b": "`uses`",
    r"\b(?:goes|rides?|takes?) along\b": "`is sent with`",
    r"\bdealt out\b": "`distributed`",
    r"\bmust not fall\b|, not fall\b": "`not decrease`",
    r"\bmeans nothing\b": "`is not used`",
    r"\bmay tell\b": "`see`",
    r"\bsays? nothing\b": "`does not answer`",
    r"\bnothing in between\b": "`without a ... in between`",
    r"\bwhat to watch\b": "`differences`",
    r"\btaken as lost\b": "`counts as lost`",
    r"\bwent bad\b": "`was damaged`",
}


def _documents():
    """(file, text) of what people read, without blocks of code."""
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md"):
        for path in ROOT.glob(pattern):
            if path.name != "CHANGELOG.md":
                text = re.sub(r"(?ms)^ *```.*?^ *```", "", path.read_text())
                yield path.relative_to(ROOT), re.sub(r"`[^`\n]*`", "`", text)
    tutorial = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    for cell in tutorial["cells"]:
        if cell["cell_type"] == "markdown":
            yield "docs/tutorial.ipynb", "".join(cell["source"])


def _messages():
    """(file:line, text) of strings of the package other than docstrings."""
    for path in ROOT.glob("tf_ext/**/*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node not in docstrings:
                if isinstance(node.value, str):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield place, node.value


def _found(texts):
    """What to change in texts, as sentences."""
    return [
        f"{place}: {found[0]!r}: write {better}"
        for place, text in texts
        for phrase, better in _PHRASES.items()
        for found in re.finditer(phrase, " ".join(text.split()), re.I)
    ]


class ProseTest(absltest.TestCase):
    def test_documents(self):
        self.assertEmpty(_found(_documents()))

    def test_messages(self):
        self.assertEmpty(_found(_messages()))

    def test_phrases_are_found(self):
        texts = [
            ("bad", "It is no\nnumber, also if one. Mend it; it goes on at 1."),
            ("worse", "Not built are: a. Without, it goes along, one a step."),
            ("good", "There is no number. It is no longer one, as others are."),
            ("fine", "What is refused are sums; a step goes without a worker."),
        ]
        self.assertLen(_found(texts), 8)


if __name__ == "__main__":
    absltest.main()
