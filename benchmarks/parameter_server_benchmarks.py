"""Tables on parameter servers, all tasks on this machine, over loopback."""

import os

import column_steps
import numpy as np
import tables
import tensorflow as tf
import wide_deep_steps
from harness import Case, add_ratios, measure, report

import tf_ext
from tf_ext import ops
from tf_ext.optimizers import hyperparameters
from tf_ext.regimes import steps as table_steps

_SEED = 1
_SIGNS = (10_000, 100_000, 1_000_000)
_SERVERS = (1, 2)
_WORKERS = (1, 2)
_TABLES = (1, 16)
_EXECUTION = 8


def parameter_server(args):
    """Pull and push, compared with plain tensors between the same devices."""
    for servers in _SERVERS:
        with _cluster(1, servers, args.threads) as cluster:
            coordinator = _coordinator(cluster)
            for dim in sorted({1, args.dim}):
                for signs in sorted({min(n, args.rows) for n in _SIGNS}):
                    traffic = _Traffic(coordinator.strategy, signs, dim)
                    _measure_traffic(args, cluster, coordinator, traffic)


def parameter_server_steps(args):
    """Steps of the Wide & Deep example, in one process and on servers."""
    results = [
        wide_deep_steps.measure(
            args, tf.distribute.get_strategy(), "one process"
        )
    ]
    for workers in _WORKERS:
        with _cluster(workers, _SERVERS[-1], args.threads) as cluster:
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            strategy = cluster.strategy()
            results.append(
                wide_deep_steps.measure(args, strategy, name, _pids(cluster))
            )
    add_ratios(results)
    settings = {
        "threads": args.threads,
        "servers": _SERVERS[-1],
        "batch": wide_deep_steps.BATCH,
        "unit": "samples",
    }
    report("parameter_server_steps", results, settings, args.json)


def parameter_server_columns(args):
    """Steps of 26 columns on one table and on several, on one server."""
    cases = [
        ("the chief reads", None, False),
        ("the worker reads", 1, False),
        ("the worker reads to the end", 1, True),
        (f"the worker reads, {_EXECUTION} at once", _EXECUTION, False),
        (f"the same to the end, {_EXECUTION} at once", _EXECUTION, True),
    ]
    for count in _TABLES:
        results = [
            column_steps.measure(
                args, tf.distribute.get_strategy(), "one process", count
            )
        ]
        for name, *reading in cases:
            with _cluster(1, 1, args.threads) as cluster:
                results.append(
                    column_steps.measure(
                        *(args, cluster.strategy(), name, count),
                        *(_pids(cluster), *reading),
                    )
                )
        add_ratios(results)
        settings = {
            "threads": args.threads,
            "tables": count,
            "batch": wide_deep_steps.BATCH,
            "unit": "samples",
        }
        report("parameter_server_columns", results, settings, args.json)


def _cluster(workers, servers, threads):
    # Each task has the threads that it would have on a machine of its own.
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)
    return tf_ext.distribute.local_cluster(workers, servers)


def _coordinator(cluster):
    strategy = cluster.strategy()
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def _pids(cluster):
    """The processes of a cluster and this one."""
    return [os.getpid()] + [
        cluster.pid(job, task)
        for job in ("worker", "ps")
        for task in range(len(cluster.cluster[job]))
    ]


class _ClusterCase(Case):
    """A step that is scheduled and awaited; the CPU time is that of all tasks.

    Args:
      name: string.
      step: tf.function of an iterator.
      items: int, as for Case.
      cluster: LocalCluster.
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      iterator: a per-worker iterator.
    """

    def __init__(self, name, step, items, cluster, coordinator, iterator):
        def run():
            coordinator.schedule(step, args=(iterator,))
            coordinator.join()

        super().__init__(name, run, items, pids=_pids(cluster))


def _measure_traffic(args, cluster, coordinator, traffic):
    dataset = traffic.dataset
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    for kind, its_steps in traffic.steps().items():
        cases = [
            _ClusterCase(
                name, step, traffic.signs, cluster, coordinator, iterator
            )
            for name, step in its_steps.items()
        ]
        settings = {
            "threads": args.threads,
            "workers": 1,
            "servers": len(traffic.devices),
            "dim": traffic.dim,
            "batch": traffic.signs,
            "keys": "distinct",
            "rule": "adagrad",
            "unit": "rows",
        }
        results = measure(cases, args.repeats)
        report(f"parameter_server_{kind}", results, settings, args.json)


class _Traffic:
    """The tensors of a worker's step, through a table and as plain tensors.

    Nothing else is transferred: the worker has the signs, ordered by shard, and
    the gradients before the step, and drops the results.

    Args:
      strategy: of one worker.
      signs: int, distinct signs and rows in the table.
      dim: int.
    """

    def __init__(self, strategy, signs, dim):
        self.signs = signs
        self.dim = dim
        rng = np.random.default_rng(_SEED)
        with strategy.scope():
            self._table = tables.make("adagrad", dim)
        rows = self._table.rows
        self.devices = [shard.device for shard in rows.shards]
        for start in range(0, signs, tables.BATCH):
            stop = min(start + tables.BATCH, signs)
            self._table.pull(np.arange(start, stop), training=True)
        unique = ops.unique_by_shard(rng.permutation(signs), rows.num_shards)
        self._sizes = unique.split_sizes.numpy()
        gradients = rng.normal(size=(signs, dim)).astype(np.float32)
        self._dense = []
        indices = []
        for device, size in zip(self.devices, self._sizes.tolist()):
            indices.append(rng.permutation(size))
            with tf.device(device):
                weights = tf.Variable(tf.zeros([size, dim]))
                slots = tf.Variable(tf.fill([size, dim], 0.1))
            self._dense.append((device, weights, slots))
        self._tensors = (
            unique.unique.numpy(),
            np.concatenate(indices),
            gradients,
        )

    def dataset(self):
        """The same signs, indices of dense variables and gradients forever."""
        return tf.data.Dataset.from_tensors(self._tensors).repeat()

    def steps(self):
        """`{"pull": {case: tf.function of an iterator}, "push": ...}`."""
        return {
            "pull": {
                "tf_ext pull": self._step(self._pull),
                "plain tensors": self._step(self._send_and_get),
                "tf.gather": self._step(self._gather),
            },
            "push": {
                "tf_ext push": self._step(self._push),
                "plain tensors": self._step(self._send),
                "ResourceSparseApplyAdagradV2": self._step(self._apply),
            },
        }

    def _step(self, function):
        return tf.function(lambda iterator: function(*next(iterator)))

    def _pull(self, signs, indices, gradients):
        wanted = table_steps.RowsWanted(
            self._table.rows, signs, self._sizes, True, self.dim
        )
        [rows] = table_steps.pull([wanted])
        return rows[-1, 0]

    def _push(self, signs, indices, gradients):
        rule = self._table.optimizer
        rates = tf.constant([0.01], tf.float64)
        [updated] = tf.unstack(
            table_steps.push(
                [
                    table_steps.RowsUpdate(
                        self._table.rows, signs, self._sizes, gradients
                    )
                ],
                hyperparameters.pack([rule], rates),
                tf.constant(1, tf.int64),
            )
        )
        return updated

    def _send_and_get(self, signs, indices, gradients):
        def answer(signs, weights, slots):
            with tf.control_dependencies([signs[-1]]):
                return weights.read_value()

        return tf.add_n([v[-1, 0] for v in self._on_servers(answer, signs)])

    def _send(self, signs, indices, gradients):
        def consume(signs, gradients, weights, slots):
            return tf.cast(signs[-1], tf.float32) + gradients[-1, 0]

        return tf.add_n(self._on_servers(consume, signs, gradients))

    def _gather(self, signs, indices, gradients):
        def gather(indices, weights, slots):
            return tf.gather(weights, indices)

        return tf.concat(self._on_servers(gather, indices), 0)[-1, 0]

    def _apply(self, signs, indices, gradients):
        def apply(indices, gradients, weights, slots):
            update = tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=weights.handle,
                accum=slots.handle,
                lr=0.01,
                epsilon=1e-7,
                grad=gradients,
                indices=indices,
            )
            with tf.control_dependencies([update]):
                return tf.size(indices)

        return tf.add_n(self._on_servers(apply, indices, gradients))

    def _on_servers(self, function, *tensors):
        """Calls `function(*parts, weights, slots)` on each server."""
        parts = [tf.split(tensor, self._sizes) for tensor in tensors]
        results = []
        for (device, weights, slots), *its in zip(self._dense, *parts):
            with tf.device(device):
                results.append(function(*its, weights, slots))
        return results
