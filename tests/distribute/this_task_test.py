# SPDX-License-Identifier: Apache-2.0
"""What a process's log and probes say of its task."""

import importlib
import logging
import os
from unittest import mock

from absl.testing import absltest

from tf_ext.distribute import this_task


class ThisTaskTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(
            mock.patch.object(this_task, "_task", this_task._Task())
        )
        self.enterContext(mock.patch.dict(os.environ))
        os.environ.pop("TF_CONFIG", None)

    def logged(self, name):
        with self.assertLogs(name, "INFO") as logs:
            logging.getLogger(name).info("%d%% of %s", 7, {"rows": 1})
        return logs.records[0].getMessage()

    def test_messages_begin_with_the_task(self):
        for name in (
            "tf_ext",
            "tf_ext.distribute.server",
            "tf_ext.distribute.strategy",
            "tf_ext.distribute.recovery",
            "tf_ext.distribute.liveness",
            "tf_ext.distribute.metrics_server",
        ):
            with self.subTest(name):
                importlib.import_module(name)
                this_task._task.name = ""
                self.assertEqual(self.logged(name), "7% of {'rows': 1}")
                this_task.set_connecting("worker", 3)
                self.assertEqual(
                    self.logged(name), "/job:worker/task:3: 7% of {'rows': 1}"
                )
        self.assertEqual(this_task.name(), "/job:worker/task:3")

    def test_messages_of_others_are_as_they_were(self):
        this_task.set_connected("chief", 0)
        self.assertEqual(self.logged("other"), "7% of {'rows': 1}")

    def test_is_ready_when_it_has_connected(self):
        self.assertIsNone(this_task.why_not_connected())
        this_task.set_connecting("chief", 0)
        self.assertIn("not connected", this_task.why_not_connected())
        this_task.set_connected("chief", 0)
        self.assertIsNone(this_task.why_not_connected())
        # It connects again after a server was lost.
        this_task.set_connecting("chief", 0)
        self.assertIsNotNone(this_task.why_not_connected())

    def test_is_what_it_was_when_connecting_fails(self):
        for name in ("", "/job:chief/task:0"):
            this_task._task.name = name
            this_task._task.connected = bool(name)
            with self.assertRaises(TimeoutError):
                with this_task.connecting("worker", 3):
                    self.assertEqual(this_task.name(), "/job:worker/task:3")
                    self.assertIsNotNone(this_task.why_not_connected())
                    raise TimeoutError
            self.assertEqual(this_task.name(), name)
            self.assertIsNone(this_task.why_not_connected())

    def test_is_ready_after_connecting(self):
        with this_task.connecting("worker", 3):
            pass
        self.assertEqual(this_task.name(), "/job:worker/task:3")
        self.assertIsNone(this_task.why_not_connected())

    def test_is_not_ready_before_it_connects(self):
        for text in ("{}", '{"task": {"type": "chief", "index": 0}}'):
            os.environ["TF_CONFIG"] = text
            self.assertIn("not connected", this_task.why_not_connected())

    def test_an_evaluator_connects_to_nothing(self):
        os.environ["TF_CONFIG"] = '{"task": {"type": "evaluator", "index": 0}}'
        self.assertIsNone(this_task.why_not_connected())


if __name__ == "__main__":
    absltest.main()
