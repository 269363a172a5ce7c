"""One of the workers of `multi_worker_benchmarks.py`.

    python multi_worker_worker.py traffic '{"rows": 1000, ...}' lines.jsonl

All workers measure the same cases in the same order; the first one appends its
results to the file, as lines of JSON with `settings` and `results`.
"""

import argparse
import json
import os
import sys

import column_steps
import numpy as np
import tensorflow as tf
import wide_deep_steps
from harness import Case, add_ratios, measure, summarize
from tables import make

import tf_ext
from tf_ext.distribute.collectives import collectives_of
from tf_ext.ops import bag_ops
from tf_ext.optimizers import step
from tf_ext.optimizers.adapter import Rates
from tf_ext.regimes import PullRequest, check_finite, plan_pull
from tf_ext.regimes.exchange import AllToAll

_SIGNS = (1_000, 10_000, 100_000, 1_000_000)
# A repetition has as many steps as make up so many signs.
_SIGNS_A_REPETITION = 10_000
_GROUP_KEY = 0x7F5E0002
# Of models whose columns are dealt out to so many tables.
_TABLES = (1, 16)
_BATCHES = 16
_STEPS_AN_EPOCH = 64


def main():
    what, sizes, output = sys.argv[1:]
    args = argparse.Namespace(**json.loads(sizes))
    strategy = tf_ext.distribute.multi_worker_strategy()
    collectives = collectives_of(strategy)
    run = {"traffic": _traffic, "steps": _steps, "tables": _tables}[what]
    for line in run(args, strategy, collectives, _all_pids(collectives)):
        if collectives is None or collectives.rank == 0:
            with open(output, "a") as file:
                file.write(json.dumps(line) + "\n")


def _all_pids(collectives):
    if collectives is None:
        return [os.getpid()]
    own = tf.constant([os.getpid()], tf.int64)
    return collectives.gather(own).numpy().ravel().tolist()


def _steps(args, strategy, collectives, pids):
    name = f"{len(pids)} worker{'s' if len(pids) > 1 else ''}"
    result = wide_deep_steps.measure(args, strategy, name, pids)
    settings = {"batch": wide_deep_steps.BATCH, "unit": "samples"}
    yield {"settings": settings, "results": [result]}


def _tables(args, strategy, collectives, pids):
    """Steps of models with one table and with many, some epochs in turns."""
    workers, rank = collectives.size, collectives.rank
    samples = wide_deep_steps.BATCH // workers
    with strategy.scope():
        models = {count: column_steps.make(count, 1) for count in _TABLES}

    def data(context=None):
        return column_steps.dataset(_BATCHES, samples, 1 + rank)

    times = {count: [] for count in _TABLES}
    for _ in range(args.repeats):
        for count, model in models.items():
            epochs = wide_deep_steps.EpochTimes(pids, _STEPS_AN_EPOCH)
            model.fit(
                data,
                epochs=3,
                steps_per_epoch=_STEPS_AN_EPOCH,
                shuffle=False,
                callbacks=[epochs],
                verbose=0,
            )
            # The first one traces, and starts reading.
            times[count] += epochs.times[1:]
    items = samples * workers
    results = [
        summarize(
            Case(f"{count} table{'s' if count > 1 else ''}", None, items),
            np.array(times[count]),
        )
        for count in _TABLES
    ]
    add_ratios(results)
    settings = {"workers": workers, "batch": items, "unit": "samples"}
    yield {"settings": settings, "results": results}


def _traffic(args, strategy, collectives, pids):
    for dim in sorted({1, args.dim}):
        for signs in sorted({min(n, args.rows) for n in _SIGNS}):
            step = _Step(strategy, collectives, signs, dim)
            bare = _Bare(collectives, signs, dim)
            cases = [
                _case("tf_ext pull and push", step.run, signs, pids),
                _case("bare all-to-all", bare.run, signs, pids),
            ]
            useful = signs * (8 + 2 * 4 * dim)  # Sign, row and gradient.
            settings = {
                "workers": collectives.size,
                "dim": dim,
                "batch": signs,
                "keys": "distinct, uniform",
                "rule": "adagrad",
                "useful_bytes": useful,
                "padding": round(step.bytes() / useful - 1, 3),
                "unit": "rows a worker",
            }
            results = measure(cases, args.repeats)
            yield {"settings": settings, "results": results}


def _case(name, step, signs, pids):
    """Consecutive steps, as in training.

    A worker's step ends when it has received all its data; the next step waits
    for the other workers. So over many steps the first worker's time is that of
    all.
    """
    steps = max(1, _SIGNS_A_REPETITION // signs)

    def run():
        for _ in range(steps):
            step().numpy()

    return Case(name, run, steps * signs, pids=pids)


class _Step:
    """The part of a training step that uses a table.

    Args:
      strategy: tf.distribute.MultiWorkerMirroredStrategy.
      collectives: Collectives, of its workers.
      signs: int, the number of signs that this worker requests. Each worker
        draws its own from the workers' total; all of them exist.
      dim: int.

    Attributes:
      run: function without arguments, the step.
    """

    def __init__(self, strategy, collectives, signs, dim):
        self._strategy = strategy
        self._collectives = collectives
        rng = np.random.default_rng([collectives.rank, signs, dim])
        universe = collectives.size * signs
        self._signs = tf.constant(
            rng.choice(universe, signs, replace=False).astype(np.int64)
        )
        self._gradients = tf.constant(
            rng.normal(size=(signs, dim)).astype(np.float32)
        )
        with strategy.scope():
            self._table = make("adagrad", dim)
            self._table.pull(self._signs, training=True)
        self.run = tf.function(lambda: self._pull_and_push(collectives))

    def bytes(self):
        """The bytes that a step's collectives transfer for this worker."""
        counting = _CountingCollectives(self._collectives)
        step = tf.function(lambda: self._pull_and_push(counting))
        step()  # The first one agrees on sizes once more.
        before = int(counting.bytes)
        step()
        return int(counting.bytes) - before

    def _pull_and_push(self, collectives):
        table, exchange = self._table, AllToAll(collectives)
        plan = plan_pull(self._signs, collectives.size)
        [rows] = exchange.pull([PullRequest(table, plan, False)])
        with tf.control_dependencies([rows]):
            gradients = tf.identity(self._gradients)
        signs = tf.identity(plan.signs, name=bag_ops.UNIQUE_SIGNS)
        merged = exchange.merge([(table, [(signs, gradients)])])
        with (
            self._strategy.scope(),
            tf.control_dependencies(check_finite(merged)),
        ):
            return step.push(merged, Rates(0, 0.001, 1.0))


class _CountingCollectives:
    """Collectives that count the bytes that they send, including padding."""

    def __init__(self, collectives):
        self._collectives = collectives
        self.size = collectives.size
        self.bytes = tf.Variable(0, dtype=tf.int64)

    def all_to_all(self, pack, dtype, wanted):
        received = self._collectives.all_to_all(pack, dtype, wanted)
        self.bytes.assign_add(tf.size(received, tf.int64) * dtype.size)
        return received

    def remembered(self, key, first):
        return self._collectives.remembered(key, first)

    def first_error(self, error):
        return self._collectives.first_error(error)


class _Bare:
    """Bare all-to-alls of the same payload, with signs distributed evenly.

    Args:
      collectives: Collectives.
      signs: int, of this worker.
      dim: int.

    Attributes:
      run: function without arguments, the step.
    """

    def __init__(self, collectives, signs, dim):
        self._collectives = collectives
        shape = [collectives.size, -(-signs // collectives.size)]
        values = [
            tf.zeros(shape, tf.int64),  # Signs.
            tf.zeros([*shape, dim]),  # Rows.
            tf.zeros([*shape, dim]),  # Gradients.
        ]
        self.run = tf.function(lambda: self._send(values))

    def _send(self, values):
        received = []
        with tf.device(self._collectives.device):
            token = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[], shared_name="bare_all_to_all"
            )
            for value in values:
                received.append(
                    tf.raw_ops.CollectiveAllToAllV2(
                        input=value,
                        group_size=self._collectives.size,
                        group_key=_GROUP_KEY,
                        instance_key=_instance_key(value),
                        ordering_token=[token],
                    )
                )
        with tf.control_dependencies(received):
            return tf.constant(0)


_instance_keys = {}


def _instance_key(value):
    """A number that no other shape has had in this process."""
    shape = (value.dtype.name, *value.shape)
    return _instance_keys.setdefault(shape, len(_instance_keys))


if __name__ == "__main__":
    main()
