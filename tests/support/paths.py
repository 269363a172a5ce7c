# SPDX-License-Identifier: Apache-2.0
"""Where the source tree and the tests are."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

# What tests share, in rooms that are packages.
SUPPORT = TESTS / "support"

# Programs that tests start.
PROGRAMS = SUPPORT / "programs"

# Files that were written by earlier versions.
FIXTURES = TESTS / "fixtures"
