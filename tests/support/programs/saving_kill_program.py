# SPDX-License-Identifier: Apache-2.0
"""Kills processes that save models, and checks the files that they leave.

    saving_kill_program.py FOLDER NAME SEED

saves a model as FOLDER/NAME over another one, in forks of a process that has
only imported TensorFlow. `file_log.cc` must be preloaded, with FOLDER as its
root. One save is logged to FOLDER/../calls; others are killed at a randomly
chosen call. The last line printed is a JSON object: `calls`, the number of
calls, `bytes`, the size of the new file, and `states`, a list of
`[call, state]`, one for each kill: "old", "new", or the defect.
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
from models import small_models as small

from tf_ext._keras import keras

_KILLS = 6


def _model(rows):
    """A model whose table has the signs 0 to rows - 1."""
    model = small.compiled(small.functional(small.table("adagrad")))
    model.tables[0].pull(range(rows), training=True)
    return model


def _save(model, path):
    save = model.save if path.suffix == ".keras" else model.save_weights
    save(path)


def _rows(path):
    """The number of rows of a saved model."""
    if path.suffix == ".keras":
        return keras.models.load_model(path).tables[0].size()
    model = _model(0)
    model.load_weights(path)
    return model.tables[0].size()


def main(folder, name, seed):
    """See the module's docstring."""
    calls = ctypes.CDLL(None)
    path = pathlib.Path(folder, name)
    kept = path.parent.parent / f"old{''.join(path.suffixes)}"
    counted = path.parent.parent / "count"

    def save_old():
        _save(_model(5), path)
        shutil.copy(path, kept)

    def save_new(kill_at=-1):
        model = _model(9)
        calls.kill_at(kill_at)
        if kill_at < 0:
            os.environ["FILE_LOG"] = str(path.parent.parent / "calls")
        _save(model, path)
        counted.write_text(str(calls.count_calls()))

    def check():
        states = []
        for kill, left in lefts:
            try:
                state = {5: "old", 9: "new"}[_rows(left)]
            except Exception as error:
                state = repr(error)
            states.append([kill, state])
        found = {"calls": count, "bytes": size, "states": states}
        print(json.dumps(found), flush=True)

    assert forks.run(save_old) == 0
    assert forks.run(save_new) == 0
    count, size = int(counted.read_text()), path.stat().st_size
    # The last three: fsync, rename, fsync of the folder.
    last = range(count - 3, count)
    drawn = random.Random(int(seed)).sample(range(count - 3), _KILLS - 3)
    lefts = []
    for kill in [*sorted(drawn), *last]:
        shutil.copy(kept, path)
        status = forks.run(functools.partial(save_new, kill))
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        lefts.append((kill, path.parent.parent / f"{kill}_{name}"))
        shutil.copy(path, lefts[-1][1])
    # What was left does not disturb the next save.
    assert forks.run(save_new) == 0
    assert sorted(os.listdir(folder)) == [name], os.listdir(folder)
    assert forks.run(check) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
