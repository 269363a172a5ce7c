# SPDX-License-Identifier: Apache-2.0
"""Servers free the tables of a killed chief when the next one begins."""

import json
import pathlib
import subprocess
import sys
import tempfile
import types

import pytest
import tensorflow as tf
from absl.testing import absltest
from clusters import parameter_server_util as util
from paths import PROGRAMS

from tf_ext.distribute.ports import free_ports
from tf_ext.distribute.strategy import table_owner

pytestmark = [pytest.mark.timeout(600), pytest.mark.process]

_PROGRAM = PROGRAMS / "killed_chief_program.py"


class _Chief:
    """A process of killed_chief_program.py that has filled its table."""

    def __init__(self, cluster, rows, *options):
        # Not a pipe, which nothing would read meanwhile.
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [
                *[sys.executable, "-P", str(_PROGRAM)],
                *[json.dumps(cluster), str(rows), *options],
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self):
        try:
            self.bytes = self._answer()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_):
        self.kill()

    def ask(self, question):
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self):
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"The chief ended: {self._log.read()[-4000:]}")
        return json.loads(line)


def _resident_bytes(pid):
    """Without the pages of files, which the system takes back as it likes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    (line,) = [x for x in status.splitlines() if x.startswith("RssAnon")]
    return int(line.split()[1]) << 10


class KilledChiefTest(absltest.TestCase):
    def cluster(self, **options):
        return self.enterContext(util.local_cluster(**options))

    def assert_holds_those_of(self, chief):
        self.assertLen(chief.bytes, 2)
        self.assertEqual(
            chief.ask("release"), [[1, size] for size in chief.bytes]
        )

    @pytest.mark.slow
    def test_tables_of_the_dead_are_freed_by_the_next_of_their_address(self):
        cluster = self.cluster(workers=1, ps=2).cluster
        other = {**cluster, "chief": [f"127.0.0.1:{free_ports(1).pop()}"]}
        with _Chief(other, 2000) as alive:
            for _ in range(3):
                with _Chief(cluster, 20_000):
                    pass  # It is killed.
            # TensorFlow's own strategy: the first table has it checked.
            with _Chief(cluster, 10_000, "plain") as last:
                self.assertEqual(last.ask("size"), 10_000)
                self.assertEqual(alive.ask("size"), 2000)
                self.assert_holds_those_of(last)
            self.assertEqual(alive.ask("size"), 2000)
            self.assert_holds_those_of(alive)

    @pytest.mark.slow
    def test_memory_of_ten_dead_chiefs_is_that_of_one(self):
        processes = self.cluster(workers=1, ps=2)
        pids = [processes.pid("ps", task) for task in range(2)]
        rows, first = 400_000, None
        for _ in range(10):
            with _Chief(processes.cluster, rows) as chief:
                resident = [_resident_bytes(pid) for pid in pids]
                first = first or resident
                for now, before, size in zip(
                    resident, first, chief.bytes, strict=True
                ):
                    self.assertGreater(size, rows // 2 * 64 * 4 * 2)
                    self.assertLess(now - before, size / 2)
        with _Chief(processes.cluster, rows) as last:
            self.assert_holds_those_of(last)


class OwnerTest(absltest.TestCase):
    def _owner(self, **cluster):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster)
        )
        return table_owner(types.SimpleNamespace(cluster_resolver=resolver))

    def test_is_the_chief_and_this_process(self):
        owner, run = self._owner(chief=["a:1"], worker=["b:2"], ps=["c:3"])
        self.assertEqual(owner, "a:1")
        self.assertRegex(run, "^[0-9a-f]{32}$")

    def test_is_nobody_without_an_address_of_the_chief(self):
        self.assertIsNone(self._owner(worker=["b:2"], ps=["c:3"]))


if __name__ == "__main__":
    absltest.main()
