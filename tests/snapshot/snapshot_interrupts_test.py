# SPDX-License-Identifier: Apache-2.0
"""What an interrupt at a given place of a save or load leaves."""

import concurrent.futures
import contextvars
import os
import signal
import threading
import time
from unittest import mock

import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest, parameterized
from interrupts import take_interrupts
from saving_util import TestCase, contents
from tf_ext._core import Setting

from tf_ext.ops.snapshot import snapshot_ops, update_ops
from tf_ext.snapshot.storage import storage_of
from tf_ext.tables import each_shard
from tf_ext.tables.saving import snapshot_save

pytestmark = pytest.mark.slow_tests(
    "SaveTest::test_a_chain_goes_on1[01]",
    "SaveTest::test_a_chain_goes_on[2356789]",
)


_WAIT_SECONDS = 60


def _interrupt_main():
    # A signal that wakes the main thread, wherever it waits.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


class SaveTest(TestCase):
    def setUp(self):
        super().setUp()
        take_interrupts(self)

    def _table(self, shards):
        table = util.table(shards)
        util.push(table, range(50))
        return table

    @parameterized.product(
        shards=[1, 2],
        name=["save", "end_save", "set_chain"],
        delta=[False, True],
    )
    def test_a_chain_goes_on(self, shards, name, delta):
        table = self._table(shards)
        first, second, third = (self.directory() for _ in range(3))
        if delta:
            table.save(first, incremental=True)
            util.push(table, range(40, 60))
        op = getattr(snapshot_ops, f"sparse_table_{name}")

        def interrupted(*args, **kwargs):
            op(*args, **kwargs)
            raise KeyboardInterrupt  # As Python does after an op.

        how = {"base": first} if delta else {"incremental": True}
        with mock.patch.object(
            snapshot_ops, f"sparse_table_{name}", interrupted
        ):
            if delta and name == "set_chain":  # It is not called.
                table.save(second, **how)
            else:
                with self.assertRaises(KeyboardInterrupt):
                    table.save(second, **how)
        util.push(table, range(55, 70))
        chain = table.rows.chain.links
        how = {"base": chain[-1][0]} if chain else {"incremental": True}
        table.save(third, **how)
        self.assertEqual(util.loaded(third), contents(table))
        table.load(third, incremental=True)
        table.save(self.directory(), base=third)

    def test_nothing_is_written_after_the_end(self):
        table = self._table(2)
        save, ended = snapshot_ops.sparse_table_save, []
        main_waits = threading.Event()

        def late(shard, *args, **kwargs):
            _interrupt_main()
            main_waits.wait(0.2)  # So that the main thread has got it.
            result = save(shard, *args, **kwargs)
            ended.append(shard)
            return result

        with mock.patch.object(snapshot_ops, "sparse_table_save", late):
            with self.assertRaises(KeyboardInterrupt):
                table.save(self.directory(), incremental=True)
        begun = len(ended)
        self.assertGreater(begun, 0)
        path = self.directory()
        table.save(path, incremental=True)
        self.assertLen(ended, begun)
        self.assertEqual(util.loaded(path), contents(table))

    def test_the_next_call_waits_after_a_second_interrupt(self):
        table = self._table(2)
        save, go_on = snapshot_ops.sparse_table_save, threading.Event()
        begun, ended = [], []

        def late(shard, *args, **kwargs):
            begun.append(shard)
            go_on.wait(_WAIT_SECONDS)
            result = save(shard, *args, **kwargs)
            ended.append(shard)
            return result

        def interrupt_twice():
            while len(begun) < 2:
                time.sleep(0.01)
            for _ in range(2):
                _interrupt_main()
                time.sleep(0.3)
            time.sleep(0.5)  # In which nothing may be done with the shards.
            go_on.set()

        impatient = threading.Thread(target=interrupt_twice)
        path = self.directory()
        with mock.patch.object(snapshot_ops, "sparse_table_save", late):
            impatient.start()
            with self.assertRaises(KeyboardInterrupt):
                table.save(self.directory(), incremental=True)
            # Before anything else is done with the shards.
            with mock.patch.object(
                snapshot_ops,
                "sparse_table_set_chain",
                lambda *_: self.assertLen(ended, 2),
            ):
                table.end_incremental()
        table.save(path, incremental=True)
        impatient.join()
        self.assertEqual(util.loaded(path), contents(table))

    def test_tasks_do_not_begin_after_the_end(self):
        tasks = each_shard.Tasks(2)
        self.assertEqual(tasks.run(0, lambda index, shard: index + shard, 5), 5)
        tasks.end()
        with self.assertRaises(concurrent.futures.CancelledError):
            tasks.run(1, self.fail, None)

    @parameterized.product(delta=[False, True], shards=[1, 2])
    def test_the_next_save_ends_what_was_not_ended(self, delta, shards):
        table = self._table(shards)
        first, second = self.directory(), self.directory()
        if delta:
            table.save(first, incremental=True)
        how = {"base": first} if delta else {"incremental": True}

        def save(shard, *args, **kwargs):
            raise KeyboardInterrupt

        with mock.patch.object(snapshot_ops, "sparse_table_end_save", save):
            with self.assertRaises(KeyboardInterrupt):
                table.save(self.directory(), **how)
        util.push(table, range(45, 60))
        chain = table.rows.chain.links
        how = {"base": chain[-1][0]} if chain else {"incremental": True}
        table.save(second, **how)
        self.assertEqual(util.loaded(second), contents(table))
        self.assertEqual(table.rows.chain.saving, "")

    def test_a_chain_ends_that_was_not_saved(self):
        table = self._table(2)
        with mock.patch.object(
            snapshot_ops, "sparse_table_end_save", side_effect=KeyboardInterrupt
        ):
            with self.assertRaises(KeyboardInterrupt):
                table.save(self.directory(), incremental=True)
        table.end_incremental()
        self.assertEqual(table.rows.chain.saving, "")
        table.load(self._saved(), incremental=True)

    def _saved(self):
        path = self.directory()
        self._table(1).save(path)
        return path

    def test_an_interrupted_save_has_ended(self):
        table = self._table(2)
        with mock.patch.object(
            snapshot_ops, "sparse_table_save", side_effect=KeyboardInterrupt
        ):
            with self.assertRaises(KeyboardInterrupt):
                table.save(self.directory(), incremental=True)
        self.assertEqual(table.rows.chain.saving, "")

    def test_a_chain_whose_end_was_interrupted_has_ended(self):
        table = self._table(2)
        table.save(self.directory(), incremental=True)
        with mock.patch.object(
            snapshot_ops,
            "sparse_table_set_chain",
            side_effect=KeyboardInterrupt,
        ):
            with self.assertRaises(KeyboardInterrupt):
                table.end_incremental()
        path = self.directory()
        table.save(path, incremental=True)
        self.assertEqual(util.loaded(path), contents(table))

    def test_a_chain_ends_whose_marks_are_not_known(self):
        table = self._table(2)
        error = tf.errors.ResourceExhaustedError(None, None, "no memory")
        with mock.patch.object(
            snapshot_ops, "sparse_table_end_save", side_effect=error
        ):
            with self.assertRaisesRegex(type(error), "no memory"):
                table.save(self.directory(), incremental=True)
        path = self.directory()
        table.save(path, incremental=True)
        self.assertEqual(util.loaded(path), contents(table))

    @parameterized.parameters(1, 2)
    def test_the_save_of_a_signal_handler_wins(self, shards):
        table = self._table(shards)
        first, second = self.directory(), self.directory()
        write = snapshot_save._of_all_processes

        def handled(*args):
            with mock.patch.object(snapshot_save, "_of_all_processes", write):
                table.save(second, incremental=True)
            return write(*args)

        with mock.patch.object(snapshot_save, "_of_all_processes", handled):
            with self.assertRaisesRegex(RuntimeError, "was aborted: another"):
                table.save(first, incremental=True)
        self.assertEqual(os.listdir(first), [])
        util.push(table, range(45, 60))
        third = self.directory()
        table.save(third, base=second)
        self.assertEqual(util.loaded(third), contents(table))

    def test_threads_take_turns(self):
        table = self._table(2)
        paths = [self.directory() for _ in range(4)]

        def save(path):
            table.end_incremental()
            table.save(path, incremental=True)

        threads = [threading.Thread(target=save, args=[p]) for p in paths]
        errors = []
        with mock.patch.object(threading, "excepthook", errors.append):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # Another thread's chain may have begun meanwhile.
        for error in errors:
            self.assertIn("has a chain", str(error.exc_value))
        self.assertLess(len(errors), len(threads))
        table.end_incremental()
        table.save(paths[0], incremental=True)
        self.assertEqual(util.loaded(paths[0]), contents(table))


class LoadTest(TestCase):
    @parameterized.parameters(1, 2)
    def test_is_empty_or_whole(self, shards):
        saved = util.table()
        util.push(saved, range(50))
        path = self.directory()
        saved.save(path)
        table = util.table(shards)
        for module, name in (
            (snapshot_ops, "restore"),
            (update_ops, "begin_update"),
            (update_ops, "end_update"),
            (snapshot_ops, "set_chain"),
        ):
            op = getattr(module, f"sparse_table_{name}")

            def interrupted(*args, op=op, **kwargs):
                op(*args, **kwargs)
                raise KeyboardInterrupt

            with mock.patch.object(module, f"sparse_table_{name}", interrupted):
                with self.assertRaises(KeyboardInterrupt):
                    table.load(path, incremental=True)
            self.assertEqual(table.size(), 0, name)
        table.load(path, incremental=True)
        self.assertEqual(contents(table), contents(saved))
        table.save(self.directory(), base=path)


class LockTest(TestCase):
    def test_is_taken_from_the_same_thread(self):
        path = self.directory()
        storage = storage_of(path)
        storage.lock(path).__enter__()  # What never ended it.
        table = util.table()
        with mock.patch("tf_ext.snapshot.storage._LOCK_TIMEOUT_SECONDS", 0):
            table.save(path)
            with storage.lock(path):
                pass
            with storage.lock(path):
                with self.assertRaises(TimeoutError):
                    self._in_thread(lambda: table.save(path))
            self._in_thread(lambda: table.save(path))

    def _in_thread(self, function):
        raised = []

        def run():
            try:
                function()
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for error in raised:
            raise error


class SettingTest(absltest.TestCase):
    def test_sets_a_variable_in_a_block(self):
        variable = contextvars.ContextVar("variable", default="default")
        with Setting(variable, 1, "entered") as entered:
            self.assertEqual((variable.get(), entered), (1, "entered"))
            with self.assertRaises(KeyboardInterrupt):
                with Setting(variable, 2) as entered:
                    self.assertEqual((variable.get(), entered), (2, None))
                    raise KeyboardInterrupt
            self.assertEqual(variable.get(), 1)
        self.assertEqual(variable.get(), "default")
        with self.assertRaisesRegex(ValueError, "has not begun"):
            Setting(variable, 1).__exit__(None, None, None)
        with self.assertRaises(TypeError):
            Setting("variable", 1).__enter__()


if __name__ == "__main__":
    absltest.main()
