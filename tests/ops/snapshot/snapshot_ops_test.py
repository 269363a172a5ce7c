# SPDX-License-Identifier: Apache-2.0
"""The ops that write and read snapshots: what they refuse."""

import functools
import glob
import os
import resource

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from ops_util import StoredTableTestCase, table_config

from tf_ext import ops
from tf_ext.ops.snapshot import snapshot_ops

_ID, _NEXT = "a" * 32, "b" * 32
_FIELDS = {
    "field_names": ["weights"],
    "field_types": [tf.float32],
    "field_counts": [2],
    "field_offsets": [8],
}


class SnapshotOpsTest(StoredTableTestCase):
    def _save(self, *args, **kwargs):
        return snapshot_ops.sparse_table_save(
            self.handle, self.directory, *args, **kwargs
        )

    def _restore(self, names, files, *args, **kwargs):
        paths = [os.path.join(self.directory, n.decode()) for n in names]
        return snapshot_ops.sparse_table_restore(
            self.handle, paths, files, *args, **{**_FIELDS, **kwargs}
        )

    def test_restores_what_was_saved(self):
        names, files, chunk_bytes = self._save(_ID)
        self.assertEqual(files.shape, [1, 5])
        self.assertEqual(files[0, 1], 3)
        ops.sparse_table_clear(self.handle)
        names = names.numpy()
        for action, rows in (("verify", 0), ("load", 3)):
            restored = self._restore(
                names, files, chunk_bytes, 16, action=action
            )
            self.assertEqual(restored.rows, rows)
            self.assertEqual(restored.converted.numpy().tolist(), [0] * 3)
            self.assertEqual(ops.sparse_table_size(self.handle), rows)

    def test_a_process_without_standard_input(self):
        # The number of its first file is 0.
        held = os.dup(0)
        os.close(0)
        try:
            self._save(_ID)
            opened = glob.glob("/proc/self/fd/*")
            paths = [os.path.realpath(path) for path in opened]
        finally:
            os.dup2(held, 0)
            os.close(held)
        directory = os.path.realpath(self.directory)
        self.assertEmpty([p for p in paths if p.startswith(directory)])

    @parameterized.parameters(
        ({"snapshot_id": "x"}, "id must be 32 lower-case hexadecimal digits"),
        ({"base": "x", "tracked": True}, "base must be 32 lower-case"),
        ({"base": _NEXT}, "tracked must be true with a base"),
        ({"max_bytes_per_second": -1}, "at least 0, but they are -1 and 0"),
        ({"shard": [1]}, r"shard must be a scalar, but its shape is \[1\]"),
    )
    def test_save_refuses(self, arguments, message):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            self._save(**{"snapshot_id": _ID, **arguments})
        self.assertEmpty(os.listdir(self.directory))

    def test_a_chain_is_continued_in_order(self):
        self._save(_ID, tracked=True)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "is being saved as snapshot"
        ):
            self._save(_NEXT, tracked=True)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "the save of b* cannot end"
        ):
            snapshot_ops.sparse_table_end_save(self.handle, _NEXT, True)
        snapshot_ops.sparse_table_end_save(self.handle, _NEXT, False)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "is being saved as snapshot a*"
        ):
            snapshot_ops.sparse_table_set_chain(self.handle, "")
        for committed in (True, True, False):  # The first one counts.
            snapshot_ops.sparse_table_end_save(self.handle, _ID, committed)
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            "whose last snapshot is a*, so b* cannot continue c*",
        ):
            self._save(_NEXT, base="c" * 32, tracked=True)
        # A save that failed ends by itself.
        with self.assertRaises(tf.errors.NotFoundError):
            snapshot_ops.sparse_table_save(
                self.handle, self.directory + "/no", _NEXT, _ID, True
            )
        self._save(_NEXT, base=_ID, tracked=True)
        snapshot_ops.sparse_table_end_save(self.handle, _NEXT, False)
        snapshot_ops.sparse_table_set_chain(self.handle, "")

    def test_a_save_that_fails_leaves_no_file(self):
        ops.sparse_table_pull(
            self.handle, np.arange(200_000), training=True, dim=2
        )
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with self.assertRaisesRegex(
                tf.errors.OpError, "rows-a*-.*File too large"
            ):
                self._save(_ID, tracked=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEmpty(os.listdir(self.directory))
        _, files, _ = self._save(_NEXT, tracked=True)
        self.assertEqual(files[0, 1], 200_000)

    @parameterized.parameters(
        ((1 << 20, 16, 3, 3), {}, "shard must be at least 0 and below shards"),
        ((1 << 20, 7), {}, "row_bytes must be from 8 to 16777216, but .* 7"),
        ((40, 16), {}, "chunk_bytes must be from 48 to 1048576"),
        ((1 << 20, 16), {"field_counts": [3]}, r"float32\[2\], that of .*3\]"),
        ((1 << 20, 16), {"field_offsets": [12]}, "at byte 12 of the snapshot"),
        ((1 << 20, 16), {"field_counts": []}, "must have one entry per field"),
    )
    def test_restore_refuses(self, arguments, fields, message):
        names, files, _ = self._save(_ID)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            self._restore(names.numpy(), files, *arguments, **fields)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, r"files must be of shape \[1,5\]"
        ):
            self._restore(names.numpy(), files[:, :4], 1 << 20, 16)

    @parameterized.parameters(
        ("weights", "int32", False),
        ("weights", "bfloat16", True),
        ("weights", "float16", True),
        ("step", "int32", True),
        ("step", "float32", False),
        ("step", "float16", False),
    )
    def test_types_are_converted_among_floats_alone(self, name, dtype, fits):
        self.handle = ops.sparse_table_handle(
            table_config(dim=2, optimizer="adam")
        )
        names, files, chunk_bytes = self._save(_ID)
        fields = {"weights": tf.float32, name: tf.as_dtype(dtype)}
        sizes = {"weights": 2, "step": 1}
        arguments = {
            "action": "verify",
            "field_names": list(fields),
            "field_types": list(fields.values()),
            "field_counts": [sizes[name] for name in fields],
            "field_offsets": [8, 32][: len(fields)],
        }
        row_bytes = 36  # Of weights, two slots and the step.
        for convert in (True, False):
            restore = functools.partial(
                self._restore, names.numpy(), files, chunk_bytes, row_bytes
            )
            if fits and (convert or dtype == "int32"):
                restore(convert=convert, **arguments)
                continue
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError,
                rf"{name}.* of the snapshot is {dtype}\[{sizes[name]}\]",
            ):
                restore(convert=convert, **arguments)

    def test_another_tag_is_damage(self):
        names, files, chunk_bytes = self._save(_ID)
        other = files.numpy() + np.array([1, 0, 0, 0, 0])
        with self.assertRaisesRegex(
            tf.errors.DataLossError, "damaged at byte 0: chunk 0 of the file"
        ):
            self._restore(names.numpy(), other, chunk_bytes, 16)

    def test_a_file_is_written_whole(self):
        path = os.path.join(self.directory, "file")
        for contents in (b"one", b"another"):
            snapshot_ops.write_file_atomically(path, contents)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), contents)
        self.assertEqual(os.listdir(self.directory), ["file"])
        with self.assertRaises(tf.errors.NotFoundError):
            snapshot_ops.write_file_atomically(path + "s/no", b"")


if __name__ == "__main__":
    absltest.main()
