# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: tests that run in processes of their own, item by item.

A file's markers say what its tests need:

    pytestmark = pytest.mark.process          # a process for this file
    pytestmark = pytest.mark.process("name")  # one for all files of that name
    pytestmark = pytest.mark.both_kerases     # run again with tf_keras
    pytestmark = pytest.mark.both_kerases(slow=True)  # ... with `-m slow`

Runs with tf_keras are items of their own: `name@tf_keras`. Each process is a
fork of one that has imported TensorFlow, and runs the tests of its group as
pytest does, one after the other. What it reports is reported under the item's
name here. A process that ends is replaced for the tests that follow.

A group that is all that the command line names runs in this process.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import typing

import pytest

_TF_KERAS = "tf_keras"
_SUFFIX = "@" + _TF_KERAS
_LOG_CHARACTERS = 8000
_POLL_SECONDS = 0.05
_START_SECONDS = 300
# A process ends a test that takes too long itself, unless it hangs in C++.
_MORE_SECONDS = 60
_END_SECONDS = 120


class Group(typing.NamedTuple):
    """The tests that share a process."""

    name: str
    is_legacy: bool


class GroupItem(pytest.Item):
    """A test that another process runs.

    Attributes:
      group: Group.
      remote_nodeid: string, what the test is called there.
      limit_seconds: float, what it may take.
    """

    def __init__(self, original: pytest.Item, group: Group, **kwargs):
        super().__init__(**kwargs)
        self.group = group
        self.remote_nodeid = original.nodeid
        self.path = original.path
        self.limit_seconds = limit_of(original)
        self._location = original.reportinfo()
        self.extra_keyword_matches |= original.listextrakeywords()
        self.extra_keyword_matches |= {
            node.name for node in original.listchain()[1:]
        }
        self.own_markers = [
            mark for mark in original.iter_markers() if mark.name != "timeout"
        ]
        self.add_marker(pytest.mark.timeout(0))
        if group.is_legacy:
            self.extra_keyword_matches.add(_TF_KERAS)

    def runtest(self):
        raise AssertionError("pytest_runtest_protocol runs it elsewhere")

    def reportinfo(self):
        return self._location


def limit_of(item: pytest.Item) -> float:
    """The seconds that a test may take."""
    if isinstance(item, GroupItem):
        return item.limit_seconds
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float([*marker.args, *marker.kwargs.values()][0])
    return float(item.config.getini("timeout"))


def suffix_of(item: pytest.Item) -> str:
    """The end of the name of a test that runs with tf_keras; else ""."""
    is_legacy = isinstance(item, GroupItem) and item.group.is_legacy
    return _SUFFIX if is_legacy else ""


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "process(name): runs in a process of its own, or of all files with the "
        "same name",
    )
    config.addinivalue_line(
        "markers",
        "both_kerases(slow=False): runs once more with tf_keras, by default or "
        "with `-m slow`",
    )


def is_in_group(config) -> bool:
    """Whether this process is one that a group runs in."""
    return config.pluginmanager.has_plugin("test_group_process")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    if is_in_group(config):
        return
    grouped = [(item, _group_of(item)) for item in items]
    is_one_group = len({group for _, group in grouped}) == 1
    local, remote, legacy = [], [], []
    for item, group in grouped:
        if group is None or is_one_group:
            local.append(item)
        else:
            remote.append(_group_item(session, item, group))
        if copy := _with_tf_keras(session, item, group):
            legacy.append(copy)
    for elsewhere in (remote, legacy):
        elsewhere.sort(key=lambda item: item.group)
    # What takes long, and cannot be shared out, first.
    items[:] = remote + legacy + local
    if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
        # It subtracts those that are left out from those that it has counted.
        reporter._numcollected += len(legacy)


def _group_of(item: pytest.Item) -> Group | None:
    marker = item.get_closest_marker("process")
    if marker is None:
        return None
    name = marker.args[0] if marker.args else item.nodeid.partition("::")[0]
    return Group(name, False)


def _with_tf_keras(session, item, group) -> GroupItem | None:
    marker = item.get_closest_marker("both_kerases")
    if marker is None or "TF_USE_LEGACY_KERAS" in os.environ:
        return None
    is_slow = marker.kwargs.get("slow", False)
    if is_slow and _is_slow_with_any_keras(item):
        return None
    name = group.name if group else "tests"
    copy = _group_item(session, item, Group(name, True), _SUFFIX)
    if is_slow:
        copy.add_marker("slow")
    return copy


def _is_slow_with_any_keras(item) -> bool:
    # The others of those that run by default are slow by their number.
    return bool(
        item.get_closest_marker("slow")
        and not item.get_closest_marker("slow_except")
        and not item.get_closest_marker("slow_tests")
    )


def _group_item(session, item, group, suffix="") -> GroupItem:
    return GroupItem.from_parent(
        session,
        original=item,
        group=group,
        name=item.name + suffix,
        nodeid=item.nodeid + suffix,
    )


class _GroupProcess:
    """The process of a group, which waits for tests to run.

    Args:
      group: Group.
      paths: list of pathlib.Path, its files.
      folder: pathlib.Path, to which the names of tests are relative.
    """

    def __init__(
        self, group: Group, paths: list[pathlib.Path], folder: pathlib.Path
    ):
        # Not above: it imports TensorFlow, which a process that hands out tests
        # does not need.
        import fork_servers
        from processes import fork_server, program_environment, start

        self.group = group
        self._log = tempfile.TemporaryFile()
        environment = program_environment()
        if group.is_legacy:
            environment["TF_USE_LEGACY_KERAS"] = "1"
        self._lent = fork_servers.Lent(
            fork_server(environment), environment, self._log
        )
        with tempfile.TemporaryDirectory(prefix="tf_ext_group_") as own:
            address = os.path.join(own, "socket")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                self._process = start(
                    [
                        *["-m", "pytest", *map(str, paths)],
                        *["-n", "0", "-m", "", "-p", "no:cacheprovider"],
                        *["-p", "test_group_process"],
                        f"--group-address={address}",
                    ],
                    self._log,
                    self._log,
                    environment,
                    folder,
                )
                self._channel = self._accept(listener)
        self._lines = self._channel and self._channel.makefile("rw")

    def _accept(self, listener) -> socket.socket | None:
        """The connection; None if the process has ended before."""
        listener.settimeout(_POLL_SECONDS)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                continue
            return channel
        return None

    def run(
        self, item: GroupItem, next_item: GroupItem | None
    ) -> typing.Iterator[dict[str, typing.Any]]:
        """Yields the reports of a test, as pytest serializes them.

        Raises:
          EOFError: the process has ended, or does not answer.
        """
        if self._lines is None:
            raise EOFError
        following = next_item and next_item.remote_nodeid
        self._channel.settimeout(item.limit_seconds + _MORE_SECONDS)
        try:
            json.dump([item.remote_nodeid, following], self._lines)
            self._lines.write("\n")
            self._lines.flush()
            while line := self._lines.readline():
                if (report := json.loads(line)) is None:
                    return
                yield report
        except TimeoutError:
            # It writes where its threads are.
            self._send(signal.SIGABRT)
        except (ConnectionError, ValueError):
            pass
        raise EOFError

    def end(self) -> str:
        """Ends the process; the end of what it has written."""
        if self._lines is not None:
            # A file that was interrupted has something left to write.
            self._channel.shutdown(socket.SHUT_RDWR)
            self._channel.close()
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = "killed"
        self._send(signal.SIGKILL)  # Also what it has left behind.
        self._process.wait()
        self._lent.end()
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        self._log.close()
        return f"Status {status}:\n{text[-_LOG_CHARACTERS:]}"

    def _send(self, number):
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass


_current: _GroupProcess | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not isinstance(item, GroupItem):
        return None
    if not isinstance(nextitem, GroupItem) or nextitem.group != item.group:
        nextitem = None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, nextitem):
        report.nodeid, report.location = item.nodeid, item.location
        if isinstance(report.longrepr, list):  # Of a test that was skipped.
            report.longrepr = tuple(report.longrepr)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if nextitem is None:
        end_process()
    return True


def _reports(item, nextitem):
    global _current
    if _current is not None and _current.group != item.group:
        end_process()
    if _current is None:
        paths = {
            one.path
            for one in item.session.items
            if isinstance(one, GroupItem) and one.group == item.group
        }
        _current = _GroupProcess(
            item.group, sorted(paths), item.config.rootpath
        )
    try:
        for data in _current.run(item, nextitem):
            yield item.config.hook.pytest_report_from_serializable(
                config=item.config, data=data
            )
    except EOFError:
        yield pytest.TestReport(
            item.nodeid,
            item.location,
            dict.fromkeys(item.keywords, 1),
            "failed",
            f"The process of {item.group} has ended. {end_process()}",
            "call",
        )


def end_process() -> str:
    """Ends the process of the current group, if there is one; its log."""
    global _current
    if _current is None:
        return ""
    process, _current = _current, None
    return process.end()


def pytest_sessionfinish(session):
    end_process()
