# SPDX-License-Identifier: Apache-2.0
"""Kills processes that export models, and checks the files that they leave.

    export_kill_program.py FOLDER SEED

exports a model as FOLDER/1, and others as FOLDER/2 in forks of a process that
has only imported TensorFlow, each killed at a randomly chosen call.
`file_log.cc` must be preloaded, with FOLDER as its root. One export is logged
to FOLDER/../calls. The last line printed is a JSON object: `calls`, the number
of calls, and `states`, a list of `[call, {version: rows}]`, one for each kill.
"""

import ctypes
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import sys

import forks
import tensorflow as tf
from models import small_models as small

from tf_ext import serving

_KILLS = 4


def _export(folder, rows):
    model = small.functional(small.table("adagrad"))
    model.tables[0].pull(range(rows), training=True)
    serving.export(model, folder)


def _state(folder):
    """The number of rows of each version, or its defect."""
    state = {}
    for version in serving.versions(folder):
        path = f"{folder}/{version}"
        try:
            tf.saved_model.load(path)
            damage = serving.damaged_files(path)
            [table] = serving.read_manifest(path)["tables"]
            state[version] = damage or table["rows"]
        except Exception as error:
            state[version] = repr(error)
    return state


def main(folder, seed):
    """See the module's docstring."""
    calls = ctypes.CDLL(None)
    root = pathlib.Path(folder).parent

    def export_killed(kill_at=-1):
        if kill_at < 0:
            os.environ["FILE_LOG"] = str(root / "calls")
        calls.kill_at(kill_at)
        _export(folder, 9)
        (root / "count").write_text(str(calls.count_calls()))

    def look(kill):
        line = json.dumps([kill, _state(folder)])
        with open(root / "states", "a") as file:
            file.write(line + "\n")

    assert forks.run(functools.partial(_export, folder, 5)) == 0
    assert forks.run(export_killed) == 0
    shutil.rmtree(f"{folder}/2", ignore_errors=True)
    count = int((root / "count").read_text())
    # The last two: rename, fsync of the folder.
    last = range(count - 2, count)
    drawn = random.Random(int(seed)).sample(range(count - 2), _KILLS - 2)
    for kill in [*sorted(drawn), *last]:
        status = forks.run(functools.partial(export_killed, kill))
        assert os.WTERMSIG(status) == signal.SIGKILL, (kill, status)
        # What the one before has left was removed.
        assert len(os.listdir(folder)) == 2, os.listdir(folder)
        assert forks.run(functools.partial(look, kill)) == 0
        shutil.rmtree(f"{folder}/2", ignore_errors=True)
    # What was left does not disturb the next export.
    assert forks.run(functools.partial(_export, folder, 9)) == 0
    assert sorted(os.listdir(folder)) == ["1", "2"], os.listdir(folder)
    states = [json.loads(s) for s in (root / "states").read_text().splitlines()]
    print(json.dumps({"calls": count, "states": states}))


if __name__ == "__main__":
    main(*sys.argv[1:])
