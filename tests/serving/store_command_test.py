# SPDX-License-Identifier: Apache-2.0
"""Stores of rows at a terminal, in processes without TensorFlow."""

import contextlib
import io
import pathlib
import subprocess
import sys
import uuid

import numpy as np
import pytest
from absl.testing import absltest
from clusters import redis_server
from models import small_models as small
from paths import ROOT
from saving_util import TestCase

import tf_ext
from tf_ext.serving import DirectorySink, export_split, store_cli

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except("StoreCommandTest::test_a_directory"),
]


class StoreCommandTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.directory())
        table = small.table("adam")
        table.pull(range(-3, 1000), training=True)
        self.model, self.table = small.functional(table), table
        self.version = export_split(self.model, self.root / "split")

    def run_command(self, *arguments):
        """`(status, output, errors)` of a command, in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = store_cli.main(list(map(str, arguments)))
        return status, out.getvalue(), err.getvalue()

    def check_commands(self, sink, damage):
        status, out, err = self.run_command("load-redis", self.version, sink)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("is version 1: 1,003 rows.", out)
        against = ["verify-redis", sink, "--against", self.version]
        status, out, err = self.run_command(*against)
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(
            out, "^Version 1 is whole: 1,003 rows, those of .*split"
        )
        # Of another type: another version.
        for dtype in ("int8", "float16"):
            found = self.run_command(
                "load-redis", self.version, sink, f"--dtype={dtype}"
            )
            self.assertEqual(found[0], 0)
            self.assertEqual(self.run_command(*against)[0], 0)
        # Of other rows: another sign, a row more, a row less.
        for change, wrong in (
            (
                lambda: self.table.erase([5]),
                "has 1,003 rows, but should have 1,002",
            ),
            (lambda: self.table.pull([5000], training=True), "5000 .*missing"),
            (self._change, "sign 6 .* is another"),
        ):
            change()
            other = export_split(self.model, self.root / "other")
            status, _, err = self.run_command(
                "verify-redis", sink, "--version=1", "--against", other
            )
            self.assertEqual(status, 1)
            self.assertRegex(err, wrong)
        self.assertEqual(self.run_command("rollback", sink, 2)[0], 0)
        status, out, _ = self.run_command("verify-redis", sink)
        self.assertIn("Version 2 is whole: 1,003 rows, and", out)
        status, _, err = self.run_command("load-redis", self.version, sink)
        self.assertEqual(status, 2)
        self.assertIn("pinned to version 2", err)
        self.assertEqual(self.run_command("unpin", sink)[0], 0)
        status, out, _ = self.run_command("load-redis", self.version, sink)
        self.assertIn("is version 4", out)
        status, _, err = self.run_command("rollback", sink, 9)
        self.assertEqual(status, 2)
        self.assertIn("retained (1, 2, 4)", err)
        damage()
        status, _, err = self.run_command("verify-redis", sink)
        self.assertEqual(status, 1)
        self.assertIn("differs from what was written", err)

    def _change(self):
        self.table.erase([5000])
        self.table.pull([5], training=True)
        rows = np.ones([1, 4], np.float32)
        self.table.push([6], rows, learning_rate=0.1)

    def test_a_directory(self):
        store = self.root / "store"

        def damage():
            path = store / "4" / "dense" / "saved_model.pb"
            path.write_bytes(path.read_bytes() + b"1")

        self.check_commands(store, damage)

    def test_a_redis_without_tensorflow(self):
        if redis_server.missing():
            self.skipTest(redis_server.missing())
        server = redis_server.RedisServer(self.root)
        self.addCleanup(server.close)
        name = uuid.uuid4().hex
        sink = f"{server.url}#{name}"

        def damage():
            key = f"{{tf_ext:{name}}}:files:4"
            server.client.hset(key, "dense/saved_model.pb", b"1")

        self.check_commands(sink, damage)
        code = (
            "import atexit, runpy, sys\n"
            "atexit.register(lambda: print(sorted(sys.modules)))\n"
            "sys.argv = ['x', 'verify-redis', sys.argv[1], '--version=2']\n"
            "runpy.run_module('tf_ext.serving', run_name='__main__')"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, sink],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        self.assertIn("Version 2 is whole: 1,003 rows", found.stdout)
        self.assertIn("'tf_ext._core'", found.stdout)
        self.assertNotIn("'tensorflow'", found.stdout)

    def test_publishing_after_loading(self):
        sink = DirectorySink(self.root / "store")
        self.run_command("load-redis", self.version, self.root / "store")
        model = small.compiled(small.functional(self.table))
        points = str(self.root / "points")
        publisher = tf_ext.serving.publish(model, points, sink, every=None)
        features, labels = small.batch(np.random.default_rng(1))
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        model.fit(features, labels, verbose=0, callbacks=[snapshot])
        self.assertTrue(publisher.update())
        verify = ["verify-redis", self.root / "store", "--against", points]
        status, out, err = self.run_command(*verify)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("Version 2 is whole", out)
        status, _, err = self.run_command(*verify, "--version=1")
        self.assertEqual(status, 2)
        self.assertIn("does not have the rows of deep in version 1", err)
        with self.assertRaisesRegex(FileNotFoundError, "version 1: it was"):
            tf_ext.serving.rollback(sink, 1, points)

    def test_other_errors(self):
        for arguments, wrong in (
            (["verify-redis", self.root / "store"], "There is no version yet"),
            (["load-redis", self.root, self.root / "store"], "no version of"),
            (
                ["verify-redis", "redis://127.0.0.1:1/0#x"],
                "'x' in Redis: Error .* connecting",
            ),
        ):
            status, _, err = self.run_command(*arguments)
            self.assertEqual(status, 2)
            self.assertRegex(err, wrong)
        for sink in ("redis://127.0.0.1:1/0", "x://y#z", "redis://a:1/0#{"):
            with self.assertRaises(SystemExit):
                self.run_command("verify-redis", sink)


if __name__ == "__main__":
    absltest.main()
