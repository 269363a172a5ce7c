# SPDX-License-Identifier: Apache-2.0
"""The embedding table that users create and layers share."""

import dataclasses
import itertools
import typing
import uuid
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core, initializers
from tf_ext import admission as admissions
from tf_ext import eviction as policies
from tf_ext._checks import is_int, refuse
from tf_ext._compat.calls import is_saving_to_train_on
from tf_ext._compat.checkpoints import OwnChildren
from tf_ext._compat.op_errors import in_own_words
from tf_ext._compat.scalars import scalar
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops._signs import to_signs
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import (
    Hyperparameters,
    PullPlan,
    PullRequest,
    check_finite,
    counted_signs,
    current_step,
    plan_pull,
    regime_in_scope,
    regime_of_tables,
    shared_rows,
)
from tf_ext.tables import shadow, sparse_optimizers, weights_only
from tf_ext.tables.config import TableConfig, check_dim
from tf_ext.tables.saved_state import ColumnRecord, SavedState
from tf_ext.tables.saving import keras_files
from tf_ext.tables.saving.checkpoint import CheckpointedRows
from tf_ext.tables.sparse_optimizers import SparseOptimizer
from tf_ext.tables.stored_table import StoredTable

_RUN_ID = uuid.uuid4().hex[:12]
_COUNTER = itertools.count()
# Those that are attributes and remain as they are, unlike `trainable`.
_ARGUMENTS = frozenset(field.name for field in dataclasses.fields(TableConfig))


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseTable(StoredTable, OwnChildren, keras.layers.Layer):
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
        "zeros", "constant", "uniform", "normal", "truncated_normal"; or one of
        Keras with the same distribution, such as `RandomNormal`.
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
      unknown: what is read for ids without a row: "initial", their initial
        weights; "zeros"; a list of `dim` floats, a vector for all of them; or
        "shared", a row that they share and train, as `[UNK]` in Keras. A
        gradient then goes to the row that was read, and a new row starts from
        the shared one, in the push that admits its id. See docs/rows.md.
      unknown_buckets: int from 1 to 1,048,576, how many rows are shared with
        `unknown="shared"`. An id reads that of the number `id mod
        unknown_buckets`, as the hashed values of `num_oov_indices` in Keras.
      dtype: "float32", "float16" or "bfloat16", the type in which weights are
        stored; see docs/rows.md. Updates are computed in float32 and rounded
        stochastically. Whatever it is, the layer computes in float32: pulls,
        gradients and outputs are float32, also under a mixed precision policy,
        and the attribute `compute_dtype` is "float32".
      slot_dtype: "float32" or "bfloat16", the type in which the optimizer's
        slots are stored; counts of steps are int32 in any case.
      l2, l1: floats, at least 0, by which all rows are regularized, as by
        the `weight_decay` of Keras's AdamW: each push with the learning rate
        `r` of the table's rule first shrinks all rows,
        `|w| <- max((1 - r * l2) * |w| - r * l1, 0)`, and then updates those of
        the batch. Neither is part of the loss or the gradient. `r * l2` must be
        less than 1. Rows that are absent from batches are shrunk when they are
        next read, pushed, saved or exported, so that the table equals a dense
        matrix; each row takes 8 more bytes. A new row begins at its initial
        weights, which shrink from its first push on. Beside `l1`, `l2` is 0 or
        at least `l1 / 10000`. See docs/rows.md.

    The attributes of these names cannot be assigned, except `trainable`.

    Raises:
      ValueError: if an argument is none of these, or lacks another it needs.
      AttributeError: if such an attribute is assigned.

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
    >>> shrinking = tf_ext.SparseTable("user", dim=1, optimizer="sgd", l2=0.1)
    >>> shrinking.import_rows([7], {"weights": [[1.0]]})
    1
    >>> shrinking.push([9], [[0.0]], learning_rate=0.5)
    1
    >>> shrinking.pull([7]).numpy()
    array([[0.95]], dtype=float32)
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
        initializer: str
        | initializers.Initializer
        | keras.initializers.Initializer = "uniform",
        seed: int | None = None,
        trainable: bool = True,
        eviction: policies.Policy | None = None,
        statistics: Sequence[str] | None = None,
        admission: admissions.Policy | None = None,
        unknown: str | Sequence[float] = "initial",
        unknown_buckets: int = 1,
        dtype: str = "float32",
        slot_dtype: str = "float32",
        l2: float = 0.0,
        l1: float = 0.0,
    ) -> None:
        check_dim(dim)  # Rules of names have rates that depend on it.
        config = TableConfig(
            name=name,
            dim=dim,
            optimizer=sparse_optimizers.get(optimizer, dim),
            initializer=initializers.get(initializer),
            seed=0 if seed is None else seed,
            eviction=policies.get(eviction),
            statistics=() if statistics is None else statistics,
            admission=admissions.get(admission),
            unknown=unknown,
            unknown_buckets=unknown_buckets,
            dtype=dtype,
            slot_dtype=slot_dtype,
            l2=l2,
            l1=l1,
            uid=f"{name}/{_RUN_ID}/{next(_COUNTER)}",
            served_statistics=() if weights_only.in_scope() else None,
        )
        regime = regime_in_scope()
        placement = regime.placement.shards()
        super().__init__(name=name, trainable=trainable, dtype="float32")
        self.dim = config.dim
        self.seed = config.seed
        self.optimizer = config.optimizer
        self.initializer = config.initializer
        self.statistics = list(config.statistics)
        self.eviction = config.eviction
        self.admission = config.admission
        self.unknown = config.unknown
        self.unknown_buckets = config.unknown_buckets
        self._dtype_of_weights = config.dtype
        self.slot_dtype = config.slot_dtype
        self.l2 = config.l2
        self.l1 = config.l1
        self.uid = config.uid
        self.column_record = ColumnRecord(name)
        state = SavedState(config, self.column_record)
        self.rows = CheckpointedRows(config, state, regime, placement)
        regime.processes.check_same(
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

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name in _ARGUMENTS and "rows" in vars(self):
            raise AttributeError(
                f"The attribute `{name}` of table {self.name!r} cannot be "
                "changed: its rows are stored and trained as its constructor "
                f"was told. Make another table with `{name}=`, and load into "
                "it what `save` of this one has written. "
                f"Received: {name}={value!r}"
            )
        super().__setattr__(name, value)

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
            **self.rows.table_config.get_config(),
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> typing.Self:
        """Creates an empty table from the result of `get_config`."""
        config = {k: v for k, v in config.items() if k != "uid"}
        return cls(**config)

    def save_own_variables(self, store: keras_files.Store) -> None:
        """Writes rows and slots, chunk by chunk, for Keras's savers."""
        keras_files.save(self.rows, store)

    def load_own_variables(self, store: keras_files.Store) -> None:
        """Replaces rows and slots with the saved ones."""
        keras_files.load(self.rows, store)

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
            has `admission` or shared rows, or is not `trainable`. If not,
            what `unknown` says is returned, and the table does not change.

        Returns:
          float32 `[..., dim]`. No gradient flows through it; use
          `tf_ext.layers.EmbeddingFeatures` for training.
        """
        signs = to_signs(signs, "SparseTable.pull")
        training = training if self.trainable else False
        exchange = regime_of_tables([self]).exchange
        plan = self._plan(tf.reshape(signs, [-1]), exchange.shares_rows)
        request = PullRequest(self, plan, training)
        [rows] = exchange.pull([request], after=current_step().rows_after)
        if plan.shared is not None:
            rows = shared_rows.with_shared(plan, rows)
        return tf.reshape(
            tf.gather(rows, plan.inverse),
            tf.concat([tf.shape(signs), [self.dim]], 0),
        )

    def _plan(self, signs: tf.Tensor, shares_rows: bool) -> PullPlan:
        """The plan of a pull of signs `[n]`."""
        shared = self.shared_rows if shares_rows else 0
        return plan_pull(signs, self.rows.num_shards, shared)

    @property
    def unknown_ids(self) -> npt.NDArray[np.int64]:
        """The ids of the rows that ids without one share.

        They are rows like all others, in files too, but are never evicted.

        Returns:
          int64 `[unknown_buckets]`, in the order of buckets; `[0]` unless the
          table has `unknown="shared"`.

        Example:
        >>> table = tf_ext.SparseTable("user", dim=1, unknown="shared")
        >>> table.import_rows(table.unknown_ids, {"weights": [[0.5]]})
        1
        >>> table.pull([7]).numpy()
        array([[0.5]], dtype=float32)
        """
        return _core.FIRST_SHARED_SIGN + np.arange(self.shared_rows)

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
          ValueError: if the table is not `trainable`, no learning rate is
            known, `step` is missing or is not an integer, or `statistics` are
            given to a table without or of another shape.
          tf.errors.InvalidArgumentError: if shapes do not match, or gradients
            or statistics are not finite; the table is unchanged.
        """
        if not self.trainable:
            raise ValueError(
                f"Table {self.name!r} is frozen, so `push` cannot update its "
                "rows: set its attribute `trainable` to True, or use "
                "`import_rows`. Received: trainable=False"
            )
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
        gradients = _one_gradient_each(signs, gradients)
        regime = regime_of_tables([self])
        indices = signs
        if statistics is not None:
            indices = counted_signs.join(
                signs, self._checked_statistics(statistics, signs)
            )
        pairs = [(indices, gradients)]
        if self.shared_rows:
            plan = self._plan(signs, shares_rows=True)
            [rows] = regime.exchange.pull([PullRequest(self, plan, False)])
            pairs = shared_rows.to_rows_read(
                self, plan, rows, indices, gradients
            )
        [summed] = regime.exchange.merge([(self, pairs)])
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
        updated = regime.exchange.push([summed], values, step, time)[0]
        return int(updated) if hasattr(updated, "numpy") else updated

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


def _one_gradient_each(signs: tf.Tensor, gradients: typing.Any) -> tf.Tensor:
    """Gradients as float32; InvalidArgumentError unless one for each sign."""
    gradients = tf.convert_to_tensor(gradients, tf.float32)
    both = gradients.shape.rank and signs.shape.rank == 1
    if both and not signs.shape[:1].is_compatible_with(gradients.shape[:1]):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "gradients must have one row for each of the "
            f"{signs.shape[0]} signs of SparseTable.push, but their shape is "
            f"{gradients.shape}. Pass them in the order of the signs.",
        )
    return gradients
