"""Writes snapshots and recovery points in a directory.

Between them it appends a line with the name of what was done to $FILE_LOG.
"""

import os
import sys

import numpy as np
import small_models as small
import snapshot_util as util

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
    }
    table.save(path("replaced"))
    for name, action in actions.items():
        with open(os.environ["FILE_LOG"], "a") as log:
            log.write(f"begin {name} -\n")
        action()


if __name__ == "__main__":
    main(sys.argv[1])
