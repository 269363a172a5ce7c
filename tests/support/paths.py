"""Where the source tree and the tests are."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

# Programs that tests start, and the modules that tests and programs share.
SUPPORT = TESTS / "support"

# Files that were written by earlier versions.
FIXTURES = TESTS / "fixtures"
