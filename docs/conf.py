# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site; CONTRIBUTING.md has the command.

Its source folder is the root of the project, so that README.md and the pages
below docs/ and benchmarks/ link each other in it as they do in the source tree.
"""

import re
import textwrap

from sphinx.util import inspect

from tf_ext._version import __version__

project = "tf_ext"
author = "The tf_ext authors"
copyright = "The tf_ext authors"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "benchmarks/*.md",
    "docs/*.ipynb",
    "docs/*.md",
    "docs/reference/*.rst",
]
# Not walked through: Bazel links to all of its folders from there.
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"tf_ext {__version__}"
# The site's own address leads to the root document.
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sphinx = False

# As deep as the guides' headings, which are linked as on GitHub.
myst_heading_anchors = 4
# Of an example of a docstring, what is typed.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
# Of what processes log. Errors show it, too.
nb_output_stderr = "remove"

autodoc_default_options = {
    "inherited-members": True,
    "members": True,
    "member-order": "bysource",
}
# An override without a docstring is that of Keras, or of the base class here.
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
# Docstrings tell types, with shapes and ranges.
autodoc_typehints = "none"
# As lists, as arguments are.
napoleon_custom_sections = [
    ("Attributes", "params_style"),
    ("Call arguments", "params_style"),
]

# A name in backticks is a link if the reference has it. Those of tf_ext must be
# there; what else is in backticks is just code.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!tf_ext\.).*")]

# The Markdown that docstrings use. Nothing is replaced in the first three.
_MARKDOWN = re.compile(
    r"""^(?P<fence_indent>[ ]*)```python\n(?P<fence>.*?\n)[ ]*```$
    |(?<=\n\n)(?P<formula>(?:[ ]{4}[^\n]*\n)+)(?=\n)
    |^[ ]*(?:>>>|\.\.\.)[ ][^\n]*$
    |^(?P<section>Example):\n(?=>>>|```)
    |(?<![`:])`(?P<code>[^`]+)`(?P<ending>\w?)
    |\[(?P<link>[^\]]+)\]\((?P<url>https?://[^)]+)\)
    |(?<!/)\b(?P<page>docs/\w+\.md)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def _to_rst(found):
    """What _MARKDOWN has found, as reStructuredText."""
    if found["fence"]:
        block = textwrap.indent(found["fence"], "   ")
        block = f"\n.. code-block:: python\n\n{block}"
        return textwrap.indent(block, found["fence_indent"])
    if found["section"]:
        # napoleon sees sections in indented text alone.
        return f".. rubric:: {found['section']}\n\n"
    if found["formula"]:
        return f"::\n\n{found['formula']}"
    if found["code"]:
        text = " ".join(found["code"].split())
        tick = "`" if _NAME.fullmatch(text) else "``"
        ending = f"\\ {found['ending']}" if found["ending"] else ""
        return f"{tick}{text}{tick}{ending}"
    if found["link"]:
        return f"`{found['link']} <{found['url']}>`__"
    if found["page"]:
        return f":doc:`{found['page']} </{found['page'].removesuffix('.md')}>`"
    return found[0]


def _process_docstring(app, what, name, value, options, lines):
    if what in ("attribute", "property"):
        # Or napoleon takes what is before a colon in the first line for a type.
        lines.insert(0, "")
    lines[:] = _MARKDOWN.sub(_to_rst, "\n".join(lines)).split("\n")


def _skip_member(app, what, name, member, skip, options):
    """Leaves out what classes inherit from Keras and Python."""
    owner = getattr(member, "__objclass__", getattr(member, "fget", member))
    module = getattr(owner, "__module__", None)
    return True if module and not module.startswith("tf_ext") else None


def _process_signature(app, what, name, value, options, signature, returns):
    """Of classes whose `__new__` is Keras's, which takes anything."""
    if what not in ("class", "exception"):
        return None
    module = getattr(value.__init__, "__module__", "")
    if not module.startswith("tf_ext"):
        return None
    found = inspect.signature(value.__init__, bound_method=True)
    return inspect.stringify_signature(found, show_annotation=False), None


def setup(app):
    """Called by Sphinx."""
    # Before napoleon, which takes the sections apart.
    app.connect("autodoc-process-docstring", _process_docstring, priority=400)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-skip-member", _skip_member)
