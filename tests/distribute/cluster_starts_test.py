# SPDX-License-Identifier: Apache-2.0
"""What a local cluster makes of processes that do not start, without any."""

from unittest import mock

from absl.testing import absltest

from tf_ext import distribute
from tf_ext.distribute import local
from tf_ext.distribute.addresses import task_name
from tf_ext.distribute.cluster import LISTENS, PORT_IN_USE_STATUS

_LISTENS = LISTENS, None


class _Processes:
    """Processes that write a line and end, or not, as a list says.

    Attributes:
      commands: list of lists of strings, of all that were started.
      ended: int, how often all were ended.
    """

    def __init__(self, outcomes):
        self._outcomes = iter(outcomes)
        self._statuses = {}
        self.commands = []
        self.ended = 0

    def start(self, key, command, out, err):
        del err
        text, self._statuses[key] = next(self._outcomes)
        out.write(f"{task_name(*key)}: {text}\n".encode())
        self.commands.append(command)

    def status(self, key):
        return self._statuses[key]

    def keys(self):
        return list(self._statuses)

    def __getitem__(self, key):
        return self._statuses[key]

    def kill(self, key):
        self._statuses[key] = -9

    def end_all(self):
        self.ended += 1
        self._statuses.clear()

    def close(self):
        self.end_all()


class StartTest(absltest.TestCase):
    def _cluster(self, *outcomes, **options):
        self.processes = _Processes(outcomes)
        for name, made in (
            ("ForkServer", mock.Mock()),
            ("ChildProcesses", self.processes),
        ):
            patch = mock.patch.object(local, name, return_value=made)
            self.enterContext(patch)
        options = {"start_timeout_seconds": 1.0} | options
        return distribute.local_cluster(workers=1, ps=1, **options)

    def _refused(self, cluster, text):
        with self.assertRaisesRegex(RuntimeError, text):
            cluster.__enter__()
        self.assertIsNone(cluster.cluster)
        self.assertEmpty(self.processes.keys())

    def test_all_listen(self):
        with self._cluster(_LISTENS, _LISTENS) as cluster:
            self.assertEqual(
                {job: len(all_) for job, all_ in cluster.cluster.items()},
                {"chief": 1, "worker": 1, "ps": 1},
            )
            self.assertIn(LISTENS, cluster.log("ps", 0))
            [worker, ps] = self.processes.commands
            self.assertContainsSubset(["--job=worker", "--task=0"], worker)
            self.assertContainsSubset(["--job=ps", "--task=0"], ps)
        self.assertEqual(self.processes.ended, 1)

    def test_one_that_ends(self):
        self._refused(
            self._cluster(_LISTENS, ("No module", 3)),
            "(?s)^/job:ps/task:0 ended with status 3 when it was started. Its "
            "log ends with:.*No module",
        )
        self.assertEqual(self.processes.ended, 1)

    def test_one_that_ends_after_it_listened(self):
        self._refused(self._cluster((LISTENS, -9), _LISTENS), "status -9")

    def test_one_that_never_listens(self):
        cluster = self._cluster(
            ("waits", None), _LISTENS, start_timeout_seconds=0.0
        )
        self._refused(
            cluster,
            "(?s)^/job:worker/task:0 does not listen after 0.0 s. Its log "
            "ends with:.*waits",
        )

    def test_ports_that_are_taken(self):
        taken = "Address already in use", PORT_IN_USE_STATUS
        attempts = [taken, _LISTENS, _LISTENS, taken, _LISTENS, _LISTENS]
        with self._cluster(*attempts) as cluster:
            self.assertEqual(self.processes.ended, 2)
            self.assertLen(self.processes.commands, 6)
            # What earlier processes of a task wrote is in its log alone.
            self.assertEqual(cluster.log("worker", 0).count(taken[0]), 1)
        self._refused(self._cluster(*[taken, _LISTENS] * 3), "already in use")
        self.assertEqual(self.processes.ended, 4)

    def test_a_restart(self):
        outcomes = _LISTENS, _LISTENS, _LISTENS, ("out", 1)
        with self._cluster(*outcomes) as cluster:
            cluster.restart("ps", 0)
            with self.assertRaisesRegex(RuntimeError, "(?s)status 1 .*: out"):
                cluster.restart("ps", 0)


if __name__ == "__main__":
    absltest.main()
