# SPDX-License-Identifier: Apache-2.0
"""Served models at a terminal."""

import contextlib
import io
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest.mock

import numpy as np
import pytest
import snapshot_util
import tensorflow as tf
from absl.testing import absltest
from models import small_models as small
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.serving import cli, read_manifest, replay

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "CommandTest::test_damaged_batches",
        "CommandTest::test_export_and_inspect",
        "CommandTest::test_other_errors",
        "CommandTest::test_the_status_of_the_program",
        "CommandTest::test_verify",
        "DifferenceTest::test_of_numbers",
    ),
]

_SEED = 4


def _model(table):
    """A model of ragged, dense and text features."""
    column = tf_ext.feature_column.category_column
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "tags": keras.Input((None,), dtype="string", ragged=True, name="tags"),
    }
    columns = [column("user"), column("tags", combiner="mean")]
    layer = tf_ext.layers.EmbeddingFeatures(columns, table)
    return small.compiled(tf_ext.Model(inputs, small.head()(layer(inputs))))


class CommandTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        table = small.table("adam")
        table.pull(range(1000), training=True)
        model = _model(table)
        users = np.arange(8)
        tags = tf.RaggedTensor.from_row_lengths(
            tf.constant(list("abcdeabc")), [2, 0, 1, 1, 0, 3, 1, 0]
        )
        batch = {"user": tf.constant(users), "tags": tags}
        model.train_on_batch(batch, np.ones([8, 1], np.float32))
        model.save(cls.root / "model.keras")
        table.save(cls.root / "rows", step=7)
        np.savez(
            cls.root / "batch.npz",
            user=users,
            tags=np.array([["a", "b"], ["c", "new"]] * 4),
        )
        # What most tests look at.
        cls.served = cls.root / "served"
        cls.out = cls._of_class("export", "model.keras", cls.served)

    @classmethod
    def _of_class(cls, *arguments):
        status, out, err = cls._run(
            *arguments, f"--warmup={cls.root / 'batch.npz'}"
        )
        if status or err:
            raise AssertionError(err)
        return out

    @classmethod
    def _run(cls, *arguments, **kwargs):
        arguments = [
            cls.root / one if one == "model.keras" else one for one in arguments
        ]
        return snapshot_util.run_command(*arguments, main=cli.main, **kwargs)

    def _succeed(self, *arguments):
        status, out, err = self._run(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def _fail(self, status, message, *arguments):
        found, out, err = self._run(*arguments)
        self.assertEqual((found, out), (status, ""), err)
        self.assertRegex(
            err.splitlines()[-1],
            rf"^python -m tf_ext.serving: error: {message}$",
        )
        return err

    def test_export_and_inspect(self):
        self.assertRegex(
            self.out, r"^.*/served/1: 1,0\d\d rows, \d+\.\d kB\.\n$"
        )
        for path in (self.served, self.served / "1"):
            out = self._succeed("inspect", path)
            for line in (
                rf"served +{self.served}/1",
                "kind +model",
                "model +functional.*|model +model.*",
                "step +1",
                r"size +\d+\.\d kB in \d files",
                r"versions +tf_ext \S+, TensorFlow 2\.21\.\d+",
                r"deep +float32 +initial +4 +1,0\d\d +\d+\.\d kB +-",
            ):
                self.assertRegex(out, rf"(?m)^({line})$")

    def test_verify(self):
        out = self._succeed("verify", self.served)
        found = re.fullmatch(
            r".*/served/1 is whole: \d files, \d+\.\d kB\. 1 warm-up request: "
            r"its outputs are those of the trained model, within (\S+) "
            r"\(1e-05 is allowed\)\.\n",
            out,
        )
        self.assertLess(float(found[1]), 1e-6)

    def test_small_rows_of_a_snapshot(self):
        path = self.root / "small"
        self._succeed(
            *("export", "model.keras", path, "--dtype=int8", "--version=5"),
            "--unknown=zeros",
            f"--snapshot=deep={self.root / 'rows'}",
            f"--warmup={self.root / 'batch.npz'}",
        )
        snapshot = tf_ext.snapshot.open_snapshot(self.root / "rows").manifest
        self.assertRegex(
            self._succeed("inspect", path),
            rf"(?m)^deep +int8 +zeros +4 .* {snapshot.id}$",
        )
        self.assertIn("(0.02 is allowed)", self._succeed("verify", path))
        self._fail(
            1,
            r".*/small/5 differs from the trained model: output "
            r"'output_0' of 1 warm-up request differs by \S+, and for int8 "
            r"rows 1e-07 is allowed\.",
            *("verify", path, "--limit=1e-7"),
        )

    def test_verify_names_what_is_damaged(self):
        path = self.root / "damaged"
        self._succeed("export", "model.keras", path)
        self.assertIn(
            "there is no warm-up request to replay",
            self._succeed("verify", path),
        )
        [data] = path.glob("1/variables/*data*")
        content = bytearray(data.read_bytes())
        content[100] ^= 1
        data.write_bytes(content)
        (path / "1" / "saved_model.pb").unlink()
        err = self._fail(
            1, "2 of 4 files of .*/damaged/1 are damaged.", "verify", path
        )
        self.assertRegex(err, f"{data} differs from what was written")
        self.assertRegex(err, "saved_model.pb is missing")

    def test_split(self):
        path = self.root / "split"
        out = self._succeed("export", "model.keras", path, "--split")
        self.assertRegex(out, r"/split/1: 1,0\d\d rows, .*")
        self.assertIn("dense part loads", self._succeed("verify", path))
        self._succeed(
            *("export", "model.keras", path, "--split", "--version=10"),
            f"--snapshot=deep={self.root / 'rows'}",
        )
        snapshot = tf_ext.snapshot.open_snapshot(self.root / "rows").manifest
        # The latest of both, by number.
        out = self._succeed("inspect", path)
        self.assertRegex(out, "(?m)^served +.*/split/10$")
        self.assertRegex(out, "(?m)^kind +split$")
        self.assertRegex(out, rf"(?m)^deep .* {snapshot.id}$")
        # A manifest that was written anew does not hide what cannot be loaded.
        (path / "10" / "dense" / "saved_model.pb").write_text("none")
        _forge(path / "10", files=[])
        self._fail(2, ".*", "verify", path)

    def test_damaged_snapshots(self):
        rows, path = self.root / "damaged_rows", self.root / "of_damaged"
        shutil.copytree(self.root / "rows", rows)
        [data] = rows.glob("*.chunks")
        data.write_bytes(data.read_bytes()[:-9])
        for how in ([], ["--split"]):
            self._fail(
                1,
                f"{data}.*",
                *("export", "model.keras", path, f"--snapshot=deep={rows}"),
                *how,
            )
        self.assertFalse(path.exists())

    def test_damage_that_the_manifest_does_not_tell(self):
        path = self.root / "unlisted"
        shutil.copytree(self.served, path)
        _forge(path / "1", files=[])
        self._succeed("verify", path)
        extra = path / "1" / "assets.extra"
        [data] = path.glob("1/variables/*data*")
        for file in (extra / "tf_serving_warmup_requests", data):
            good = file.read_bytes()
            file.write_bytes(good[:40] + bytes([good[40] ^ 1]) + good[41:])
            self._fail(2, ".*", "verify", path)
            file.write_bytes(good)
        self._succeed("verify", path)

    def test_other_errors(self):
        path = self.root / "none"
        export = "export", "model.keras", path
        twice = [f"--snapshot=deep={self.root / 'rows'}"] * 2
        np.savez(self.root / "objects.npz", user=np.array([{}]))
        for message, arguments in (
            ("There is no export in '.*none': it has no .*", ["verify", path]),
            (
                "(File not found|No file or directory found).*",
                ["export", "/no.keras", path],
            ),
            (
                "Argument `--snapshot` must name each table once.*",
                [*export, *twice],
            ),
            (
                "Argument `snapshots` .* each table .*",
                [*export, f"--snapshot=wide={self.root / 'rows'}"],
            ),
            (
                "There is no snapshot in '/none': .*",
                [*export, "--snapshot=deep=/none"],
            ),
            (
                "Argument `--dtype` must be left out with `--split`.*=int8",
                [*export, "--split", "--dtype=int8"],
            ),
            (
                "Argument `--unknown` must be left out with `--split`.*zeros",
                [*export, "--split", "--unknown=zeros"],
            ),
            (
                "Argument `--warmup` must be left out with `--split`.*",
                [*export, "--split", f"--warmup={self.root / 'batch.npz'}"],
            ),
            (
                f".*{self.root / 'batch.npz'}.*",
                ["export", "model.keras", self.root / "batch.npz" / "served"],
            ),
            (
                "Argument `--warmup` must be a file of numpy.savez.*",
                [*export, f"--warmup={self.root / 'objects.npz'}"],
            ),
            (
                "Argument `warmup` must hold the input 'tags' .*",
                [*export, f"--warmup={self._without_tags()}"],
            ),
            ("No module named 'no_such'", [*export, "--import=no_such"]),
            (
                ".*/served/1 exists.*",
                ["export", "model.keras", self.served, "--version=1"],
            ),
        ):
            with self.subTest(message):
                self._fail(2, message, *arguments)
        self.assertEmpty(tf_ext.serving.versions(path))

    def test_damaged_batches(self):
        whole = (self.root / "batch.npz").read_bytes()
        damaged = bytearray(whole)
        damaged[whole.index(b"NUMPY") + 150] ^= 1
        np.save(self.root / "one.npy", np.arange(8))
        files = {
            "empty": b"",
            "short": whole[:-40],
            "text": b"user,tags",
            "damaged": bytes(damaged),
            "one": (self.root / "one.npy").read_bytes(),
        }
        path = self.root / "bad.npz"
        for name, content in files.items():
            path.write_bytes(content)
            error = self._fail(
                2,
                "Argument `--warmup` must be a file of numpy.savez.*",
                "export",
                "model.keras",
                self.root / "none",
                f"--warmup={path}",
            )
            self.assertEqual("numpy.save," in error, name == "one")

    def _without_tags(self):
        path = self.root / "short.npz"
        np.savez(path, user=np.arange(8))
        return path

    def test_the_status_of_the_program(self):
        none = str(self.root / "none")
        for package, status, arguments in (
            ("serving", 0, ["inspect", str(self.served)]),
            ("serving", 2, ["inspect", none]),
            ("serving", 2, ["verify-redis", none]),
            ("snapshot", 0, ["inspect", str(self.root / "rows")]),
            ("snapshot", 2, ["inspect", none]),
        ):
            with (
                self.subTest(package, arguments=arguments),
                unittest.mock.patch.object(sys, "argv", ["", *arguments]),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
                self.assertRaises(SystemExit) as ended,
            ):
                runpy.run_module(f"tf_ext.{package}", run_name="__main__")
            self.assertEqual(ended.exception.code, status)

    def test_a_manifest_that_is_none(self):
        folder = self.root / "forged" / "1" / "assets.extra"
        folder.mkdir(parents=True)
        manifest = read_manifest(self.served / "1")
        for name, value in (
            ("format", 2),
            ("files", [{"name": "x"}]),
            ("tables", [{**manifest["tables"][0], "rows": "many"}]),
            ("model", None),
            ("kind", "split"),  # Without `dense`.
            ("step", "last"),
            ("tables", [{**manifest["tables"][0], "unknown": 3}]),
            ("tables", [{**manifest["tables"][0], "statistics": "show"}]),
            ("tables", [{**manifest["tables"][0], "statistics": [1]}]),
            ("dtype", "int4"),
        ):
            forged = {**manifest, name: value}
            if name == "dtype":
                forged["files"] = []
            (folder / "manifest.json").write_text(json.dumps(forged))
            self._fail(2, ".*forged/1.*", "verify", self.root / "forged")
            if name != "dtype":
                self._fail(2, ".*forged/1.*", "inspect", self.root / "forged")

    def test_a_terminal_has_a_bar(self):
        path = self.root / "bar"
        for arguments, bar in (
            (["export", "model.keras", path], "exporting"),
            (["verify", path], "verifying"),
        ):
            status, _, err = self._run(*arguments, terminal=True)
            self.assertEqual(status, 0)
            self.assertIn(bar, err)

    def test_bars_come_to_their_end(self):
        told = []

        @contextlib.contextmanager
        def record(what, total):
            told.append([what, total, 0])

            def advance(size):
                told[-1][2] += size

            yield advance

        path = self.root / "told"
        rows = f"--snapshot=deep={self.root / 'rows'}"
        with unittest.mock.patch.object(cli.terminal, "progress", record):
            self._succeed("export", "model.keras", path)
            self._succeed("verify", path)
            self._succeed("export", "model.keras", path, rows)
            self._succeed("export", "model.keras", path, "--split", rows)
            self._succeed("export", "model.keras", path, "--split")
        for what, total, done in told:
            self.assertGreater(total, 0, what)
            self.assertEqual(done, total, what)

    def test_layers_of_ones_own_and_the_command_itself(self):
        path = self.root / "own.keras"
        (self.root / "own_layers.py").write_text(
            "from tf_ext._keras import keras\n"
            "@keras.utils.register_keras_serializable('own')\n"
            "class Twice(keras.layers.Layer):\n"
            "    def call(self, inputs):\n"
            "        return 2 * inputs\n"
        )
        sys.path.insert(0, str(self.root))
        self.addCleanup(sys.path.remove, str(self.root))
        import own_layers

        inputs = small.inputs()
        layer = tf_ext.layers.EmbeddingFeatures(small.columns(), small.table())
        model = tf_ext.Model(inputs, own_layers.Twice()(layer(inputs)))
        # Of a module that exporting itself does not need.
        small.compiled(model, metrics=[tf_ext.metrics.CTR()]).save(path)
        command = [sys.executable, "-m", "tf_ext.serving"]
        paths = [str(self.root), os.environ["PYTHONPATH"]]
        done = subprocess.run(
            [
                *command,
                "export",
                path,
                self.root / "own",
                "--import=own_layers",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "own/1: 0 rows")


def _forge(version, **members):
    """Changes members of a manifest."""
    path = version / "assets.extra" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


class DifferenceTest(absltest.TestCase):
    def test_of_numbers(self):
        for found, wanted, expected in (
            ([1.0, 2.0], [1.0, 2.5], 0.2),
            ([0.25], [0.5], 0.25),
            ([np.nan, np.inf], [np.nan, np.inf], 0.0),
            ([np.nan], [1.0], np.inf),
            ([1.0], [np.nan], np.inf),
            ([np.inf], [1.0], np.inf),
            ([np.inf], [-np.inf], np.inf),
            ([], [], 0.0),
            ([1.0], [1.0, 1.0], np.inf),
            ([b"a"], [b"a"], 0.0),
            ([b"a"], [b"b"], np.inf),
        ):
            self.assertEqual(
                replay.difference(np.array(found), np.array(wanted)), expected
            )


if __name__ == "__main__":
    absltest.main()
