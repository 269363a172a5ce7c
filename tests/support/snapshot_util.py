# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of snapshots."""

import contextlib
import io
import os

import numpy as np
from models.sharded_tables import shards_on
from saving_util import contents

import tf_ext
from tf_ext.snapshot import cli

DIM = 4


def table(shards=1, name="user", optimizer=None, **kwargs):
    """A table with several shards in this process."""
    devices = [f"/device:CPU:{shard % 2}" for shard in range(shards)]
    with shards_on(devices):
        return tf_ext.SparseTable(
            name,
            dim=kwargs.pop("dim", DIM),
            optimizer=optimizer or tf_ext.optimizers.SparseAdagrad(0.1),
            **kwargs,
        )


def push(table, signs, seed=0):
    """Pushes gradients that depend on the seed."""
    signs = np.asarray(signs)
    gradients = np.random.default_rng(seed).normal(size=[len(signs), table.dim])
    table.push(signs, gradients.astype(np.float32), step=1)


def loaded(path, **kwargs):
    """The contents of a snapshot."""
    into = table(**kwargs)
    into.load(path)
    return contents(into)


def data_files(path):
    """The files of rows in a directory, whole paths."""
    return sorted(
        os.path.join(path, name)
        for name in os.listdir(path)
        if name.endswith(".chunks")
    )


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def run_command(*arguments, terminal=False, main=cli.main):
    """Runs a command: `(status, standard output, standard error)`."""
    out, err = io.StringIO(), _Terminal() if terminal else io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as error:  # by argparse
            status = error.code
    return status, out.getvalue(), err.getvalue()
