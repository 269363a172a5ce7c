"""Reads forged snapshots by all readers: SEED COUNT.

Prints each seed before it is read. All readers must find the same rows in an
accepted snapshot; a refused one must raise a clear error and change no table.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback

import numpy as np
import snapshot_forging
import snapshot_util as util
import tensorflow as tf

from tf_ext.snapshot import DamagedSnapshotError, cli, open_snapshot

# Of a snapshot that is whole, but of another table or version.
_OTHER_KIND = re.compile("is of format|^Rows cannot be restored into table")


def _write_snapshots(root):
    """A full snapshot in two shards, and a delta."""
    table = util.table(2, dim=2)
    util.push(table, range(12))
    table.save(os.path.join(root, "0"), incremental=True, step=3)
    util.push(table, range(9, 20), 1)
    table.erase(range(4))
    table.save(os.path.join(root, "1"), base=os.path.join(root, "0"))


def _contents(table):
    signs, fields = table.export_rows()
    return _by_sign([(signs, fields)], list(fields))


def _by_sign(chunks, names):
    return {
        name: {
            sign: values
            for signs, fields in chunks
            for sign, values in zip(signs.tolist(), fields[name])
        }
        for name in names
    }


class _Readers:
    """The readers, and a table with rows for each number of shards."""

    def __init__(self):
        self._tables = {}
        for shards in (1, 2, 3):
            table = util.table(shards, dim=2)
            util.push(table, [5, 100, -1], 7)
            self._tables[shards] = (table, table.export_rows())

    def read(self, path, seed):
        """Reads a snapshot; returns whether it was accepted.

        Raises:
          AssertionError: if it was refused without a clear error.
        """
        status, err = self._verify(path)
        rows = self._read(path)
        assert (status == 0) == (rows is not None), (status, err, rows)
        table, (signs, fields) = self._tables[1 + seed % 3]
        before = _contents(table)
        rate = table.optimizer.learning_rate
        try:
            table.load(path)
        except (DamagedSnapshotError, FileNotFoundError):
            accepted = False
        except ValueError as error:
            if not _OTHER_KIND.search(str(error)):
                raise
            accepted = False
        else:
            accepted = True
        if accepted:
            assert status == 0, err
            assert snapshot_forging.same(_contents(table), rows)
            table.clear()
            table.import_rows(signs, fields)
            table.optimizer.learning_rate = rate
        else:
            assert table.optimizer.learning_rate == rate
        assert snapshot_forging.same(_contents(table), before), "changed"
        return accepted

    @staticmethod
    def _verify(path):
        """The command's status, and what it says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(["verify", path])
            shown = cli.main(["inspect", path])
        said = err.getvalue()
        assert status in (0, 1, 2) and shown in (0, 1, 2), (status, shown)
        assert shown == 0 or status != 0, said
        assert bool(said) == (status != 0), said
        for line in said.splitlines():
            assert line.startswith("python -m tf_ext.snapshot: error: "), said
        return status, said

    @staticmethod
    def _read(path):
        """The rows that NumPy sees, or None."""
        try:
            snapshot = open_snapshot(path)
            snapshot.verify()
            return _by_sign(list(snapshot.chunks()), list(snapshot.fields))
        except (DamagedSnapshotError, FileNotFoundError):
            return None
        except ValueError as error:
            if not _OTHER_KIND.search(str(error)):
                raise
            return None


def main():
    seed, count = map(int, sys.argv[1:])
    tf.get_logger().setLevel("ERROR")
    np.seterr(all="ignore")
    accepted = 0
    with tempfile.TemporaryDirectory(prefix="tf_ext_forged_") as root:
        _write_snapshots(root)
        files = snapshot_forging.read_files(root)
        readers = _Readers()
        work = os.path.join(root, "work")
        for number in range(seed, seed + count):
            print(f"seed {number}", flush=True)
            os.mkdir(work)
            done = snapshot_forging.forge(files, number, work)
            try:
                accepted += readers.read(os.path.join(work, "1"), number)
            except BaseException:
                print("\n".join([*done, traceback.format_exc()]))
                return 1
            shutil.rmtree(work)
    print(f"{count} read, {accepted} accepted")
    # Neither all nor none, or something else is wrong.
    return 0 if count < 500 or count // 20 < accepted < count // 2 else 2


if __name__ == "__main__":
    sys.exit(main())
