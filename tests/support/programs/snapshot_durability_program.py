# SPDX-License-Identifier: Apache-2.0
"""Writes snapshots, recovery points, weights and an export in a directory.

Between them it appends a line with the name of what was done to $FILE_LOG.
"""

import os
import sys

import numpy as np
import snapshot_util as util
from models import small_models as small

import tf_ext


def _train(directory):
    features, labels = small.batch(np.random.default_rng(0))
    model = small.compiled(small.functional(small.table()))
    model.fit(
        features,
        labels,
        batch_size=16,
        epochs=3,
        verbose=0,
        callbacks=[tf_ext.callbacks.TableSnapshot(directory, keep=1)],
    )


def _model():
    model = small.functional(small.table())
    features, _ = small.batch(np.random.default_rng(0))
    model.tables[0].pull(features["user"], training=True)
    return model


def _save_weights(file):
    _model().save_weights(file)


def _export(folder):
    tf_ext.serving.export(_model(), folder)


def main(root):
    table = util.table(2)
    util.push(table, range(3000))

    def path(name):
        return os.path.join(root, "made", name)

    actions = {
        "full": lambda: table.save(path("full"), incremental=True),
        "delta": lambda: table.save(path("delta"), base=path("full")),
        "replaced": lambda: table.save(path("replaced")),
        "compact": lambda: tf_ext.snapshot.compact(
            path("delta"), path("compact")
        ),
        "reshard": lambda: tf_ext.snapshot.reshard(
            path("full"), path("reshard"), 3
        ),
        "points": lambda: _train(path("points")),
        "weights": lambda: _save_weights(path("model.weights.h5")),
        "export": lambda: _export(path("versions")),
    }
    table.save(path("replaced"))
    for name, action in actions.items():
        with open(os.environ["FILE_LOG"], "a") as log:
            log.write(f"begin {name} -\n")
        action()


if __name__ == "__main__":
    main(sys.argv[1])
