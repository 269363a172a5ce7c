# SPDX-License-Identifier: Apache-2.0
"""Reads forged snapshots by all readers: SEED COUNT.

Prints each seed before it is read. All readers must find the same rows in an
accepted snapshot; a refused one must raise a clear error and change no table.
"""

import contextlib
import io
import os
import re
import shutil
import struct
import sys
import tempfile
import traceback

import numpy as np
import snapshot_util as util
import tensorflow as tf
from models.sharded_tables import counters_of
from oracles import snapshot_forging

import tf_ext
from tf_ext.snapshot import DamagedSnapshotError, cli, open_snapshot, reader
from tf_ext.snapshot.counting import counting_of

_N, _FORGET = 3, 4  # of the admission
# Of a snapshot that is whole, but of another table or version.
_OTHER_KIND = re.compile("is of format|^Rows cannot be restored into table")


# The types of weights and slots of the two kinds of tables.
_DTYPES = (("float32", "float32"), ("float16", "bfloat16"))


def _write_snapshots(root, dtypes):
    """A full snapshot in two shards, and a delta."""
    table = _table(2, dtypes)
    util.push(table, range(12))
    util.push(table, range(12))
    util.push(table, range(50, 80))
    table.save(os.path.join(root, "0"), incremental=True, step=3)
    util.push(table, range(9, 20), 1)
    util.push(table, range(12, 20), 1)
    table.push(range(70, 75), np.ones([5, 2]), step=5)
    table.erase(range(4))
    table.save(os.path.join(root, "1"), base=os.path.join(root, "0"))


def _table(shards, dtypes):
    dtype, slot_dtype = dtypes
    return util.table(
        shards,
        dim=2,
        admission=tf_ext.admission.Count(_N, _FORGET),
        dtype=dtype,
        slot_dtype=slot_dtype,
    )


def _contents(table):
    """All fields of all rows."""
    signs, fields = table.export_rows()
    return _by_sign([(signs, fields)], list(fields))


def _counters(snapshot, with_row):
    """What a table gets of a snapshot's counters: as `counters_of` has it."""
    manifest = snapshot.manifest
    saved = counting_of(manifest.config)
    if manifest.counters is None or saved is None or saved.forget != _FORGET:
        return 0, {}
    counters = {}
    for file in manifest.counters.files:
        for some in reader.read_counters(
            snapshot.path, manifest, file, lambda _: None
        ):
            for sign, count in struct.iter_unpack("<qi", some.tobytes()):
                counters[sign] = min(_N - 1, max(1 - _N, count))
    kept = {s: c for s, c in counters.items() if s not in with_row}
    return manifest.counters.period, kept


def _by_sign(chunks, names):
    return {
        name: {
            sign: _comparable(values)
            for signs, fields in chunks
            for sign, values in zip(signs.tolist(), fields[name])
        }
        for name in names
    }


def _comparable(values):
    """Floats of all types as float32, with one kind of NaN."""
    if values.dtype.kind != "f":
        return values
    values = values.astype(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), values)


class _Readers:
    """The readers, and a table with rows for each number of shards."""

    def __init__(self, dtypes):
        self._tables = {}
        for shards in (1, 2, 3):
            table = _table(shards, dtypes)
            self._tables[shards] = table
            self._fill(table)

    @staticmethod
    def _fill(table):
        """Three rows, and two counters."""
        table.clear()
        for _ in range(3):
            util.push(table, [5, 100, -1], 7)
        table.push([52, 300], np.ones([2, 2]), step=6)

    def read(self, path, seed):
        """Reads a snapshot; returns whether it was accepted.

        Raises:
          AssertionError: if it was refused without a clear error.
        """
        status, err = self._verify(path)
        rows, counters = self._read(path)
        assert (status == 0) == (rows is not None), (status, err, rows)
        table = self._tables[1 + seed % 3]
        before, counters_before = _contents(table), counters_of(table)
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
            if status == 0:
                assert snapshot_forging.same(_contents(table), rows)
                assert counters_of(table) == counters, counters
            else:
                # Only the command reads the counters of bases.
                assert all(
                    "0/counters-" in line or " files of " in line
                    for line in err.splitlines()
                ), err
            table.optimizer.learning_rate = rate
            self._fill(table)
        else:
            assert table.optimizer.learning_rate == rate
        assert snapshot_forging.same(_contents(table), before), "changed"
        assert counters_of(table) == counters_before, "counters changed"
        return accepted

    @staticmethod
    def _verify(path):
        """The command's status, and what it says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(["verify", path])
            shown = cli.main(["inspect", path])
            found = cli.main(["top", path])
        said = err.getvalue()
        assert status in (0, 1, 2) and shown in (0, 1, 2), (status, shown)
        assert found in (0, 1, 2), found
        assert (shown == 0 and found == 0) or status != 0, said
        assert bool(said) == (status != 0), said
        for line in said.splitlines():
            assert line.startswith("python -m tf_ext.snapshot: error: "), said
        return status, said

    @staticmethod
    def _read(path):
        """The rows and counters that NumPy sees, or None for both."""
        try:
            snapshot = open_snapshot(path)
            snapshot.verify()
            rows = _by_sign(list(snapshot.chunks()), list(snapshot.fields))
        except (DamagedSnapshotError, FileNotFoundError):
            return None, None
        except ValueError as error:
            if not _OTHER_KIND.search(str(error)):
                raise
            return None, None
        return rows, _counters(snapshot, rows["weights"])


def main():
    seed, count = map(int, sys.argv[1:])
    tf.get_logger().setLevel("ERROR")
    np.seterr(all="ignore")
    accepted = 0
    with tempfile.TemporaryDirectory(prefix="tf_ext_forged_") as root:
        kinds = []
        for dtypes in _DTYPES:
            origin = os.path.join(root, dtypes[0])
            _write_snapshots(origin, dtypes)
            files = snapshot_forging.read_files(origin)
            kinds.append((files, _Readers(dtypes)))
        work = os.path.join(root, "work")
        for number in range(seed, seed + count):
            print(f"seed {number}", flush=True)
            os.mkdir(work)
            files, readers = kinds[number // 3 % 2]
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
