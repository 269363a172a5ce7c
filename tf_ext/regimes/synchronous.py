# SPDX-License-Identifier: Apache-2.0
"""Synchronous workers, each with a shard of every table."""

import contextlib
import json
import os
import tempfile
import typing
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.distribute import agreement
from tf_ext.distribute.addresses import task_name
from tf_ext.distribute.cluster import worker_tasks
from tf_ext.distribute.collectives import Collectives
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import batches, clock
from tf_ext.regimes.all_to_all import AllToAll
from tf_ext.regimes.carried_words import Carried
from tf_ext.regimes.gathering import gathered_chunks
from tf_ext.regimes.gradients import (
    TableGradient,
    from_slices,
    map_values,
    to_indices,
)
from tf_ext.regimes.placement import Placement
from tf_ext.regimes.processes import Processes
from tf_ext.regimes.regime import Regime
from tf_ext.regimes.replica_weights import ReplicaWeight, weighted
from tf_ext.regimes.table_interface import (
    Chunk,
    Exports,
    Field,
    Parts,
    ShardDevices,
    Table,
    TableSlices,
)

_T = typing.TypeVar("_T")

_FILES = (".h5", ".keras")


class WorkerPlacement(Placement):
    """A shard of each table on each worker.

    Args:
      strategy: a MultiWorkerMirroredStrategy of several workers.
      workers: its Collectives.
    """

    has_all = False

    def __init__(
        self, strategy: tf.distribute.Strategy, workers: Collectives
    ) -> None:
        super().__init__(strategy)
        self._workers = workers

    def shards(self) -> ShardDevices:
        """The shard of this worker's rank."""
        return ShardDevices([self._workers.device])

    def check_table(self, table: Table, workers: Collectives | None) -> None:
        """Raises ValueError if a table has no shard in the other workers."""
        if workers is not self._workers:
            raise self._made_outside(table)

    def check_exportable(self, name: str) -> None:
        """Raises ValueError: no worker has all rows."""
        raise self._unexportable(name, "spread over workers")


class WorkerExchange(AllToAll):
    """The exchange between workers, with a replica each.

    All of them make the same calls in the same order.
    """

    strategy: tf.distribute.Strategy

    raises_together = True

    def sum_gradients(
        self,
        dense: list[tf.Tensor],
        slices: TableSlices,
        weight: ReplicaWeight | None,
    ) -> tuple[list[tf.Tensor], TableSlices]:
        """As in the base class, but `merge_beside` sums.

        It uses tf_ext's collectives: TensorFlow's use a new key in each step,
        and keep its state. So only slices of variables are summed here.
        """
        dense, slices = weighted(weight, dense, slices, self.weighted_values)
        context = tf.distribute.get_replica_context()
        summed = [
            context.all_reduce(tf.distribute.ReduceOp.SUM, grad)
            if isinstance(grad, tf.IndexedSlices)
            else grad
            for grad in dense
        ]
        return summed, slices

    def weighted_values(
        self, values: Sequence[tf.Tensor], factor: tf.Tensor
    ) -> list[tf.Tensor]:
        """As in the base class, in one op."""
        values = list(values)
        together = [i for i, v in enumerate(values) if v.dtype == tf.float32]
        products = (
            exchange_ops.exchange_weigh([values[i] for i in together], factor)
            if together
            else []
        )
        others = super().weighted_values(
            [v for v in values if v.dtype != tf.float32], factor
        )
        float32, rest = iter(products), iter(others)
        return [
            next(float32 if v.dtype == tf.float32 else rest) for v in values
        ]

    def merge_beside(
        self,
        dense: list[tf.Tensor],
        parts: Parts,
        carried: Sequence[Carried] = (),
    ) -> tuple[list[tf.Tensor], list[TableGradient]]:
        """Sums gradients of variables and tables in one collective.

        Those of variables are summed apart if they are large, or alone.
        """
        local = self.strategy.experimental_local_results
        summed = [local(grad)[0] for grad in dense]
        places = [
            i
            for i, grad in enumerate(summed)
            if not isinstance(grad, tf.IndexedSlices)
        ]
        own = [summed[i] for i in places]
        if parts:
            bundle = self.workers.bundle(own, tf.zeros([0], tf.int64))
            words = Carried(bundle.words)
            tables = self.merge(parts, [*carried, words])
            sums, _ = self.workers.unbundle(bundle, words.gathered)
        else:
            tables, sums = [], self.workers.sum(own)
        for i, value in zip(places, sums):
            summed[i] = value
        return summed, tables

    def sum_everywhere(
        self,
        dense: list[tf.Tensor],
        slices: TableSlices,
        weight: ReplicaWeight | None,
    ) -> tuple[list[tf.Tensor], TableSlices]:
        """Sums, and slices of the rows that this worker owns."""
        dense, slices = self.sum_gradients(dense, slices, weight)
        dense, tables = self.merge_beside(
            dense, [(t, [(g.indices, g.values)]) for t, g in slices]
        )
        if dense and tables:
            # A check whether all are finite then gives the same result
            # everywhere.
            finite = tf.reduce_all(tf.stack([t.finite for t in tables]))
            bad = tf.where(finite, 0.0, np.nan)
            dense[0] = map_values(lambda v: v + tf.cast(bad, v.dtype), dense[0])
        return dense, [
            (
                t.table,
                tf.IndexedSlices(
                    t.values,
                    to_indices(t),
                    tf.constant([1, t.table.dim], tf.int64),
                ),
            )
            for t in tables
        ]

    def merge_summed(self, parts: Parts) -> list[TableGradient]:
        """The sums, and whether those of all workers are finite."""
        if not parts:
            return []
        sums = [from_slices(table, *pairs[0]) for table, pairs in parts]
        finite = [tf.reduce_all(tf.math.is_finite(t.values)) for t in sums]
        bad = tf.logical_not(tf.reduce_all(tf.stack(finite)))
        mine = [tf.cast(bad, tf.int64)]
        records = any(t.table.rows.records_seconds for t in sums)
        if records:
            mine.append(clock.seconds())
        everywhere = self.workers.gather(tf.stack(mine))
        finite = tf.equal(tf.reduce_max(everywhere[:, 0]), 0)
        time = everywhere[0, 1] if records else None
        return [t._replace(finite=finite, time=time) for t in sums]

    def gather_batch(
        self, tensors: Sequence[tf.Tensor], what: str
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Gathers samples of all workers, by tf_ext's collectives."""
        del what
        return batches.gather_batch(self.workers, tensors)

    def check_fit(self, model_in_fit: Callable[[], keras.Model | None]) -> None:
        """Raises RuntimeError unless the model is a tf_ext.Model."""
        # Code that acts for all replicas runs in the thread that called `fit`.
        context = tf.distribute.get_replica_context()
        context.merge_call(lambda _: _check_model(model_in_fit()))

    def total(self, number: tf.Tensor) -> tf.Tensor:
        """As in the base class, by tf_ext's collectives."""
        return tf.reduce_sum(self.workers.gather(number[tf.newaxis]))

    def raise_error(self, error: tf.Tensor) -> tf.Tensor:
        """As in the base class, while no collective is under way."""
        return self.workers.raise_error(error)


class WorkerProcesses(Processes):
    """The workers, which make the same calls in the same order.

    Args:
      strategy: a MultiWorkerMirroredStrategy of several workers.
      workers: its Collectives.
    """

    workers: Collectives

    def __init__(
        self, strategy: tf.distribute.Strategy, workers: Collectives
    ) -> None:
        self._strategy = strategy
        self.workers = workers
        self.count = workers.size
        self.rank = workers.rank

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Gathers values of all workers; also in a graph."""
        return self.workers.gather(values)

    def gather_json(self, value: typing.Any) -> list[typing.Any]:
        """Gathers a value of all workers in a list."""
        gathered = self.workers.gather_bytes(json.dumps(value).encode())
        return [json.loads(text) for text in gathered]

    def from_first(
        self,
        value: _T,
        encode: Callable[[_T], typing.Any] | None = None,
        decode: Callable[[typing.Any], _T] | None = None,
    ) -> _T:
        """The first worker's value, sent to all."""
        mine = b""
        if self.rank == 0:
            text = json.dumps(value if encode is None else encode(value))
            mine = text.encode()
        sent = json.loads(self.workers.gather_bytes(mine)[0])
        return sent if decode is None else decode(sent)

    def int_of_first(self, number: int) -> int:
        """The first worker's int, by one collective."""
        mine = tf.constant([number], tf.int64)
        return int(self.workers.gather(mine)[0, 0])

    def present(self) -> int | None:
        """The first worker's clock."""
        return self.int_of_first(int(clock.seconds()))

    def check_same(
        self, what: str, values: Callable[[], Mapping[str, typing.Any]]
    ) -> None:
        """As in the base class; all workers raise."""
        with tf.init_scope():
            try:
                mine = agreement.flat(values())
            except NotImplementedError:
                # Of a schedule without `get_config`, which trains all the same.
                mine = {}
            found = self.gather_json(mine)
        tasks, _ = worker_tasks(self._strategy)
        text = agreement.differences(found, [task_name(*t) for t in tasks])
        if text:
            raise ValueError(
                f"The programs of the synchronous workers differ in {what}: "
                f"{text}. All of them must run the same program with the same "
                "arguments and data."
            )

    def together(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A context after which all workers raise if one did."""
        return self.workers.together(what)

    @contextlib.contextmanager
    def file_of_all(self, filepath: str) -> Iterator[str]:
        """The first worker writes `filepath`, others into temporary folders.

        All workers learn when all have finished, or one has failed.
        """
        first = self.rank == 0
        with tempfile.TemporaryDirectory(prefix="tf_ext_save_") as folder:
            path = filepath
            if not first:
                name = os.path.basename(filepath.rstrip("/"))
                path = os.path.join(folder, name)
            # No worker may wait for rows of a worker that cannot start.
            with self._agreement(filepath):
                if first and filepath.endswith(_FILES):
                    _check_writable(filepath)
            with self._agreement(filepath):
                yield path

    @contextlib.contextmanager
    def _agreement(self, filepath: str) -> Iterator[None]:
        failed = True
        try:
            yield
            failed = False
        finally:
            mine = tf.constant([failed], tf.int64)
            states = self.workers.gather(mine).numpy().ravel()
        if states.any():
            raise RuntimeError(
                f"Worker {states.argmax()} could not save {filepath!r}; its "
                "own error says why."
            )

    def chunks(
        self, shards: Sequence[Exports], fields: Sequence[Field], limit: int
    ) -> Generator[Chunk, None, None]:
        """Rows of all workers, brought to the first a chunk at a time."""
        # The chunks of all workers arrive together.
        limit = max(1, limit // self.count)
        return gathered_chunks(self.workers, shards[0], fields, limit)

    def checkpoint_part(
        self, shard: Exports, fields: Sequence[Field], limit: int
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The rows of all workers on the first, whose checkpoint is kept.

        The others write their own.
        """
        with contextlib.closing(self.chunks([shard], fields, limit)) as rows:
            chunks = list(rows)
        if not chunks:
            return super().checkpoint_part(shard, fields, limit)
        return tf.concat([signs for signs, _ in chunks], 0), {
            field.name: tf.concat([v[field.name] for _, v in chunks], 0)
            for field in fields
        }


class SynchronousRegime(Regime):
    """The regime of several workers; see `synchronous_regime`."""

    strategy: tf.distribute.Strategy
    exchange: WorkerExchange
    processes: WorkerProcesses


def synchronous_regime(
    strategy: tf.distribute.Strategy, workers: Collectives
) -> SynchronousRegime:
    """The regime of a MultiWorkerMirroredStrategy of several workers.

    Args:
      strategy: the strategy, with one replica in each worker.
      workers: its Collectives.
    """
    return SynchronousRegime(
        "synchronous",
        strategy,
        WorkerPlacement(strategy, workers),
        WorkerExchange(workers, strategy),
        WorkerProcesses(strategy, workers),
    )


def _check_model(model: keras.Model | None) -> None:
    if model is not None and not hasattr(model, "tf_ext_tables"):
        raise RuntimeError(
            f"fit() of {type(model).__name__}, a Keras model with tables that "
            "is not a tf_ext.Model, under MultiWorkerMirroredStrategy: Keras "
            "would sum metrics that already cover all workers, and give "
            "shares of batches the same weight whatever their sizes. Derive "
            "it from tf_ext.Model first, as `class Ranking(tf_ext.Model, "
            "tfrs.Model)`."
        )


def _check_writable(filepath: str) -> None:
    there = tf.io.gfile.exists(filepath)
    with tf.io.gfile.GFile(filepath, "ab") as file:
        file.write(b"")
    if not there:
        tf.io.gfile.remove(filepath)
