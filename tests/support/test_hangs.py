# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: a process ends whose test hangs in C++.

pytest-timeout fails a test by a signal, which Python handles when C++ returns.
Where it does not, the stacks of all threads are printed, and the process ends,
at one and a half times the limit. pytest-xdist then names the test.
"""

import faulthandler
import os

import pytest

_FACTOR = 1.5
_STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    config.stash[_STDERR] = os.dup(2)  # It will be captured.


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    faulthandler.dump_traceback_later(
        _FACTOR * settings.timeout, exit=True, file=item.config.stash[_STDERR]
    )


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item):
    del item
    faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb():
    faulthandler.cancel_dump_traceback_later()
