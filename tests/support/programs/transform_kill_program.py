# SPDX-License-Identifier: Apache-2.0
"""Kills processes that transform snapshots, and checks what they leave.

    transform_kill_program.py ROOT KILLS SEED

ROOT has the snapshots `old`, with one shard, and `other`; `file_log.cc` must be
preloaded, with ROOT/new as its root. A fork that transforms them into ROOT/new
is killed at each of its calls that change files, then KILLS times at a random
moment. Prints a line for each kill: "call N" or "after SECONDS", and whether
the target is "absent" or "whole".
"""

import ctypes
import hashlib
import os
import pathlib
import random
import shutil
import signal
import sys
import time

import forks
import numpy as np

from tf_ext.snapshot import open_snapshot, transform


def _transform(root):
    transform(
        root / "old",
        root / "new",
        dim=9,
        optimizer="adam",
        keep=lambda signs, _: signs % 3 != 0,
        merge=root / "other",
        by="mean",
    )


def _digest(folder):
    """Of all bytes below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _rows(path):
    """All rows of a snapshot that is whole, in order, as bytes."""
    snapshot = open_snapshot(path)
    snapshot.verify()
    signs, rows = [], []
    for some, fields in snapshot.chunks():
        signs.append(some)
        rows.append(
            np.concatenate(
                [fields[name].view(np.uint8) for name in sorted(fields)], 1
            )
        )
    order = np.argsort(np.concatenate(signs))
    return np.concatenate(rows)[order].tobytes()


def main(root, kills, seed):
    """See the module's docstring."""
    calls, root = ctypes.CDLL(None), pathlib.Path(root)
    new, count = root / "new", root / "count"

    def transform_killed(kill_at=-1):
        calls.kill_at(kill_at)
        _transform(root)
        count.write_text(str(calls.count_calls()))

    before = [_digest(root / name) for name in ("old", "other")]
    begun = time.monotonic()
    assert os.waitpid(forks.start(transform_killed), 0)[1] == 0
    seconds = time.monotonic() - begun
    wanted = _rows(new)
    shutil.rmtree(new)

    def check(moment):
        found = [_digest(root / name) for name in ("old", "other")]
        assert found == before, f"{moment}: the source has changed"
        is_whole = (new / "manifest.json").exists()
        if is_whole:
            assert _rows(new) == wanted, f"{moment}: other rows"
        print(moment, "whole" if is_whole else "absent", flush=True)
        return is_whole

    def finish():
        """Transforms into what was left, which disturbs nothing."""
        assert os.waitpid(forks.start(transform_killed), 0)[1] == 0
        names = [f.name for f in open_snapshot(new).manifest.all_files]
        assert sorted(os.listdir(new)) == sorted([*names, "manifest.json"])
        assert _rows(new) == wanted

    for call in range(int(count.read_text())):
        process = forks.start(transform_killed, call)
        status = os.waitpid(process, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, (call, status)
        if not check(f"call {call}"):
            finish()
        shutil.rmtree(new)
    generator = random.Random(int(seed))
    for _ in range(int(kills)):
        wait = generator.uniform(0, 1.2 * seconds)
        process = forks.start(transform_killed)
        time.sleep(wait)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        # Half of them are not started again: the next one finds their files.
        if check(f"after {wait:.3f}") or generator.random() < 0.5:
            shutil.rmtree(new, ignore_errors=True)
        elif generator.random() < 0.5:
            finish()
            shutil.rmtree(new)


if __name__ == "__main__":
    main(*sys.argv[1:])
