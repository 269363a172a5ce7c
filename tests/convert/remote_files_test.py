# SPDX-License-Identifier: Apache-2.0
"""Rows of others' files on other file systems than that of the machine."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from oracles import tensornet_files, tfra_files
from saving_util import TestCase

import tf_ext

_DIM = 3
_IDS = tf_ext.feature_column.category_column("user", hashing="identity")


def _table():
    return tf_ext.SparseTable("rows", _DIM, "row_wise_adagrad")


@parameterized.parameters("ram", "file")
class RemoteFilesTest(TestCase):
    def _moved(self, scheme, folder):
        """The same files in a file system."""
        target = f"{scheme}://{self.directory()}"
        for base, _, names in os.walk(folder):
            to = target + base.removeprefix(folder)
            tf.io.gfile.makedirs(to)
            for name in names:
                path = os.path.join(base, name)
                tf.io.gfile.copy(path, f"{to}/{name}")
                os.remove(path)
        return target

    def _check_tfra(self, scheme, save, name=""):
        keys, values = tfra_files.random_rows(0, 50, _DIM)
        folder, table = self.directory(), _table()
        save(folder, keys, values)
        path = self._moved(scheme, folder) + name
        self.assertEqual(tf_ext.convert.from_tfra(path, table, _IDS).taken, 50)
        self.assertAllEqual(table.pull(keys), values)

    def test_tfra(self, scheme):
        def save(folder, keys, values):
            tfra_files.save_to_file_system(folder, "user", keys, values, 2, 2)

        self._check_tfra(scheme, save)

    def test_checkpoint(self, scheme):
        def save(folder, keys, values):
            tfra_files.save_checkpoint(
                f"{folder}/checkpoint", {"user": (keys, values)}
            )

        self._check_tfra(scheme, save, "/checkpoint")

    def test_tensornet(self, scheme):
        signs, fields = tensornet_files.random_rows(0, 50, _DIM)
        folder, table = self.directory(), _table()
        tensornet_files.save(
            folder, "deep", (signs, fields), mode="bin", ranks=2
        )
        path = self._moved(scheme, folder)
        done = tf_ext.convert.from_tensornet(path, {"deep": table})
        self.assertEqual(done["deep"].taken, 50)
        rows = table.pull(signs.view(np.int64))
        self.assertAllEqual(rows, fields["weights"])


if __name__ == "__main__":
    tf.test.main()
