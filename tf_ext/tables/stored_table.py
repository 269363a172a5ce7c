# SPDX-License-Identifier: Apache-2.0
"""What can be done with the rows of a table besides training."""

import dataclasses
import logging
import os
import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import eviction as policies
from tf_ext import ops
from tf_ext._checks import is_fraction, is_int, refuse
from tf_ext._compat.op_errors import in_own_words
from tf_ext._compat.scalars import scalar
from tf_ext.ops._signs import to_signs
from tf_ext.snapshot.compatibility import warn_of_lost_weights
from tf_ext.snapshot.manifest import FIELDS_OF_STATISTICS, Manifest
from tf_ext.tables.config import parse_config
from tf_ext.tables.rows import TableRows
from tf_ext.tables.saving import snapshot_load, snapshot_save

_LOG = logging.getLogger("tf_ext")

# Fields of Adam.
_MOMENTS = frozenset(("m", "v"))
# How a statistic is combined over several shards, if not by summing it.
_COMBINED = {
    "row_bytes": max,
    "max_stripe_rows": max,
    "min_stripe_rows": min,
    "max_probe_length": max,
}
# The statistics that are summed in `bytes`.
_MEMORY = ("slab_bytes", "index_bytes", "counter_bytes")


class StoredTable:
    """The part of `SparseTable` that Keras does not know of.

    It reads and sets rows, removes them, and saves and loads snapshots.

    Attributes:
      rows: TableRows.
    """

    rows: TableRows

    def size(self) -> int:
        """The number of rows, an int."""
        return int(self.rows.size())

    def stats(self) -> dict[str, int]:
        """Statistics of the table, a dict of ints.

        The keys are `rows`; `bytes` (memory of rows, index and counters); and
        the core's internal statistics: `free_rows`, `stripes`, `row_bytes`,
        `slab_bytes`, `index_bytes`, `max_stripe_rows`, `min_stripe_rows`,
        `max_probe_length`. With `admission`, `waiting` is the number of ids
        that are counted, `counter_bytes` the memory of their counters, and
        `admitted` the number of rows that were admitted since this process
        created the table. `evicted` is the number of rows that `evict` has
        removed since then; `erase` and `clear` do not count. `updated` is the
        number of rows that pushes have updated since then: a row counts once in
        each push. `saturated` is the number of weights and slots that were
        limited since then to the largest finite value of the type in which they
        are stored, or that an update made NaN and became 0; if it grows during
        training, use "bfloat16" instead of "float16", or a lower learning rate.
        All shards are combined; `shard_stats` has those of each shard.
        """
        shards = self.shard_stats()
        return {
            name: _COMBINED.get(name, sum)(s[name] for s in shards)
            for name in shards[0]
        }

    def shard_stats(self) -> list[dict[str, int]]:
        """The statistics of `stats` per shard: a list of dicts."""
        stats = []
        for shard in self.rows.stats():
            values = shard.numpy().tolist()
            one = dict(zip(ops.TABLE_STATS, values, strict=True))
            one["bytes"] = sum(one[name] for name in _MEMORY)
            stats.append(one)
        return stats

    @property
    def config(self) -> dict[str, str]:
        """The core's configuration of the table, a dict of strings."""
        return parse_config(self.rows.config)

    def export_rows(
        self,
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[typing.Any]]]:
        """All rows: `(signs [n] int64, {field: [n, count]})`, NumPy arrays.

        Fields are "weights", the optimizer's slots, "last_seen" if `eviction`
        depends on it, and with `statistics` "show" and "click". Floats are
        float32, whatever type they are stored in.
        """
        signs, values = self.rows.export()
        return signs.numpy(), {k: v.numpy() for k, v in values.items()}

    @in_own_words()
    def import_rows(
        self,
        signs: tf.Tensor | npt.ArrayLike,
        fields: Mapping[str, tf.Tensor | npt.ArrayLike],
    ) -> int:
        """Sets fields of rows, inserting absent rows.

        Rows of `SparseAdam(absent="decay")` do not say how many steps their
        table has made. A table that has made none and gets their moments
        corrects the bias of these as in a first step, and logs a warning:
        `save` and `load` take the number of steps, too. It also logs that
        `SparseFtrl` will lose weights that are set without `linear`.

        Args:
          signs: int64 `[n]`.
          fields: dict of `[n, count]`, keyed as in `export_rows`; fields left
            out keep their values, or get those of a new row. float32 values are
            rounded to the nearest one of the type in which they are stored, and
            limited to its largest finite value.

        Returns:
          int, the number of rows set.

        Raises:
          ValueError: `fields` is not a dict.
          tf.errors.InvalidArgumentError: other shapes, types or fields.
        """
        signs = to_signs(signs, "SparseTable.import_rows")
        values = _fields_to_set(fields)
        # Servers are asked for the step only if there may be moments.
        if (
            not _MOMENTS.isdisjoint(values)
            and self.rows.adam_step == 0
            and _has_moments(values)
        ):
            _LOG.warning(
                "Table %r gets moments of Adam, and has made no step itself: "
                "it corrects their bias as in a first step, so its next steps "
                "are of another size than theirs. `save` and `load` take the "
                "number of steps, too. Or leave out 'm' and 'v'.",
                self.rows.name,
            )
        if "weights" in values and np.any(values["weights"].numpy() != 0):
            warn_of_lost_weights(self.rows.name, self.rows.names, values)
        return int(self.rows.import_rows(signs, values))

    @in_own_words()
    def erase(self, signs: tf.Tensor | npt.ArrayLike) -> int:
        """Removes rows; returns how many of the signs `[n]` had one."""
        return int(self.rows.erase(to_signs(signs, "SparseTable.erase")))

    def clear(self) -> int:
        """Removes all rows and frees their memory; returns how many it had.

        With `admission`, the counters of ids are removed, too; and with `l2`,
        `l1` or `SparseAdam(absent="decay")`, the table forgets the steps that
        it has seen: it trains as a new one does.
        """
        return int(self.rows.clear())

    def compact(self) -> int:
        """Returns the memory of erased rows to the system.

        No row changes. Pulls, pushes and saves continue meanwhile, because
        locks are only held while up to 1,024 rows are moved. `compact` waits
        for parts of the table that a save, an eviction or an in-place update is
        walking.

        An erasure or eviction compacts the table automatically if at least half
        of the rows in memory are free and take at least 32 MiB. Under
        `MultiWorkerMirroredStrategy`, each worker compacts its own shard.

        Returns:
          int, the number of bytes by which `stats()["bytes"]` has decreased,
          for the shards that this process can access.

        Example:
        >>> table = tf_ext.SparseTable("item", dim=16)
        >>> _ = table.pull(tf.range(10_000), training=True)
        >>> table.erase(tf.range(1_000, 10_000))
        9000
        >>> before = table.stats()["bytes"]
        >>> before - table.compact() == table.stats()["bytes"] < before / 4
        True
        """
        return int(self.rows.compact())

    def evict(
        self, now: int | None = None, policy: policies.Policy | None = None
    ) -> policies.Evicted:
        """Removes rows, with their slots, according to a policy.

        The next incremental snapshot lists their signs as erased; if a sign
        occurs again, its row is initialized like a new one. Other threads can
        use the table meanwhile. A large eviction ends with a compaction, like a
        large erasure. Under MultiWorkerMirroredStrategy, all workers must call
        this method in the same step, as `tf_ext.callbacks.Evict` does.

        A row that was never pushed, or is newer than both `now` and the last
        push, is treated as if it had just been pushed. So rows that were
        imported, or pushed while a clock was wrong, start to age at the first
        eviction.

        Args:
          now: int, the current step if the table evicts by steps; otherwise the
            current time in seconds since 1970. None: the time of the clock by
            which the rows were pushed, see docs/rows.md. Without effect if
            rows do not record when they were last pushed.
          policy: a `tf_ext.eviction.Policy`. None: that of the table.

        Returns:
          `tf_ext.eviction.Evicted`: the numbers of rows examined and evicted.

        Raises:
          ValueError: if there is no policy, the table does not have the fields
            that the policy reads, or has a different unit, or `now` is missing,
            negative or not an integer.

        Example:
        >>> import tf_ext
        >>> table = tf_ext.SparseTable(
        ...     "user", dim=2, eviction=tf_ext.eviction.Unseen(steps=10))
        >>> table.push([7, 9], [[1.0, 1.0]] * 2, step=1, learning_rate=0.1)
        2
        >>> table.evict(now=10), table.evict(now=11)
        (Evicted(examined=2, evicted=0), Evicted(examined=2, evicted=2))
        """
        policy = self._policy(policy)
        if now is None and self.rows.table_config.last_seen is None:
            now = 0
        of_clock = now is None and self.rows.records_seconds
        if of_clock:
            now = self.rows.regime.processes.present()
        elif not is_int(now) or not 0 <= now < 2**63:
            raise ValueError(
                "Argument `now` of SparseTable.evict must be an integer from 0 "
                "to 2^63 - 1: the present step, or seconds since 1970 if the "
                f"table evicts by seconds. Received: now={now!r}"
            )
        if now is not None:
            now = scalar(int(now), tf.int64)
        counts = self.rows.evict(policy, now)
        examined, evicted = counts.numpy().tolist()
        return policies.Evicted(examined, evicted)

    def _policy(self, policy: policies.Policy | None) -> policies.Policy:
        """The policy of an eviction, after checking it."""
        config = self.rows.table_config
        chosen = config.eviction if policy is None else policy
        if chosen is None:
            raise ValueError(
                f"Table {self.rows.name!r} cannot evict: it was made without a "
                "policy. Make it with `eviction`, as in "
                "SparseTable(..., eviction=tf_ext.eviction.Unseen(steps=...))."
            )
        if not isinstance(chosen, policies.Policy):
            raise ValueError(
                "Argument `policy` of SparseTable.evict must be a "
                "tf_ext.eviction.Unseen, Capacity or Score, or None. "
                f"Received: policy={policy!r}"
            )
        statistics = len(config.stored_statistics)
        chosen.check(config.name, config.last_seen, statistics)
        return chosen

    @property
    def statistics_width(self) -> int:
        """How many statistics a push has for each sign, an int; 0: none.

        The first one is how often the sign occurs in the batch, the second one
        its clicks.
        """
        config = self.rows.table_config
        counted = config.admission is not None or config.shared_rows > 0
        counted = counted and not config.weights_only
        return max(len(config.stored_statistics), int(counted))

    @property
    def shared_rows(self) -> int:
        """How many rows the ids without one share, an int; 0: none."""
        return self.rows.table_config.shared_rows

    def decay_statistics(self, factor: float) -> int:
        """Multiplies the statistics of all rows by a factor.

        Without decay, `show` and `click` are sums over the whole training. With
        a decay in regular intervals, they are sums in which older occurrences
        count less. All rows change, so the next incremental snapshot contains
        all of them. Other threads can use the table meanwhile. Under
        MultiWorkerMirroredStrategy, all workers must call this method in the
        same step, as `tf_ext.callbacks.Evict` does.

        Args:
          factor: float, above 0 and at most 1.

        Returns:
          int, the number of rows.

        Raises:
          ValueError: if the table was created without `statistics`, or `factor`
            is out of range.

        Example:
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2, statistics=["show"])
        >>> table.push([7, 9], [[1.0, 1.0]] * 2, learning_rate=0.1)
        2
        >>> table.decay_statistics(0.5)
        2
        >>> table.export_rows()[1]["show"].tolist()
        [[0.5], [0.5]]
        """
        if not self.rows.table_config.stored_statistics:
            raise ValueError(
                f"Table {self.rows.name!r} has no statistics that could decay. "
                'Make it with SparseTable(..., statistics=["show", "click"]).'
            )
        if not is_fraction(factor):
            refuse(
                "SparseTable.decay_statistics",
                "factor",
                "a number above 0 and at most 1",
                factor,
            )
        return int(self.rows.decay(float(factor)))

    def serve_statistics(self) -> None:
        """Lets tables that only serve hold the statistics of rows, too.

        Layers call this whose outputs depend on them. Exported models of the
        table then contain "show" and "click". A table that was created inside
        `tf_ext.serving.weights_only` gets these fields, which must happen
        before it has rows and before functions that read it are traced.

        Raises:
          ValueError: the table holds only weights, and has rows already.

        Example:
        >>> with tf_ext.serving.weights_only():
        ...     table = tf_ext.SparseTable("user", dim=2)
        >>> table.serve_statistics()
        >>> list(table.export_rows()[1])
        ['weights', 'show', 'click']
        """
        config = self.rows.table_config
        if config.weights_only and not config.stored_statistics:
            if int(self.rows.size()):
                raise ValueError(
                    f"Table {config.name!r} holds rows without the statistics "
                    "that a layer reads. Make the layer before rows are loaded "
                    "into a table of tf_ext.serving.weights_only."
                )
            statistics = FIELDS_OF_STATISTICS
            self.rows = self.rows.emptied(
                dataclasses.replace(config, served_statistics=statistics)
            )
        self.rows.serve_statistics()

    def save(
        self,
        path: str | os.PathLike[str],
        incremental: bool = False,
        base: str | os.PathLike[str] | None = None,
        step: int | None = None,
        max_bytes_per_second: int | None = None,
    ) -> Manifest:
        """Writes a snapshot: rows and slots, to a directory of its own.

        Training may continue meanwhile: each row is written atomically, and
        every row that exists during the whole save is included. An existing
        snapshot in the directory remains valid until the new one is complete
        and durable, and is then removed. A directory has one writer at a time:
        if another save to it starts before this one has finished, in this
        process or another, this one fails.

        With `incremental=True` the snapshot starts a chain: the table marks
        changed rows, and `save(another_path, base=path)` writes only these and
        the signs of erased rows. A table has at most one chain.

        Args:
          path: string or path-like, on any file system that TensorFlow
            supports. With shards on parameter servers, all of them write to it.
          incremental: bool, whether deltas will continue this snapshot.
          base: string or path-like, the last snapshot of the chain, to write
            the changes since then.
          step: int of at least 0, stored in the manifest.
          max_bytes_per_second: int, a limit that leaves disk and processor to
            training.

        Returns:
          The manifest: `id`, `kind`, `rows`, `erased`, `bytes`, `files`, ...

        Raises:
          ValueError: if the table already has a chain, or `base` is not the
            last snapshot of it.
          tf_ext.snapshot.SnapshotConflictError: if another save to the
            directory started meanwhile.
          OSError, tf.errors.OpError: if the file system fails, for example
            because the disk is full. The previous snapshot is unchanged.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2)
        >>> _ = table.pull([7, 9], training=True)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     table.save(directory).rows
        2
        """
        save = snapshot_save.Save(
            self.rows, path, incremental, base, step, max_bytes_per_second
        )
        return save.run()

    def load(
        self,
        path: str | os.PathLike[str],
        weights_only: bool = False,
        incremental: bool = False,
        in_place: bool = False,
        convert: bool = False,
    ) -> Manifest:
        """Replaces all rows with those of a snapshot.

        The snapshot may have any number of shards. A non-empty table is changed
        only after the whole snapshot has been verified; an empty table is
        emptied again if damage is found. The table must have the saved table's
        dim, seed, initializer and optimizer, but may have another name.
        Hyperparameters are those of this program, and differences are logged.

        `weights_only=True` loads into a table of another seed, initializer or
        optimizer: only the weights are read, slots are reinitialized, and ids
        that are not in the snapshot get initial rows of this table. Rows are
        streamed, without a second copy in memory. The dim must be the same.
        `SparseFtrl` loses such weights at the next push, which is logged.

        `in_place=True` is for a table that is read meanwhile: rows are
        overwritten in place, and those that are not in the snapshot are erased
        last. A row that exists both before and after the load is never absent,
        and a reader sees either the old or the new one; the snapshots of a
        chain are applied one after the other. Without `in_place` all rows are
        absent for a while.

        `convert=True` is for a table of another `dtype` or `slot_dtype`: each
        value is rounded to the nearest one of the table's type. Only training
        rounds stochastically, because errors of many steps add up; here each
        value is rounded once, and the nearest value has the smallest error.
        The manifest's `conversion` counts the values that were rounded.

        Args:
          path: string or path-like, the directory. The bases of a delta are
            loaded first.
          weights_only: bool, whether only the weights are loaded.
          incremental: bool, whether deltas will continue this snapshot; not
            with `weights_only`.
          in_place: bool, whether existing rows are overwritten in place.
          convert: bool, whether weights and slots of other types are converted;
            not with `incremental`.

        Returns:
          The manifest, as returned by `save`. With `convert`, its `conversion`
          has the numbers `values`, those of another type than the table's;
          `rounded`, those of them that changed; and `saturated`, those of the
          latter that were limited to the largest finite value. A row that is in
          several snapshots of a chain counts several times. They are logged,
          too.

        Raises:
          FileNotFoundError: if there is no snapshot.
          DamagedSnapshotError: a ValueError that names file and byte.
          tf_ext.snapshot.SnapshotConflictError: if saves repeatedly replaced
            the snapshot while it was read.
          ValueError: if the saved table has another configuration; the message
            names both.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2, seed=1)
        >>> _ = table.pull([7, 9], training=True)
        >>> other = tf_ext.SparseTable("user", dim=2, seed=2, optimizer="adam")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = table.save(directory)
        ...     other.load(directory, weights_only=True).rows
        2
        >>> bool(tf.reduce_all(other.pull([7, 9]) == table.pull([7, 9])))
        True
        >>> small = tf_ext.SparseTable("user", 2, seed=1, dtype="float16")
        >>> _ = table.import_rows([7, 9], {"weights": [[1, 0.1], [1e9, -2]]})
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = table.save(directory)
        ...     small.load(directory, convert=True).conversion
        Conversion(values=4, rounded=2, saturated=1)
        >>> small.pull([7, 9]).numpy().tolist()
        [[1.0, 0.0999755859375], [65504.0, -2.0]]
        """
        options = snapshot_load.Options(
            weights_only, in_place, convert, with_state=not weights_only
        )
        return snapshot_load.load(self.rows, path, options, incremental)

    def apply_delta(
        self, path: str | os.PathLike[str], convert: bool = False
    ) -> Manifest:
        """Applies the changes since the snapshot that the table holds.

        `path` is a snapshot that was saved with `base=`. The table must hold a
        snapshot of its chain, from the last `load` or `apply_delta`, and its
        rows must not have been changed in any other way since then. The deltas
        in between are applied first, in order; if the table already holds
        `path`, nothing happens.

        All files are read and checked before the first row changes. Rows are
        then overwritten in place, and erased rows are removed last, while the
        table may be read: an id that exists both before and after the update is
        never absent, and a reader sees either the old or the new row, never a
        mixture. (A row that is in several deltas takes on each of their values
        in turn.) Do not train the table meanwhile.

        With shards on parameter servers each server reads its own shard's
        files; under MultiWorkerMirroredStrategy all workers must call this
        method.

        Args:
          path: string or path-like, the directory.
          convert: bool, whether weights and slots of other types are converted,
            as by `load`.

        Returns:
          The manifest, as returned by `load`.

        Raises:
          FileNotFoundError: if there is no snapshot.
          DamagedSnapshotError: a ValueError that names file and byte; the table
            is unchanged.
          ValueError: if the delta does not continue the snapshot that the table
            holds, a delta in between is missing, or the saved table has another
            configuration.
          RuntimeError: if something else changed rows meanwhile, or a file was
            damaged after it was checked. Each row is old or new; `load` a
            snapshot, with `in_place=True` if the table is being read.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> trained = tf_ext.SparseTable("user", dim=2)
        >>> served = tf_ext.SparseTable("user", dim=2)
        >>> _ = trained.pull([7, 9], training=True)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = trained.save(directory + "/0", incremental=True)
        ...     _ = served.load(directory + "/0")
        ...     _ = trained.erase([7])
        ...     _ = trained.save(directory + "/1", base=directory + "/0")
        ...     served.apply_delta(directory + "/1").kind
        'delta'
        >>> served.size()
        1
        """
        options = snapshot_load.Options(convert=convert)
        return snapshot_load.apply_delta(self.rows, path, options)

    def end_incremental(self) -> None:
        """Ends the chain of incremental snapshots; its files are kept."""
        self.rows.chain.end(self.rows.on_each)


def _has_moments(values: Mapping[str, tf.Tensor]) -> bool:
    """Whether fields that are set have moments of Adam, other than zeros."""
    return any(
        np.any(values[name].numpy() != 0)
        for name in _MOMENTS.intersection(values)
    )


def _fields_to_set(
    fields: Mapping[str, tf.Tensor | npt.ArrayLike],
) -> dict[str, tf.Tensor]:
    """The argument `fields` of `import_rows`; float64, NumPy's, is rounded."""
    if not isinstance(fields, Mapping):
        shape = getattr(fields, "shape", None)
        found = fields if shape is None else f"of shape {tuple(shape)}"
        allowed = (
            "a dict from names of fields to arrays [n, count], such as "
            '{"weights": ...}'
        )
        refuse("SparseTable.import_rows", "fields", allowed, found)
    values = {key: tf.convert_to_tensor(one) for key, one in fields.items()}
    return {
        key: tf.cast(one, tf.float32) if one.dtype == tf.float64 else one
        for key, one in values.items()
    }
