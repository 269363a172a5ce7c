# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the slow tests that one commit runs, of all of them.

    pytest -m slow --slow-part=3/8 --slow-files=tests/data/reading_test.py

runs those of the files that are named, and of an eighth of all others. A file
is in the same part each time; its runs with tf_keras may be in another part,
and are left to it where the file is named.
What may take more than ten minutes by its own limit is run by hand only.

    pytestmark = pytest.mark.slow_except("FitTest::*", "*_two_workers")

marks all other tests of a file, or of a class, as slow;

    pytestmark = pytest.mark.slow_tests("FitTest::test_sequences", "*_2")

those that match.

    @pytest.mark.documents("README.md", "docs/rows.md")

says which documents' code a test runs: `--slow-files` can name them, too.
"""

import collections
import fnmatch
import hashlib
import os

import pytest
import test_groups

_LONGEST_SECONDS = 600
# How many tests each (marker, file, pattern) has matched.
_PATTERNS = pytest.StashKey[collections.Counter[tuple[str, str, str]]]()


def pytest_addoption(parser):
    group = parser.getgroup("tiers of tests")
    group.addoption(
        "--slow-part",
        metavar="K/N",
        type=_part,
        help="of the slow tests, those of every N-th file, from the K-th on",
    )
    group.addoption(
        "--slow-files",
        metavar="FILES",
        default="",
        help="files whose slow tests all run with Keras 3, whatever the part, "
        "and documents whose code slow tests run: with commas",
    )


def _part(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(count)):
        raise pytest.UsageError(
            f"--slow-part must be K/N, two numbers. Received: {text!r}"
        )
    return int(index) % int(count), int(count)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "slow_except(patterns): all others take long; patterns of Class::test",
    )
    config.addinivalue_line(
        "markers",
        "slow_tests(patterns): these take long; patterns of Class::test",
    )
    config.addinivalue_line(
        "markers", "documents(paths): it runs the code of these documents"
    )


def pytest_itemcollected(item):
    is_exception = _matches(item, "slow_except")
    if is_exception is False or _matches(item, "slow_tests"):
        item.add_marker("slow")


def _matches(item, name):
    """Whether a pattern of its marker matches; None without the marker."""
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    file, _, test = item.nodeid.partition("::")
    matches = {p: fnmatch.fnmatchcase(test, p) for p in marker.args}
    counts = item.config.stash.setdefault(_PATTERNS, collections.Counter())
    for pattern, matched in matches.items():
        counts[name, file, pattern] += matched
    return any(matches.values())


def _check_patterns(config):
    """Patterns would match nothing after names of tests have changed."""
    if (
        any("::" in argument for argument in config.args)
        or "TF_USE_LEGACY_KERAS" in os.environ
        or test_groups.is_in_group(config)
    ):
        return
    for (name, file, pattern), count in config.stash.get(_PATTERNS, {}).items():
        if not count:
            raise pytest.UsageError(
                f"{name} of {file} has the pattern {pattern!r}, which "
                "matches none of its tests"
            )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    _check_patterns(config)
    if config.getoption("slow_part") is None:
        return
    left_out = [item for item in items if not _is_selected(config, item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _is_selected(config, item):
    if item.get_closest_marker("slow") is None:
        return True
    if test_groups.limit_of(item) > _LONGEST_SECONDS:
        return False
    path = os.path.relpath(item.path, config.rootpath)
    suffix = test_groups.suffix_of(item)
    documents = item.get_closest_marker("documents")
    files = {path, *(documents.args if documents else ())}
    if not suffix and files & set(config.getoption("slow_files").split(",")):
        return True
    index, count = config.getoption("slow_part")
    name = f"{path}{suffix}"
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % count == index
