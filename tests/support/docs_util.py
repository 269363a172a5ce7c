# SPDX-License-Identifier: Apache-2.0
"""The code of the documentation, as programs.

`docs_util.py PAGE SECTION` prints the Python code of a section.
"""

import ast
import dataclasses
import sys
import textwrap

from paths import ROOT


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
      place: string, "file:line".
      language: string.
      text: string.
    """

    place: str
    language: str
    text: str


def blocks(page, *languages, section=None):
    """The blocks of some languages, in order.

    Args:
      page: string, the file below the root.
      *languages: strings.
      section: string, the heading of the only section that counts.

    Raises:
      AssertionError: there are none.
    """
    found, opened, heading = [], None, None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if opened is None:
            if line.startswith("#"):
                heading = line.lstrip("# ")
            if line.startswith("```"):
                opened = (number, line.removeprefix("```"), [])
        elif line == "```":
            begin, language, lines = opened
            text = "".join(f"{one}\n" for one in lines)
            if language in languages and section in (None, heading):
                found.append(Block(f"{page}:{begin}", language, text))
            opened = None
        else:
            opened[2].append(line)
    if not found:
        raise AssertionError(f"{page} has no {languages} below {section!r}")
    return found


def definitions(page_blocks):
    """A block of the imports, functions, classes and constants of blocks."""
    found = []
    for block in page_blocks:
        for node in ast.parse(block.text).body:
            if isinstance(node, ast.Assign):
                is_one = isinstance(
                    node.value, (ast.Attribute, ast.Constant)
                ) and all(
                    isinstance(target, ast.Name) for target in node.targets
                )
            else:
                kinds = (ast.Import, ast.ImportFrom, ast.ClassDef)
                is_one = isinstance(node, (*kinds, ast.FunctionDef))
            if is_one:
                found.append(ast.unparse(node) + "\n")
    return Block("definitions", "python", "".join(found))


def program(page_blocks, folder, indent=""):
    """One program of blocks, whose absolute paths are put into a folder."""
    text = "".join(f"# {b.place}\n{b.text}" for b in page_blocks)
    for name in ("data", "shared"):
        text = text.replace(f'"/{name}/', f'"{folder}/{name}/')
    return textwrap.indent(text, indent)


if __name__ == "__main__":
    print(*(b.text for b in blocks(sys.argv[1], "python", section=sys.argv[2])))
