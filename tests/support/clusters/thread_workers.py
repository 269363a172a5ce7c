# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers that are threads of one process."""

import collections
import concurrent.futures
import threading
import types

import tensorflow as tf

from tf_ext.distribute.collectives import Collectives, Remembered
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes.synchronous import WorkerExchange, WorkerProcesses

_WAIT_SECONDS = 60


class _Meeting:
    """Where the workers leave what each sends, outside of graphs."""

    def __init__(self, size):
        self._size = size
        self._changed = threading.Condition()
        self._calls = [0] * size
        self._rounds = collections.defaultdict(dict)
        self._has_left = False

    def all(self, rank, value):
        """What all workers have brought, in the order of their ranks."""
        with self._changed:
            brought = self._rounds[self._calls[rank]]
            self._calls[rank] += 1
            brought[rank] = value
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(brought) == self._size or self._has_left,
                _WAIT_SECONDS,
            )
            if len(brought) < self._size:
                raise ConnectionError("another worker does not come")
        return [brought[i] for i in range(self._size)]

    def leave(self):
        """Makes the others fail instead of waiting."""
        with self._changed:
            self._has_left = True
            self._changed.notify_all()


class ThreadCollectives(Collectives):
    """Collectives whose messages go through the memory of the process."""

    def __init__(self, size, rank, meeting):
        super().__init__(size, rank, "/device:CPU:0")
        self._meeting = meeting

    def _gather(self, values, instance_key):
        gathered = self._meeting.all(self.rank, (instance_key, values))
        assert len({key for key, _ in gathered}) == 1, gathered
        return tf.stack([row for _, row in gathered])

    def _reduce(self, values):
        return tf.add_n(self._meeting.all(self.rank, values))

    def remembered(self, key, first):
        # A resource of a name would be that of all workers.
        if key not in self._remembered:
            self._remembered[key] = tf.Variable(first, dtype=tf.int64)
        return Remembered(self._remembered[key].handle)

    def all_to_all(self, pack, dtype, wanted):
        width, _ = exchange_ops.exchange_width(wanted)
        packed = pack(width)
        assert packed.dtype == dtype
        assert packed.shape == (self.size, int(width))
        sent = self._meeting.all(self.rank, packed)
        return tf.stack([rows[self.rank] for rows in sent])


class ThreadWorker:
    """One of the workers.

    Attributes:
      workers: ThreadCollectives.
      strategy: what stands for its strategy, which knows the cluster.
      processes: WorkerProcesses.
      exchange: WorkerExchange.
    """

    def __init__(self, size, rank, meeting):
        cluster = {"worker": [f"127.0.0.1:{i + 1}" for i in range(size)]}
        self.workers = ThreadCollectives(size, rank, meeting)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="worker", task_id=rank
        )
        self.strategy = types.SimpleNamespace(
            cluster_resolver=resolver,
            experimental_local_results=lambda value: (value,),
            num_replicas_in_sync=size,
        )
        self.processes = WorkerProcesses(self.strategy, self.workers)
        self.exchange = WorkerExchange(self.workers, self.strategy)


def run(size, function):
    """What a function of a ThreadWorker returns on each of `size` workers.

    Errors of workers are among the results. A worker that raises lets the
    others fail that wait for it.
    """
    meeting = _Meeting(size)

    def of(rank):
        try:
            return function(ThreadWorker(size, rank, meeting))
        except Exception as error:
            meeting.leave()
            return error

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(of, range(size)))
