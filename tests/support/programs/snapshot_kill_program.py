# SPDX-License-Identifier: Apache-2.0
"""Kills processes that save snapshots, and checks the files that they leave.

Prints one line per kill. Everything runs in forks of a process that has only
imported TensorFlow, since the import takes longer than everything else.
"""

import argparse
import os
import random
import shutil
import signal
import time

import forks
import numpy as np
import snapshot_util as util
from models.sharded_tables import bytes_of_rows

import tf_ext
from tf_ext.snapshot.files import read_manifest

_ROWS = 3000
_TOUCHED = 200


class _Imported:
    """Rows that are imported and erased; checked by a dict."""

    # Of the time until it is killed.
    most_seconds = 0.05

    def table(self):
        return util.table(2)

    def _signs(self, generation):
        """What changes in a generation: signs set, signs erased."""
        generator = np.random.default_rng(generation)
        if generation == 0:
            return np.arange(_ROWS), np.arange(0)
        signs = generator.choice(2 * _ROWS, _TOUCHED + 20, replace=False)
        return signs[:_TOUCHED], signs[_TOUCHED:]

    def advance(self, table, generation):
        signs, erased = self._signs(generation)
        values = np.full([len(signs), util.DIM], generation, np.float32)
        table.import_rows(signs, {"weights": values, "accumulator": values})
        if len(erased):
            table.erase(erased)

    def check(self, table, generation):
        expected = {}
        for each in range(generation + 1):
            signs, erased = self._signs(each)
            expected.update(dict.fromkeys(signs.tolist(), each))
            for sign in erased.tolist():
                expected.pop(sign, None)
        signs, fields = table.export_rows()
        for values in fields.values():
            found = values.max(1).tolist()
            found = dict(zip(signs.tolist(), found, strict=True))
            assert found == expected, f"other rows than in {generation}"
            assert (values == values[:, :1]).all(), "a torn row"


class _Trained:
    """Rows that are admitted, trained and evicted; checked by training anew."""

    most_seconds = 0.3

    def table(self):
        return util.table(
            2,
            admission=tf_ext.admission.Count(2, forget=2),
            eviction=tf_ext.eviction.Score(
                1.0, unseen=tf_ext.eviction.Unseen(steps=3)
            ),
            statistics=["show", "click"],
        )

    def advance(self, table, generation):
        generator = np.random.default_rng(generation)
        # More rows at first, so that those that go leave room.
        size = _TOUCHED if generation else 4 * _ROWS
        signs = generator.integers(0, 2 * _ROWS, size)
        gradients = generator.integers(-9, 9, [size, util.DIM])
        table.push(
            signs,
            gradients.astype(np.float32),
            step=generation,
            statistics=generator.integers(0, 3, [size, 2]).astype(np.float32),
        )
        table.erase(signs[:20])
        table.decay_statistics(0.7)
        evicted = table.evict(now=generation)
        assert evicted.evicted > 0 or generation == 0, "nothing goes"
        table.compact()

    def check(self, table, generation):
        expected = self.table()
        for each in range(generation + 1):
            self.advance(expected, each)
        assert bytes_of_rows(table) == bytes_of_rows(expected), (
            f"other rows than in generation {generation}"
        )


_KINDS = {"imported": _Imported(), "trained": _Trained()}


def _path(root, generation, incremental):
    return os.path.join(root, f"{generation:06d}" if incremental else "only")


def _latest(root, incremental):
    """The newest snapshot: `(generation, path)`; (-1, None): there is none."""
    paths = [_path(root, 0, False)]
    if incremental:
        paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
    for path in reversed(paths):
        if os.path.exists(os.path.join(path, "manifest.json")):
            return read_manifest(path).step, path
    return -1, None


def _load_latest(kind, root, incremental):
    table = kind.table()
    generation, path = _latest(root, incremental)
    if path is not None:
        table.load(path, incremental=incremental)
        kind.check(table, generation)
    return table, generation, path


def _save_for_ever(kind, root, incremental, listener, report):
    os.close(listener)  # So that a report that nobody reads is an error.
    table, generation, base = _load_latest(kind, root, incremental)
    while True:
        generation += 1
        kind.advance(table, generation)
        path = _path(root, generation, incremental)
        if not incremental:
            table.save(path, step=generation)
        elif base is None:
            table.save(path, incremental=True, step=generation)
        else:
            table.save(path, base=base, step=generation)
        base = path
        os.write(report, f"{generation}\n".encode())


def _verify(kind, root, incremental, acknowledged):
    """Checks the newest snapshot, and that the next save removes leftovers."""
    table, generation, base = _load_latest(kind, root, incremental)
    assert generation >= acknowledged, f"{acknowledged} is lost"
    kind.advance(table, generation + 1)
    path = _path(root, generation + 1, incremental)
    arguments = {"base": base} if incremental and base else {}
    arguments |= {"incremental": incremental and not base}
    manifest = table.save(path, step=generation + 1, **arguments)
    wanted = {"manifest.json", *(file.name for file in manifest.all_files)}
    assert set(os.listdir(path)) == wanted, os.listdir(path)
    _load_latest(kind, root, incremental)
    if generation > 20:  # Chains and checks take longer and longer.
        shutil.rmtree(root)
        os.mkdir(root)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", choices=_KINDS)
    parser.add_argument("--incremental", action="store_true")
    arguments = parser.parse_args()
    kind, generator = _KINDS[arguments.kind], random.Random(arguments.seed)
    tf_ext.ops.library()  # Once, for all forks.
    for _ in range(arguments.kills):
        readable, writable = os.pipe()
        saver = forks.start(
            _save_for_ever,
            kind,
            arguments.root,
            arguments.incremental,
            readable,
            writable,
        )
        os.close(writable)
        lines = os.read(readable, 100)  # It has begun.
        time.sleep(generator.uniform(0, kind.most_seconds))
        os.kill(saver, signal.SIGKILL)
        _, status = os.waitpid(saver, 0)
        assert os.WIFSIGNALED(status), "the saver failed"
        while more := os.read(readable, 4096):
            lines += more
        os.close(readable)
        acknowledged = int(lines.split()[-1])
        verifier = forks.start(
            _verify,
            kind,
            arguments.root,
            arguments.incremental,
            acknowledged,
        )
        _, status = os.waitpid(verifier, 0)
        assert status == 0, "see above"
        print(f"killed after {acknowledged}", flush=True)


if __name__ == "__main__":
    main()
