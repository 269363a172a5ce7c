# SPDX-License-Identifier: Apache-2.0
"""Loses a worker and a server, and ends."""

import threading

from clusters import parameter_server_util as util

import tf_ext
from tf_ext._keras import keras


class _Kill(keras.callbacks.Callback):
    """Kills a worker and a server, and gives the coordinator time to see it."""

    def __init__(self, cluster):
        super().__init__()
        self._cluster = cluster

    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            self._cluster.kill("worker", 0)
            # The lost worker is being looked for when the server is lost.
            threading.Timer(1.0, self._cluster.kill, ("ps", 0)).start()


def main():
    with tf_ext.distribute.local_cluster(workers=2, ps=1) as cluster:
        strategy = cluster.strategy()
        with strategy.scope():
            model = util.model()
        try:
            model.fit(util.data(3200, 8), callbacks=[_Kill(cluster)], verbose=0)
        except tf_ext.distribute.ServerLostError as error:
            print(error)
    print("ends", flush=True)


if __name__ == "__main__":
    main()
