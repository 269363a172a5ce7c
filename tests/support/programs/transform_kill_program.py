# SPDX-License-Identifier: Apache-2.0
"""Kills processes that rewrite snapshots, and checks what others make of that.

    transform_kill_program.py ROOT CASE EVERY KILLS SEED

ROOT/old has what `transform_cases.save` saves; `file_log.cc` must be preloaded,
with ROOT/new as its root. A fork that makes ROOT/new of it in the way CASE is
killed at each EVERY-th of its calls that change files, then KILLS times at a
random moment, and again while it goes on; then forks are stopped instead, until
another one has gone on with their work. Prints a line for each first kill or
stop: "call N", "after SECONDS" or "stopped SECONDS"; whether the target is then
"absent" or "whole"; and how many rows were recorded as written.
"""

import ctypes
import fcntl
import hashlib
import os
import pathlib
import random
import shutil
import signal
import sys
import time

import forks
from cases import transform_cases as cases

from tf_ext.snapshot import open_snapshot


def _digest(folder):
    """Of all bytes below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def main(root, case, every, kills, seed):
    """See the module's docstring."""
    calls, root = ctypes.CDLL(None), pathlib.Path(root)
    old, new, log = root / "old", root / "new", root / "log"
    run = cases.run_of(case, old, new)

    def rewrite(kill_at=-1):
        calls.kill_at(kill_at)
        with cases.counted() as counts:
            conversion = run().conversion
        log.write_text(f"{calls.count_calls()}\n{sum(counts)}\n{conversion}")

    def ended():
        assert os.waitpid(forks.start(rewrite), 0)[1] == 0
        number, made, conversion = log.read_text().split("\n")
        return int(number), int(made), conversion

    def killed_after(seconds):
        process = forks.start(rewrite)
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

    before = _digest(old)
    begun = time.monotonic()
    number_of_calls, rows, conversion = ended()
    seconds = time.monotonic() - begun
    wanted = cases.contents(new)
    shutil.rmtree(new)

    def check(moment):
        assert _digest(old) == before, f"{moment}: the source has changed"
        is_whole = (new / "manifest.json").exists()
        if is_whole:
            assert cases.contents(new) == wanted, f"{moment}: other rows"
        recorded = 0 if is_whole else cases.recorded_rows(new)
        print(moment, "whole" if is_whole else "absent", recorded, flush=True)
        return is_whole

    def finish():
        """Goes on with what was left; only what is not recorded is made."""
        recorded = cases.recorded_rows(new)
        _, made, converted = ended()
        assert made == rows - recorded, (made, rows, recorded)
        assert converted == conversion, (converted, conversion)
        check_whole()

    def check_whole():
        names = [f.name for f in open_snapshot(new).manifest.all_files]
        assert sorted(os.listdir(new)) == sorted([*names, "manifest.json"])
        assert cases.contents(new) == wanted

    generator = random.Random(int(seed))
    for call in range(0, number_of_calls, int(every)):
        process = forks.start(rewrite, call)
        status = os.waitpid(process, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, (call, status)
        if not check(f"call {call}"):
            if generator.random() < 0.3:
                # Of the calls of the process that goes on, too.
                process = forks.start(rewrite, generator.randrange(30))
                os.waitpid(process, 0)
            if not (new / "manifest.json").exists():
                finish()
        shutil.rmtree(new)
    for _ in range(int(kills)):
        wait = generator.uniform(0, 1.1 * seconds)
        killed_after(wait)
        is_whole = check(f"after {wait:.3f}")
        recorded = cases.recorded_rows(new)
        while not is_whole and generator.random() < 0.6:
            killed_after(generator.uniform(0, 0.8 * seconds))
            is_whole = (new / "manifest.json").exists()
            if not is_whole:
                assert cases.recorded_rows(new) >= recorded
                recorded = cases.recorded_rows(new)
        if is_whole:
            assert cases.contents(new) == wanted
        else:
            finish()
        shutil.rmtree(new, ignore_errors=True)
    for _ in range(int(kills) // 3):
        wait = generator.uniform(0, seconds)
        process = forks.start(rewrite)
        time.sleep(wait)
        if not stop(process, new):
            shutil.rmtree(new)
            continue
        if check(f"stopped {wait:.3f}"):
            os.kill(process, signal.SIGCONT)
            assert os.waitpid(process, 0)[1] == 0
        else:
            finish()
            os.kill(process, signal.SIGCONT)
            # It raises an error.
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
            check_whole()
        shutil.rmtree(new)


def stop(process, folder):
    """Stops a process that has not the lock of a folder, unless it has ended.

    Returns:
      bool, whether it is stopped.
    """
    while True:
        os.kill(process, signal.SIGSTOP)
        if not os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]):
            return False
        if not folder.exists():
            return True
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            os.kill(process, signal.SIGCONT)
            time.sleep(0.001)
        finally:
            os.close(opened)


if __name__ == "__main__":
    main(*sys.argv[1:])
