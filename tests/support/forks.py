# SPDX-License-Identifier: Apache-2.0
"""Runs functions in forks of this process."""

import os
import sys
import traceback


def start(function, *arguments):
    """Starts a fork that runs `function`; returns its process id.

    Its exit code is 0 if the function returns, and 1 if it raises, after the
    traceback has been printed.
    """
    process = os.fork()
    if process:
        return process
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def run(function):
    """Runs `function` in a fork, see `start`; returns the wait status."""
    return os.waitpid(start(function), 0)[1]
