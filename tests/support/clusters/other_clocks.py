# SPDX-License-Identifier: Apache-2.0
"""Processes whose clocks differ from that of this machine."""

import itertools
import pathlib
import subprocess

_HOUR = 3600


class OtherClocks:
    """Environments of such processes.

    Args:
      folder: pathlib.Path, where a library is made that they preload.

    Attributes:
      are_possible: bool, whether there is a compiler of C for it.
    """

    def __init__(self, folder):
        self._library = folder / "other_clock.so"
        source = pathlib.Path(__file__).with_name("other_clock.c")
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", self._library, source]
        try:
            subprocess.run([*command, "-ldl"], check=True)
            self.are_possible = True
        except FileNotFoundError:
            self.are_possible = False
        self._ahead = itertools.cycle([_HOUR, -_HOUR])

    def another(self):
        """Environment variables of a process whose clock is an hour off."""
        return {
            "LD_PRELOAD": str(self._library),
            "TF_EXT_TEST_CLOCK_SECONDS": str(next(self._ahead)),
        }
