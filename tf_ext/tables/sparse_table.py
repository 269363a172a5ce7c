# SPDX-License-Identifier: Apache-2.0
"""The embedding table that users create and layers share."""

import itertools
import re
import typing
import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import admission as admissions
from tf_ext import eviction as policies
from tf_ext import initializers, ops
from tf_ext._checks import is_int, refuse
from tf_ext._compat.calls import is_saving_to_train_on
from tf_ext._compat.checkpoints import OwnChildren
from tf_ext._compat.op_errors import in_own_words
from tf_ext._compat.scalars import scalar
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops._signs import to_signs
from tf_ext.regimes import (
    Hyperparameters,
    PullRequest,
    check_finite,
    counted_signs,
    current_step,
    plan_pull,
    regime_in_scope,
    regime_of_tables,
)
from tf_ext.tables import (
    arguments,
    shadow,
    sparse_optimizers,
    weights_only,
)
from tf_ext.tables.column_record import ColumnRecord
from tf_ext.tables.lifetime_methods import LifetimeMethods
from tf_ext.tables.rows import TableRows
from tf_ext.tables.saving import keras_files
from tf_ext.tables.shard import config_text, parse_config
from tf_ext.tables.snapshot_methods import SnapshotMethods
from tf_ext.tables.sparse_optimizers import SparseOptimizer

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MAX_DIM = 65536
# How a statistic is combined over several shards, if not by summing it.
_COMBINED = {
    "row_bytes": max,
    "max_stripe_rows": max,
    "min_stripe_rows": min,
    "max_probe_length": max,
}
# The statistics that are summed in `bytes`.
_MEMORY = ("slab_bytes", "index_bytes", "counter_bytes")
_RUN_ID = uuid.uuid4().hex[:12]
_COUNTER = itertools.count()


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseTable(
    SnapshotMethods, LifetimeMethods, OwnChildren, keras.layers.Layer
):
    """An embedding table for an open-ended set of 64-bit ids (signs).

    A row of `dim` weights is created when its sign is first trained. Its
    initial weights depend only on (seed, name, sign), and the table's own
    optimizer updates it in place. All 2^64 signs are valid: any integers of up
    to 64 bits, of which uint64 is reinterpreted as int64. Floats, booleans and
    strings are rejected; `tf_ext.hashing` turns strings into signs. Pass the
    table to one or more `tf_ext.layers.EmbeddingFeatures`; the columns and
    layers of a table share its rows.

    Args:
      name: string of letters, digits, `_`, `.` and `-`. The initial weights
        depend on it, so that two tables with the same seed differ.
      dim: int, the number of weights in a row, 1 to 65,536.
      optimizer: a `tf_ext.optimizers.SparseOptimizer`, or the name of one:
        "sgd", "adagrad", "row_wise_adagrad", "adam", "ftrl", "rmsprop",
        "lion". A name selects a learning rate of its own, independent of the
        model's, which suits batches of 256 to 8,192: see
        docs/learning_rates.md and `tf_ext.tables.sparse_optimizers.get`. The
        default takes 4 bytes per row. A `keras.optimizers` object with the
        same formula as a rule is converted to that rule, including its
        learning rate; Keras's default learning rates are low for a table.
      initializer: a `tf_ext.initializers.Initializer` or the name of one:
        "zeros", "constant", "uniform", "normal", "truncated_normal".
      seed: int in [0, 2^64). None means 0: initial weights are reproducible
        from run to run in any case.
      trainable: bool; if False, rows are read but neither created nor updated.
      eviction: a `tf_ext.eviction.Unseen`, `Capacity` or `Score`, the policy by
        which `evict` and `tf_ext.callbacks.Evict` remove rows; if it depends on
        when rows were last pushed, each row records this in 4 bytes. None: rows
        are kept until they are erased.
      statistics: list of strings, the statistics in each row, which take 4
        bytes each: `["show"]`, how often its sign occurred in training, or
        `["show", "click"]`, with the sum of a value of these occurrences, such
        as the label. None: no statistics.
      admission: a `tf_ext.admission.Count` or `Probability`, the policy by
        which pushes decide whether an id gets a row; see docs/rows.md. None:
        each id that is trained gets one.
      unknown: "initial" or "zeros", what is read for ids without a row: their
        initial weights or zeros.
      dtype: "float32", "float16" or "bfloat16", the type in which weights are
        stored; see docs/rows.md. Updates are computed in float32 and rounded
        stochastically. Whatever it is, the layer computes in float32: pulls,
        gradients and outputs are float32, also under a mixed precision policy,
        and the attribute `compute_dtype` is "float32".
      slot_dtype: "float32" or "bfloat16", the type in which the optimizer's
        slots are stored; counts of steps are int32 in any case.

    Raises:
      ValueError: if an argument is none of these, or lacks another it needs.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, optimizer="adagrad", initializer="zeros")
    >>> table.pull([7, -1]).shape
    TensorShape([2, 2])
    >>> table.size()
    0
    >>> small = tf_ext.SparseTable(
    ...     "user", dim=16, optimizer="adagrad", dtype="float16")
    >>> large = tf_ext.SparseTable("user", dim=16, optimizer="adagrad")
    >>> small.stats()["row_bytes"], large.stats()["row_bytes"]
    (104, 136)
    """

    # The class's, for as long as Keras's constructor runs.
    _dtype_of_weights = "float32"

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: str
        | SparseOptimizer
        | keras.optimizers.Optimizer = "row_wise_adagrad",
        initializer: str | initializers.Initializer = "uniform",
        seed: int | None = None,
        trainable: bool = True,
        eviction: policies.Policy | None = None,
        statistics: Sequence[str] | None = None,
        admission: admissions.Policy | None = None,
        unknown: str = "initial",
        dtype: str = "float32",
        slot_dtype: str = "float32",
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                "Argument `name` of SparseTable must be 1 to 200 letters, "
                f"digits, '_', '.' or '-'. Received: name={name!r}"
            )
        if not is_int(dim) or not 1 <= dim <= _MAX_DIM:
            raise ValueError(
                f"Argument `dim` of SparseTable must be an integer from 1 to "
                f"{_MAX_DIM}. Received: dim={dim!r}"
            )
        seed = 0 if seed is None else seed
        if not is_int(seed) or not 0 <= seed < 2**64:
            allowed = "an integer from 0 to 2^64 - 1, or None"
            refuse("SparseTable", "seed", allowed, seed)
        if unknown not in ("initial", "zeros"):
            refuse("SparseTable", "unknown", "'initial' or 'zeros'", unknown)
        arguments.check_dtypes(dtype, slot_dtype)
        regime = regime_in_scope()
        where = regime.placement()
        super().__init__(name=name, trainable=trainable, dtype="float32")
        self.dim = int(dim)
        self.seed = int(seed)
        self.optimizer = sparse_optimizers.get(optimizer, self.dim)
        self.initializer = initializers.get(initializer)
        self.statistics = arguments.statistics_list(statistics)
        self.eviction = arguments.policy_for(name, eviction, self.statistics)
        self.admission = admissions.get(admission)
        self.unknown = unknown
        self._dtype_of_weights = dtype
        self.slot_dtype = slot_dtype
        self.column_record = ColumnRecord(name)
        # Identifies this table, so that copies of layers that share it share
        # one copy of it.
        self.uid = f"{name}/{_RUN_ID}/{next(_COUNTER)}"
        config = self._config_text()
        fields = [("weights", tf.as_dtype(dtype), self.dim)]
        if weights_only.in_scope():
            config = weights_only.without_rule(config)
        else:
            fields += [
                (slot, tf.as_dtype(slot_dtype) if kind.is_floating else kind, n)
                for slot, kind, n in self.optimizer.slots(self.dim)
            ]
            if self.eviction is not None and self.eviction.last_seen:
                fields.append(("last_seen", tf.int32, 1))
            fields += [(field, tf.float32, 1) for field in self.statistics]
        self.rows = TableRows(
            config,
            fields,
            state=(self._state, self._restore_state),
            devices=where.devices,
            regime=regime,
            owner=where.owner,
        )
        regime.check_same(
            f"table {name!r}", lambda: {**self.get_config(), "uid": None}
        )
        variable_arguments = (
            {"autocast": False}
            if IS_KERAS_3
            else {"experimental_autocast": False}
        )
        self.shadow = self.add_weight(
            name="shadow",
            shape=(1, self.dim),
            dtype="float32",
            initializer="zeros",
            **variable_arguments,
        )
        shadow.mark(self.shadow, self)
        self.built = True

    def _config_text(self) -> str:
        entries = {
            "name": self.name,
            "dim": str(self.dim),
            "dtype": self.dtype,
            "hash_version": "1",
            "seed": str(self.seed),
            **self.initializer.table_config(),
            **self.optimizer.table_config(),
        }
        if self.eviction is not None and self.eviction.last_seen:
            entries["last_seen"] = self.eviction.last_seen
        if self.statistics:
            entries["statistics"] = ",".join(self.statistics)
        if self.admission is not None:
            entries.update(self.admission.table_config())
        if self.unknown != "initial":
            entries["unknown"] = self.unknown
        if self.slot_dtype != "float32":
            entries["slot_dtype"] = self.slot_dtype
        return config_text(entries)

    @property
    def dtype(self) -> str:
        """The type in which weights are stored, a string.

        It is that of the layer's variables, as in other Keras layers. The layer
        computes in `compute_dtype`, which is "float32".
        """
        return self._dtype_of_weights

    def call(self, signs: tf.Tensor | npt.ArrayLike) -> tf.Tensor:
        """Equivalent to `pull(signs)`, which inserts nothing."""
        return self.pull(signs)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments and the table's unique id."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": keras.utils.serialize_keras_object(self.optimizer),
            "initializer": keras.utils.serialize_keras_object(self.initializer),
            "seed": self.seed,
            "trainable": self.trainable,
            "eviction": self.eviction
            and keras.utils.serialize_keras_object(self.eviction),
            "statistics": self.statistics or None,
            "admission": self.admission
            and keras.utils.serialize_keras_object(self.admission),
            "unknown": self.unknown,
            "dtype": self.dtype,
            "slot_dtype": self.slot_dtype,
            "uid": self.uid,
        }

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """Creates an empty table from the result of `get_config`."""
        config = {k: v for k, v in config.items() if k != "uid"}
        return cls(**config)

    def save_own_variables(self, store: keras_files.Store) -> None:
        """Writes rows and slots, chunk by chunk, for Keras's savers."""
        keras_files.save(self.rows, self.name, self._state(), store)

    def load_own_variables(self, store: keras_files.Store) -> None:
        """Replaces rows and slots with the saved ones."""
        self._restore_state(
            keras_files.load(self.rows, self.name, store, self._check_state)
        )

    def _saved_children(
        self, children: dict[str, typing.Any], kind: str
    ) -> dict[str, typing.Any]:
        if kind == "checkpoint":
            # It holds no data, but its shape would be checked first.
            children = {k: v for k, v in children.items() if k != "shadow"}
        elif not is_saving_to_train_on():
            # tf_keras's SavedModels can be trained further; others only serve.
            children["rows"] = self.rows.served
        return children

    def pull(
        self,
        signs: tf.Tensor | npt.ArrayLike,
        training: bool | tf.Tensor = False,
    ) -> tf.Tensor:
        """Reads rows.

        Args:
          signs: int64 `[...]`, any shape, repeated signs allowed.
          training: bool, whether absent signs are inserted, unless the table
            has `admission`. If not, their initial weights are returned, or
            zeros with `unknown="zeros"`, and the table does not change.

        Returns:
          float32 `[..., dim]`. No gradient flows through it; use
          `tf_ext.layers.EmbeddingFeatures` for training.
        """
        signs = to_signs(signs, "SparseTable.pull")
        plan = plan_pull(tf.reshape(signs, [-1]), self.rows.num_shards)
        request = PullRequest(self, plan, training)
        [rows] = regime_of_tables([self]).pull(
            [request], after=current_step().rows_after
        )
        return tf.reshape(
            tf.gather(rows, plan.inverse),
            tf.concat([tf.shape(signs), [self.dim]], 0),
        )

    @in_own_words()
    def push(
        self,
        signs: tf.Tensor | npt.ArrayLike,
        gradients: tf.Tensor | npt.ArrayLike,
        step: int | tf.Tensor | None = None,
        learning_rate: float | tf.Tensor | None = None,
        time: int | tf.Tensor | None = None,
        statistics: tf.Tensor | npt.ArrayLike | None = None,
    ) -> int | tf.Tensor:
        """Applies gradients with the table's optimizer, outside of Keras.

        Args:
          signs: int64 `[n]`; gradients of a repeated sign are summed first.
          gradients: float32 `[n, dim]`, finite.
          step: int, counting from 1; used by SparseAdam with global bias
            correction, by learning rate schedules and by eviction by steps.
            Required for tables whose `dtype` or `slot_dtype` is not "float32",
            whose rounding has other random bits in each step. None: 1.
          learning_rate: float, the learning rate of this push alone. None:
            that of the table's optimizer, which must then have one of its own
            instead of following the model optimizer's.
          time: int, in seconds since 1970, for tables with eviction by seconds.
            None: the current time; see docs/rows.md on whose clock tells it.
          statistics: float32 `[n, s]`, s of `statistics_width`, finite and not
            negative: how often each sign occurs, and how many clicks that
            are. Those of a repeated sign are summed. None: each of `signs` is
            one occurrence, without a click.

        Returns:
          int, the number of rows updated; with `admission`, those of ids that
          have a row or get one.

        Raises:
          ValueError: if no learning rate is known, `step` is missing or is not
            an integer, or `statistics` are given to a table without or of
            another shape.
          tf.errors.InvalidArgumentError: if shapes do not match, or gradients
            or statistics are not finite; the table is unchanged.
        """
        if learning_rate is None and self.optimizer.learning_rate is None:
            raise ValueError(
                f"Table {self.name!r} follows the model optimizer's learning "
                "rate, and `push` is called without one: pass "
                "`learning_rate=`. Received: learning_rate=None"
            )
        if step is None:
            if {self.dtype, self.slot_dtype} != {"float32"}:
                raise ValueError(
                    f"SparseTable.push needs the argument `step`: table "
                    f"{self.name!r} is rounded stochastically, with other "
                    "random bits in each step. Pass 1, 2, 3 and so on. "
                    "Received: step=None"
                )
            step = 1
        if not tf.is_tensor(step) and not is_int(step):
            refuse("SparseTable.push", "step", "an integer", step)
        if time is not None and not tf.is_tensor(time) and not is_int(time):
            refuse("SparseTable.push", "time", "an integer or None", time)
        step = scalar(step, tf.int64)
        signs = to_signs(signs, "SparseTable.push")
        gradients = arguments.one_gradient_each(signs, gradients)
        regime = regime_of_tables([self])
        indices = signs
        if statistics is not None:
            indices = counted_signs.join(
                signs, self._checked_statistics(statistics, signs)
            )
        [summed] = regime.merge([(self, [(indices, gradients)])])
        if learning_rate is None:
            rate = self.optimizer.current_learning_rate(step - 1, None)
        else:
            if type(learning_rate) is float:  # which tf.cast takes as float32
                learning_rate = scalar(learning_rate, tf.float32)
            rate = tf.cast(learning_rate, tf.float64)
        with tf.control_dependencies(check_finite([summed])):
            hyperparameters = tf.identity(self.optimizer.hyperparameters(rate))
        if time is None:
            time = summed.time
        elif not tf.is_tensor(time):
            time = scalar(time, tf.int64)
        values = Hyperparameters(hyperparameters, [hyperparameters.shape[0]])
        updated = regime.push([summed], values, step, time)[0]
        return int(updated) if hasattr(updated, "numpy") else updated

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
        values = arguments.fields_to_set(fields)
        return int(self.rows.import_rows(signs, values))

    @in_own_words()
    def erase(self, signs: tf.Tensor | npt.ArrayLike) -> int:
        """Removes rows; returns how many of the signs `[n]` had one."""
        return int(self.rows.erase(to_signs(signs, "SparseTable.erase")))

    @property
    def config(self) -> dict[str, str]:
        """The core's configuration of the table, a dict of strings."""
        return parse_config(self.rows.config)
