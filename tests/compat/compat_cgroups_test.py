# SPDX-License-Identifier: Apache-2.0
"""The number of TensorFlow's threads in containers with a limit."""

import os
import pathlib
import tempfile
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext._compat import cgroups
from tf_ext.distribute import cpu_limit


class CpuLimitTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory())
        )
        for name, path in (
            ("_CGROUPS", "cgroup"),
            ("_GROUPS_OF_PROCESS", "of"),
        ):
            patch = mock.patch.object(cgroups, name, self.root / path)
            self.enterContext(patch)
        self.processors(64)

    def processors(self, count):
        of_machine = mock.Mock(return_value=set(range(count)))
        self.enterContext(
            mock.patch.object(os, "sched_getaffinity", of_machine)
        )

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @parameterized.parameters(
        ("max 100000\n", 64),
        ("400000 100000\n", 4),
        ("150000 100000\n", 2),  # Rounded up.
        ("50000 100000\n", 1),
        ("25000 50000\n", 1),
        ("99999900000 100000\n", 64),  # More than there are.
        ("0 100000\n", 64),  # Not what the kernel writes.
        ("100000 0\n", 64),
        ("", 64),
        ("400000\n", 64),
        ("four 100000\n", 64),
    )
    def test_of_a_container(self, text, expected):
        self.write("of", "0::/\n")
        self.write("cgroup/cpu.max", text)
        self.assertEqual(cpu_limit.processors(), expected)

    def test_the_least_of_all_levels(self):
        self.write("of", "0::/kubepods/pod1/main\n")
        self.write("cgroup/kubepods/cpu.max", "800000 100000")
        self.write("cgroup/kubepods/pod1/cpu.max", "300000 100000")
        self.write("cgroup/kubepods/pod1/main/cpu.max", "max 100000")
        self.write("cgroup/kubepods/pod2/cpu.max", "100000 100000")
        self.assertEqual(cpu_limit.processors(), 3)

    def test_of_version_1(self):
        self.write("of", "5:cpuset:/a\n4:cpu,cpuacct:/docker/b\n1:memory:/c\n")
        for folder, quota in (("docker/b", 700000), ("docker", -1)):
            self.write(f"cgroup/cpu/{folder}/cpu.cfs_quota_us", f"{quota}\n")
            self.write(f"cgroup/cpu/{folder}/cpu.cfs_period_us", "100000\n")
        self.assertEqual(cpu_limit.processors(), 7)

    def test_paths_outside_of_the_view_of_a_container(self):
        self.write("of", "0::/../../main\n")
        self.write("cgroup/cpu.max", "200000 100000")
        self.assertEqual(cpu_limit.processors(), 2)

    def test_without_control_groups(self):
        self.assertIsNone(cgroups.cpu_quota())
        self.assertEqual(cpu_limit.processors(), 64)

    def limited(self, set_before=0, environment="", error=None):
        """The number of threads that is set, and what is logged."""
        threading = mock.Mock()
        threading.get_intra_op_parallelism_threads.return_value = set_before
        setter = threading.set_intra_op_parallelism_threads
        setter.side_effect = error
        with (
            mock.patch.object(tf.config, "threading", threading),
            mock.patch.dict(os.environ, {cpu_limit.THREADS: environment}),
        ):
            cpu_limit.limit_threads()
        return [call.args[0] for call in setter.mock_calls]

    def test_threads(self):
        self.assertEqual(self.limited(), [])
        self.write("cgroup/cpu.max", "400000 100000")
        with self.assertLogs("tf_ext.distribute.cpu_limit", "INFO") as logs:
            self.assertEqual(self.limited(), [4])
        self.assertIn("uses 4 threads", logs.output[0])
        self.assertEqual(self.limited(set_before=3), [])
        self.assertEqual(self.limited(environment="3"), [])
        # TensorFlow has started.
        with self.assertNoLogs("tf_ext.distribute.cpu_limit", "INFO"):
            self.assertEqual(self.limited(error=RuntimeError("late")), [4])


if __name__ == "__main__":
    absltest.main()
