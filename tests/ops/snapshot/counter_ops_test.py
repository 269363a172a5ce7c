# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_ext import ops
from tf_ext.ops.snapshot import counter_ops, snapshot_ops

_ID = "0123456789abcdef" * 2
_CONFIG = (
    "admission=count\nadmission.forget=10\nadmission.n=4\ndim=1\n"
    "initializer=zeros\nname=items\noptimizer=sgd\n"
)


class CounterOpsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.handle = ops.sparse_table_handle(_CONFIG)
        self._push([1, 2, 2], 25)
        self._push([3], 31)

    def _push(self, signs, step):
        ops.sparse_table_push(
            self.handle,
            signs,
            np.ones([len(signs), 1], np.float32),
            hyperparameters=[0.5, 0.0],
            step=step,
        )

    def _export(self, handle=None, **changes):
        arguments = {"cursor": 0, "limit": -1, "period": 3} | changes
        return counter_ops.sparse_table_export_counters(
            self.handle if handle is None else handle, **arguments
        )

    def _counters(self, handle=None):
        found = self._export(handle)
        counts = found.counts.numpy()[:, 0].tolist()
        return dict(zip(found.signs.numpy().tolist(), counts, strict=True))

    def _import(self, signs, counts, period=3, **arguments):
        return counter_ops.sparse_table_import_counters(
            self.handle,
            tf.constant(signs, tf.int64),
            tf.constant(counts, tf.int32),
            period,
            **arguments,
        )

    def test_exports_and_imports(self):
        found = self._export()
        self.assertEqual(self._counters(), {1: -1, 2: -2, 3: 1})
        self.assertEqual(int(found.next_cursor), -1)
        self.assertEqual(int(found.its_period), 3)
        self.assertEqual(int(self._import([2, 7], [[1], [9]])), 2)
        self.assertEqual(self._counters(), {1: -1, 2: 1, 3: 1, 7: 3})
        self._import([5], [[-1]], period=8, clear=True)
        self.assertEqual(int(self._export(limit=0).its_period), 8)
        self.assertEqual(self._counters(), {5: 1})

    @tf.function
    def _copy(self, other):
        found = self._export()
        return counter_ops.sparse_table_import_counters(
            other, found.signs, found.counts, 3
        )

    def test_in_a_graph(self):
        other = ops.sparse_table_handle(_CONFIG)
        self.assertEqual(int(self._copy(other)), 3)
        self.assertEqual(self._counters(other), self._counters())
        graph = self._copy.get_concrete_function(other).graph
        [export] = [o for o in graph.get_operations() if "Export" in o.type]
        shapes = [output.shape.as_list() for output in export.outputs]
        self.assertEqual(shapes, [[None], [None, 1], [], []])

    @parameterized.named_parameters(
        ("cursor", {"cursor": -1}, "cursor must be 0 or the next_cursor"),
        ("vector", {"cursor": [0]}, "cursor must be"),
        ("period", {"period": [3]}, "period must be"),
        ("limit", {"limit": [[3]]}, "limit must be"),
    )
    def test_export_refuses(self, changes, says):
        with self.assertRaisesRegex(
            (tf.errors.InvalidArgumentError, ValueError), says
        ):
            self._export(**changes)

    @parameterized.named_parameters(
        ("rank", [1, 2], [1, 1], {}, "counts must be"),
        ("length", [1, 2], [[1]], {}, r"counts must be of shape \[2,1\]"),
        ("signs", [[1]], [[1]], {}, "signs must be"),
        ("zero", [7, 8], [[1], [0]], {}, r"counts\[1\] of sign 8 is 0"),
        ("period", [7], [[1]], {"period": -1}, "must be from 0 to 9223"),
        ("shape", [7], [[1]], {"period": [1]}, "period must be"),
        ("clear", [7], [[1]], {"clear": [True]}, "clear must be"),
    )
    def test_import_refuses(self, signs, counts, arguments, says):
        with self.assertRaisesRegex(
            (tf.errors.InvalidArgumentError, ValueError), says
        ):
            self._import(signs, counts, **arguments)
        self.assertEqual(self._counters(), {1: -1, 2: -2, 3: 1})

    def test_tables_that_do_not_count(self):
        plain = ops.sparse_table_handle(
            "dim=1\ninitializer=zeros\nname=items\noptimizer=sgd\n"
        )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "has no counters"
        ):
            self._export(plain)

    def _restore(self, **changes):
        """Restores from a file of another table."""
        with tempfile.TemporaryDirectory() as directory:
            names, files, _ = snapshot_ops.sparse_table_save(
                self.handle, directory, _ID, period=3
            )
            self.assertEqual(
                names.numpy().tolist(),
                [
                    b"rows-0123456789abcdef-00000-000.chunks",
                    b"counters-0123456789abcdef-00000.chunks",
                ],
            )
            other = ops.sparse_table_handle(_CONFIG)
            arguments = {
                "paths": [os.path.join(directory, names.numpy()[1].decode())],
                "files": files[1:],
                "file_shards": [0],
                "stored_shards": 1,
                "shard": 0,
                "shards": 1,
                "n": 4,
                "period": 3,
                "load": True,
            } | changes
            restored = counter_ops.sparse_table_restore_counters(
                other, **arguments
            )
            return int(restored), self._counters(other)

    def test_restores(self):
        counters = self._counters()
        self.assertEqual(self._restore(), (3, counters))
        self.assertEqual(self._restore(load=False), (3, {}))
        parts = [self._restore(shard=shard, shards=2) for shard in (0, 1)]
        self.assertEqual(parts[0][0] + parts[1][0], 3)
        self.assertEqual(parts[0][1] | parts[1][1], counters)

    @parameterized.named_parameters(
        ("n", {"n": 0}, "n must be from 1 to 255"),
        ("large_n", {"n": 256}, "but they are 256 and 3"),
        ("period", {"period": -1}, "period at least 0"),
        ("shard", {"shard": 1}, "shard must be at least 0 and below shards"),
        ("file_shard", {"file_shards": [1]}, r"file_shards\[0\] must be"),
        ("no_shard", {"file_shards": []}, r"file_shards must be of shape \[1"),
        ("paths", {"paths": []}, "files must be of shape"),
        ("rank", {"n": [4]}, "n must be"),
    )
    def test_restore_refuses(self, changes, says):
        changes = {
            name: tf.constant(value, tf.string if name == "paths" else tf.int64)
            for name, value in changes.items()
        }
        with self.assertRaisesRegex(
            (tf.errors.InvalidArgumentError, ValueError), says
        ):
            self._restore(**changes)

    @parameterized.named_parameters(
        ("count", {"n": 2}, "counters-.* has a count of -2 of the sign 2"),
        ("period", {"period": 0}, "counts must be from 1 to 3"),
        ("shard", {"stored_shards": 3}, "holds the sign"),
    )
    def test_damage(self, changes, says):
        with self.assertRaisesRegex(tf.errors.DataLossError, says):
            self._restore(**changes)


if __name__ == "__main__":
    tf.test.main()
