# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin of a process that runs tests for `test_groups`.

It collects the files of its command line, and runs the tests whose names come
over a socket: a line of JSON `[name, name of the test that follows or null]`.
It answers with a line for each report, and `null`.
"""

import json
import socket

import pytest

_channel = None


def pytest_addoption(parser):
    parser.addoption("--group-address")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    global _channel
    if session.testsfailed:  # A file that cannot be collected.
        return None
    items = {item.nodeid: item for item in session.items}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(session.config.getoption("group_address"))
        _channel = connection.makefile("rw")
        try:
            while line := _channel.readline():
                name, following = json.loads(line)
                if name not in items:
                    _answer(_absent(session.config, name))
                else:
                    session.config.hook.pytest_runtest_protocol(
                        item=items[name], nextitem=items.get(following)
                    )
                _answer(None)
        except ConnectionError:
            pass  # Nobody waits any more.
        finally:
            _channel = None
    return True


def pytest_runtest_logreport(report):
    if _channel is not None:
        _answer(
            _config.hook.pytest_report_to_serializable(
                config=_config, report=report
            )
        )


def pytest_configure(config):
    global _config
    _config = config


def _absent(config, name):
    report = pytest.TestReport(
        name,
        (name, None, name),
        {},
        "failed",
        "The file has no such test in this process. It must have the same "
        "tests with both Kerases: skip those that one of them cannot run.",
        "call",
    )
    return config.hook.pytest_report_to_serializable(
        config=config, report=report
    )


def _answer(value):
    json.dump(value, _channel, default=str)
    _channel.write("\n")
    _channel.flush()
