# SPDX-License-Identifier: Apache-2.0
"""The ops that begin and end updates in place: what they refuse."""

import os

import tensorflow as tf
from absl.testing import absltest, parameterized
from ops_util import StoredTableTestCase, table_config

from tf_ext import ops
from tf_ext.ops.snapshot import snapshot_ops, update_ops

_ID, _NEXT = "a" * 32, "b" * 32


def _push(handle):
    return ops.sparse_table_push(
        handle, [1, 2], tf.ones([2, 4]), hyperparameters=(1.0, 0.0)
    )


class UpdateOpsTest(StoredTableTestCase):
    def _restore(self, action):
        names, files, chunk_bytes = snapshot_ops.sparse_table_save(
            self.handle, self.directory, _ID
        )
        restored = snapshot_ops.sparse_table_restore(
            self.handle,
            [os.path.join(self.directory, n.decode()) for n in names.numpy()],
            files,
            chunk_bytes,
            16,
            action=action,
            field_names=["weights"],
            field_types=[tf.float32],
            field_counts=[2],
            field_offsets=[8],
        )
        return restored.rows

    def _held(self):
        return update_ops.sparse_table_held(self.handle).numpy().decode()

    def _update(
        self,
        snapshot_id,
        *args,
        actions=("gather", "update"),
        completed=True,
    ):
        number = update_ops.sparse_table_begin_update(self.handle, *args)
        restored = [int(self._restore(action)) for action in actions]
        held = update_ops.sparse_table_end_update(
            self.handle, number, snapshot_id, completed
        )
        return restored, bool(held)

    def test_a_table_knows_what_it_holds(self):
        self.assertEqual(self._held(), "")
        self.assertEqual(self._update(_ID), ([0, 3], True))
        self.assertEqual(self._held(), _ID)
        self.assertEqual(self._update(_NEXT, _ID), ([0, 3], True))
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError,
            f"holds those of {_NEXT}, so what continues {_ID} cannot be",
        ):
            self._update(_NEXT, _ID)
        ops.sparse_table_erase(self.handle, [1])
        self.assertEqual(self._held(), "")

    @parameterized.named_parameters(
        ("push", _push),
        (
            "a_pull_that_inserts",
            lambda h: ops.sparse_table_pull(h, [3], True, dim=4),
        ),
        (
            "import",
            lambda h: ops.sparse_table_import(
                h, [1], [tf.ones([1, 4])], field_names=["weights"]
            ),
        ),
        ("erase", lambda h: ops.sparse_table_erase(h, [1])),
        ("clear", ops.sparse_table_clear),
        ("evict", lambda h: ops.sparse_table_evict(h, 9, unseen=1)),
        ("decay", lambda h: ops.sparse_table_decay(h, 0.5)),
    )
    def test_a_change_takes_it_from_a_table(self, change):
        self.handle = ops.sparse_table_handle(
            table_config(last_seen="step", statistics="show,click")
        )
        _push(self.handle)
        self.assertEqual(self._update(_ID, actions=()), ([], True))
        ops.sparse_table_pull(self.handle, [1, 3], dim=4)
        self.assertEqual(self._held(), _ID)
        change(self.handle)
        self.assertEqual(self._held(), "")

    def test_a_whole_update_erases_the_rest(self):
        self.assertEqual(self._update(_ID, "", True, actions=()), ([], True))
        self.assertEqual(ops.sparse_table_size(self.handle), 0)

    def test_one_of_some_fields_erases_the_rest(self):
        self.assertEqual(self._update("", "", True, actions=()), ([], False))
        self.assertEqual(ops.sparse_table_size(self.handle), 0)
        self.assertEqual(self._held(), "")

    @parameterized.parameters("", _ID)
    def test_one_that_is_given_up_erases_nothing(self, snapshot_id):
        done = self._update(snapshot_id, "", True, actions=(), completed=False)
        self.assertEqual(done, ([], False))
        self.assertEqual(ops.sparse_table_size(self.handle), 3)
        self.assertEqual(self._held(), "")

    @parameterized.parameters("gather", "update")
    def test_is_refused_without_an_update(self, action):
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "is not being updated"
        ):
            self._restore(action)

    def test_another_action_is_refused(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "action must be 'verify', 'load', 'gather' or 'update', but it is "
            "'x'",
        ):
            self._restore("x")

    @parameterized.parameters(
        ("begin_update", ("x", False), "base must be 32 lower-case"),
        ("begin_update", (_ID, [True]), "whole must be a scalar, but its"),
        ("begin_update", ([_ID], True), "base must be a scalar, but its"),
        ("end_update", (1, _ID.upper()), "id must be 32 lower-case"),
        ("end_update", ([1], _ID), "number must be a scalar, but its shape"),
        ("end_update", (1, [_ID]), "id must be a scalar, but its shape"),
        (
            "end_update",
            (1, _ID, [True]),
            "completed must be a scalar, but its shape",
        ),
    )
    def test_refuses(self, name, arguments, message):
        op = getattr(update_ops, f"sparse_table_{name}")
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            op(self.handle, *arguments)
        if "scalar" in message:
            traced = tf.function(lambda: op(self.handle, *arguments))
            with self.assertRaisesRegex(ValueError, message):
                traced.get_concrete_function()


if __name__ == "__main__":
    absltest.main()
