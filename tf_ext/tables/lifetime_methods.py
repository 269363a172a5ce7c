# SPDX-License-Identifier: Apache-2.0
"""The methods of a table by which rows come and go."""

import numpy.typing as npt
import tensorflow as tf

from tf_ext import eviction as policies
from tf_ext._checks import is_fraction, is_int, refuse
from tf_ext._compat.scalars import scalar
from tf_ext.ops.exchange import exchange_ops
from tf_ext.tables import weights_only
from tf_ext.tables.shard import config_text, parse_config
from tf_ext.tables.table_attributes import TableAttributes


class LifetimeMethods(TableAttributes):
    """Methods of `SparseTable` about the lifetime of rows; see docs/rows.md."""

    @property
    def statistics_width(self) -> int:
        """How many statistics a push has for each sign, an int; 0: none.

        The first one is how often the sign occurs in the batch, the second one
        its clicks.
        """
        counted = "admission" in parse_config(self.rows.config)
        return max(self._fields_of_statistics, int(counted))

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
        names = weights_only.FIELDS_OF_STATISTICS
        if self.rows.weights_only and not self._fields_of_statistics:
            if int(self.rows.size()):
                raise ValueError(
                    f"Table {self.name!r} holds rows without the statistics "
                    "that a layer reads. Make the layer before rows are loaded "
                    "into a table of tf_ext.serving.weights_only."
                )
            entries = parse_config(self.rows.config)
            entries[weights_only.STATISTICS] = ",".join(names)
            fields = [(name, tf.float32, 1) for name in names]
            self.rows = self.rows.emptied(
                config_text(entries), [*self.rows.fields, *fields]
            )
        self.rows.serve_statistics()

    def _checked_statistics(
        self, statistics: tf.Tensor | npt.ArrayLike, signs: tf.Tensor
    ) -> tf.Tensor:
        """The argument `statistics` of `push`, float32 `[n, s]`."""
        width = self.statistics_width
        statistics = tf.convert_to_tensor(statistics, tf.float32)
        shape = tf.TensorShape([*signs.shape, width])
        if not width or not statistics.shape.is_compatible_with(shape):
            wanted = shape.as_list() if width else "None"
            advice = "Pass one row of them for each sign"
            if not width:
                advice = 'Make it with SparseTable(..., statistics=["show"])'
            raise ValueError(
                f"Argument `statistics` of SparseTable.push must be {wanted} "
                f"for table {self.name!r}, which has statistics_width={width}. "
                f"Received: shape {statistics.shape}. {advice}."
            )
        bad = tf.logical_not(tf.math.is_finite(statistics) & (statistics >= 0))
        checked = exchange_ops.raise_error(
            tf.where(
                tf.reduce_any(bad),
                "Argument `statistics` of SparseTable.push must be finite and "
                f"not negative; table {self.name!r} was not changed.",
                "",
            )
        )
        with tf.control_dependencies([checked]):
            return tf.ensure_shape(statistics, [None, width])

    @property
    def _last_seen(self) -> str | None:
        return parse_config(self.rows.config).get("last_seen")

    @property
    def _fields_of_statistics(self) -> int:
        """How many of the fields "show" and "click" rows have."""
        fields = parse_config(self.rows.config).get("statistics")
        return 0 if fields is None else len(fields.split(","))

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
        if now is None and self._last_seen is None:
            now = 0
        of_clock = now is None and self.rows.records_seconds
        if of_clock:
            now = self.rows.regime.present()
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
        chosen = self.eviction if policy is None else policy
        if chosen is None:
            raise ValueError(
                f"Table {self.name!r} cannot evict: it was made without a "
                "policy. Make it with `eviction`, as in "
                "SparseTable(..., eviction=tf_ext.eviction.Unseen(steps=...))."
            )
        if not isinstance(chosen, policies.Policy):
            raise ValueError(
                "Argument `policy` of SparseTable.evict must be a "
                "tf_ext.eviction.Unseen, Capacity or Score, or None. "
                f"Received: policy={policy!r}"
            )
        chosen.check(self.name, self._last_seen, self._fields_of_statistics)
        return chosen

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
        if not self._fields_of_statistics:
            raise ValueError(
                f"Table {self.name!r} has no statistics that could decay. Make "
                'it with SparseTable(..., statistics=["show", "click"]).'
            )
        if not is_fraction(factor):
            refuse(
                "SparseTable.decay_statistics",
                "factor",
                "a number above 0 and at most 1",
                factor,
            )
        return int(self.rows.decay(float(factor)))

    def clear(self) -> int:
        """Removes all rows and frees their memory; returns how many it had.

        With `admission`, the counters of ids are removed, too.
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
