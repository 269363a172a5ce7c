# SPDX-License-Identifier: Apache-2.0
"""What a program does with tables and files that can be interrupted."""

import gc
import os
import shutil
import threading
import time

import numpy as np
import snapshot_util as util
from models.sharded_tables import bytes_of_rows, counters_of

import tf_ext
from tf_ext.snapshot.files import read_manifest

_ROWS = 200
_WAIT_SECONDS = 60


def until(condition, otherwise):
    """Waits for a condition; raises AssertionError with `otherwise`."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


class Case:
    """Something that is interrupted.

    Args:
      folder: string, an empty folder.
    """

    def __init__(self, folder):
        self.folder = folder
        self.round = 0
        self.prepare()

    def path(self, name):
        return os.path.join(self.folder, str(name))

    def prepare(self):
        """Called once."""

    def begin(self):
        """Called before each round."""

    def operate(self):
        """What is interrupted."""

    def check(self, twice):
        """Checks what has been left, and that it works from there.

        Args:
          twice: bool, whether there was a second interrupt, so that the first
            may not have been handled.
        """


def _table():
    return util.table(2, admission=tf_ext.admission.Count(2, forget=3))


def _contents(table):
    return bytes_of_rows(table), counters_of(table)


def _loaded(path):
    table = _table()
    table.load(path)
    return _contents(table)


class _Tables(Case):
    """A table that changes, and what it held in each round."""

    def prepare(self):
        self.table = _table()
        self.change()

    def change(self):
        """Sets some rows, counts ids without one, and erases others."""
        self.round += 1
        generator = np.random.default_rng(self.round)
        signs = generator.choice(2 * _ROWS, _ROWS, replace=False)
        values = np.full([_ROWS, util.DIM], self.round, np.float32)
        self.table.import_rows(
            signs, {"weights": values, "accumulator": values}
        )
        self.table.erase(signs[:20])
        ids = generator.integers(2 * _ROWS, 4 * _ROWS, 20)
        gradients = np.ones([20, util.DIM], np.float32)
        self.table.push(ids, gradients, step=self.round)
        self.contents = _contents(self.table)

    def check_saved(self, path):
        """Checks that a directory has the rows of now and no other file."""
        manifest = read_manifest(path)
        wanted = {"manifest.json", *(file.name for file in manifest.all_files)}
        assert set(os.listdir(path)) == wanted, os.listdir(path)
        assert _loaded(path) == self.contents, f"other rows in {path}"


class Save(_Tables):
    def prepare(self):
        super().prepare()
        self.before = self.contents
        self.table.save(self.path(0))

    def begin(self):
        self.before = _loaded(self.path(0))
        self.change()

    def operate(self):
        self.table.save(self.path(0))

    def check(self, twice):
        assert _contents(self.table) == self.contents
        assert _loaded(self.path(0)) in (self.before, self.contents)
        self.table.save(self.path(0))
        self.check_saved(self.path(0))


class Incremental(_Tables):
    """The first snapshot of a chain, and a delta after it."""

    def begin(self):
        self.change()

    def operate(self):
        self.table.save(self.path(self.round), incremental=True)

    def check(self, twice):
        # What a loop does that saves until it has worked.
        path = self.path(self.round)
        if self.table.rows.chain.links:
            self.table.end_incremental()
        self.table.save(path, incremental=True)
        self.check_saved(path)
        self.change()
        self.table.save(self.path("delta"), base=path)
        self.check_saved(self.path("delta"))
        self.table.end_incremental()
        shutil.rmtree(path)


class Delta(_Tables):
    def begin(self):
        if self.round % 10 == 1:
            self.table.end_incremental()
            self.table.save(self.path(self.round), incremental=True)
        self.change()

    def operate(self):
        self._save(self.path(self.round))

    def _save(self, path):
        self.table.save(path, base=self.table.rows.chain.links[-1][0])

    def check(self, twice):
        # A file that counts as a snapshot is one.
        if os.path.exists(os.path.join(self.path(self.round), "manifest.json")):
            assert _loaded(self.path(self.round)) == self.contents
        self.change()
        self._save(self.path(self.round))
        self.check_saved(self.path(self.round))


class _Loads(_Tables):
    """A table that holds the first of two snapshots and gets the second."""

    in_place = False

    def prepare(self):
        super().prepare()
        self.old = self.contents
        self.table.save(self.path("old"), incremental=True)
        self.change()
        self.new = self.contents
        self.table.save(self.path("new"), base=self.path("old"))
        self.table.end_incremental()

    def begin(self):
        self.table.load(self.path("old"))

    def check(self, twice):
        rows, _ = _contents(self.table)
        if self.in_place:
            for sign, row in rows.items():
                of = [self.old[0].get(sign), self.new[0].get(sign)]
                assert row in of, f"the row of {sign} is torn"
            assert rows.keys() >= self.old[0].keys() & self.new[0].keys()
        elif not twice:
            assert rows in (self.old[0], {}, self.new[0]), "some of the rows"
        self.load()
        assert _contents(self.table) == self.new
        # Its chain goes on, or begins.
        self.table.end_incremental()
        self.table.save(self.path("saved"), incremental=True)
        assert _loaded(self.path("saved")) == self.new
        self.table.end_incremental()

    def load(self):
        self.operate()


class Load(_Loads):
    def operate(self):
        self.table.load(self.path("new"))


class LoadIncremental(_Loads):
    def operate(self):
        self.table.load(self.path("new"), incremental=True)


class LoadInPlace(_Loads):
    in_place = True

    def operate(self):
        self.table.load(self.path("new"), in_place=True)


class ApplyDelta(_Loads):
    in_place = True

    def operate(self):
        self.table.apply_delta(self.path("new"))

    def load(self):
        self.table.load(self.path("old"), in_place=True)
        self.operate()


class EndIncremental(_Tables):
    def begin(self):
        self.change()
        self.table.save(self.path(0), incremental=True)

    def operate(self):
        self.table.end_incremental()

    def check(self, twice):
        self.table.end_incremental()
        self.table.save(self.path(1), incremental=True)
        self.check_saved(self.path(1))
        self.table.end_incremental()


class Compact(_Loads):
    """A delta and its base are merged into a new directory."""

    def begin(self):
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def operate(self):
        tf_ext.snapshot.compact(self.path("new"), self.path("out"))

    def check(self, twice):
        out = self.path("out")
        if os.path.exists(os.path.join(out, "manifest.json")):
            assert _loaded(out) == self.new
        if not twice:
            names = os.listdir(out) if os.path.exists(out) else []
            assert not names or "manifest.json" in names, names
        shutil.rmtree(out, ignore_errors=True)
        self.operate()
        self.check_saved(out)


class Transform(Compact):
    """The same, through all that a transformation does."""

    def operate(self):
        new, out = self.path("new"), self.path("out")
        tf_ext.snapshot.transform(new, out, merge=new, keep="norm >= 0")


class Evict(Case):
    def begin(self):
        self.table = util.table(
            2, eviction=tf_ext.eviction.Unseen(steps=5), name="evicted"
        )
        for step, signs in ((1, range(100)), (9, range(50, 200))):
            gradients = np.ones([len(signs), util.DIM], np.float32)
            self.table.push(list(signs), gradients, step=step)
        self.before = bytes_of_rows(self.table)

    def operate(self):
        self.table.evict(now=10)

    def check(self, twice):
        rows = bytes_of_rows(self.table)
        assert rows.items() <= self.before.items()
        self.operate()
        kept = {s: row for s, row in self.before.items() if s >= 50}
        assert bytes_of_rows(self.table) == kept


class Read(Case):
    def prepare(self):
        file = self.path("data.csv")
        with open(file, "w") as out:
            for i in range(5000):
                out.write(f"{i},{i % 7}\n")
        fields = [tf_ext.data.Field(name, "int64") for name in ("id", "of")]
        self.data = tf_ext.data.read(
            file, tf_ext.data.Schema(fields), batch_size=64
        )
        self.threads = set(threading.enumerate())

    def _ids(self):
        return [i for batch in self.data for i in batch["id"].numpy().tolist()]

    def operate(self):
        self._ids()

    def check(self, twice):
        assert self._ids() == list(range(5000))
        gc.collect()
        until(
            lambda: (
                not any(
                    thread.name.startswith("ThreadPool")
                    for thread in threading.enumerate()
                )
            ),
            "threads that parse are left",
        )
