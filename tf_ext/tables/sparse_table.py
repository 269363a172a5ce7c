"""The table that a user makes and layers share."""

import itertools
import re
import uuid

import tensorflow as tf

from tf_ext import initializers, ops
from tf_ext._checks import is_int
from tf_ext._keras import IS_KERAS_3, keras, running_calls
from tf_ext.ops._signs import to_signs
from tf_ext.tables import keras_store, rules, shadow, snapshots
from tf_ext.tables.column_record import ColumnRecord
from tf_ext.tables.gradients import check_finite
from tf_ext.tables.rows import TableRows
from tf_ext.tables.shard import config_text, parse_config
from tf_ext.tables.transport import (
    PullRequest,
    PushRequest,
    get_transport,
    placement,
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MAX_DIM = 65536
# What a statistic of several shards is, if not their sum.
_COMBINED = {
    "row_bytes": max,
    "max_stripe_rows": max,
    "min_stripe_rows": min,
    "max_probe_length": max,
}
# Functions of tf_keras that write a SavedModel to go on training with.
_KERAS_SAVERS = ("save", "save_model")
_RUN_ID = uuid.uuid4().hex[:12]
_COUNTER = itertools.count()


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseTable(keras.layers.Layer):
    """Rows of `dim` weights for an open set of 64-bit ids (signs).

    A row appears when its sign is first trained, is initialised from (seed,
    name, sign) alone, and is updated inside the table by the table's own
    optimizer. All 2^64 signs are legal: any integers of up to 64 bits, a uint64
    by its bits. Floats, booleans and strings are refused; `tf_ext.hashing`
    makes signs of strings. Give the table to one or several
    `tf_ext.layers.EmbeddingFeatures`; columns and layers of one table share
    its rows.

    Args:
      name: string of letters, digits, `_`, `.` and `-`; a label. It takes part
        in the initial weights, so that two tables of one seed differ.
      dim: int, weights in a row, 1 to 65,536.
      optimizer: a `tf_ext.optimizers.SparseOptimizer`, or the name of one:
        "sgd", "adagrad", "row_wise_adagrad", "adam", "ftrl", "rmsprop". A name
        has a learning rate of its own, whatever the model's is, and is meant
        to learn as it is at any batch size: see docs/learning_rates.md and
        `tf_ext.tables.rules.get`. The default costs 4 bytes a row.
      initializer: a `tf_ext.initializers.Initializer` or the name of one:
        "zeros", "constant", "uniform", "normal", "truncated_normal".
      seed: int in [0, 2^64). None is 0: initial weights are always the same
        from run to run.
      trainable: bool; if False, rows are read but neither made nor updated.

    Raises:
      ValueError: an argument that is none of these.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, optimizer="adagrad", initializer="zeros")
    >>> table.pull([7, -1]).shape
    TensorShape([2, 2])
    >>> table.size()
    0
    """

    def __init__(
        self,
        name,
        dim,
        optimizer="row_wise_adagrad",
        initializer="uniform",
        seed=None,
        trainable=True,
    ):
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
            raise ValueError(
                "Argument `seed` of SparseTable must be an integer from 0 to "
                f"2^64 - 1, or None. Received: seed={seed!r}"
            )
        where = placement()
        super().__init__(name=name, trainable=trainable, dtype="float32")
        self.dim = int(dim)
        self.seed = int(seed)
        self.optimizer = rules.get(optimizer, self.dim)
        self.initializer = initializers.get(initializer)
        self.column_record = ColumnRecord(name)
        # Tells this table from all others, so that copies of layers that
        # shared it can share again.
        self.uid = f"{name}/{_RUN_ID}/{next(_COUNTER)}"
        self.rows = TableRows(
            self._config_text(),
            [("weights", tf.float32, self.dim)]
            + self.optimizer.slots(self.dim),
            state=(self._state, self._restore_state),
            devices=where.devices,
            collectives=where.collectives,
            owner=where.owner,
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

    def _config_text(self):
        entries = {
            "name": self.name,
            "dim": str(self.dim),
            "dtype": "float32",
            "hash_version": "1",
            "seed": str(self.seed),
            **self.initializer.table_config(),
            **self.optimizer.table_config(),
        }
        return config_text(entries)

    # Keras

    def call(self, signs):
        """The same as `pull` without insertion."""
        return self.pull(signs)

    def get_config(self):
        """The constructor's arguments, and what tells the table from others."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": keras.utils.serialize_keras_object(self.optimizer),
            "initializer": keras.utils.serialize_keras_object(self.initializer),
            "seed": self.seed,
            "trainable": self.trainable,
            "uid": self.uid,
        }

    @classmethod
    def from_config(cls, config):
        """A new, empty table of the configuration."""
        config = {k: v for k, v in config.items() if k != "uid"}
        return cls(**config)

    def save_own_variables(self, store):
        """Writes rows and slots, chunk by chunk, for Keras's savers."""
        keras_store.save(self.rows, self.name, self._state(), store)

    def load_own_variables(self, store):
        """Replaces rows and slots by saved ones."""
        self._restore_state(keras_store.load(self.rows, self.name, store))

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            # It holds nothing, and its shape would be compared first.
            children = {k: v for k, v in children.items() if k != "shadow"}
        elif not running_calls(_KERAS_SAVERS):
            # What tf_keras saves goes on training; other SavedModels serve.
            children["rows"] = self.rows.served
        return children

    def _state(self):
        return {
            "optimizer": self.optimizer.state(),
            "columns": self.column_record.state(),
        }

    def _check_state(self, state):
        if "optimizer" in state:
            self.optimizer.read_state(state["optimizer"])

    def _restore_state(self, state):
        if "optimizer" in state:
            self.optimizer.resume(state["optimizer"], self.name)
        if "columns" in state:
            self.column_record.restore(state["columns"])

    # Rows

    def pull(self, signs, training=False):
        """Reads rows.

        Args:
          signs: int64 `[...]`, any shape, repeated signs allowed.
          training: bool, whether absent signs are created. If not, they read
            the weights they would start with, and nothing changes.

        Returns:
          float32 `[..., dim]`. No gradient flows through it: that is what
          `tf_ext.layers.EmbeddingFeatures` is for.
        """
        signs = to_signs(signs, "SparseTable.pull")
        unique = ops.unique_by_shard(
            tf.reshape(signs, [-1]), self.rows.num_shards
        )
        request = PullRequest(self, unique, training)
        [rows] = get_transport([self]).pull([request])
        return tf.reshape(
            tf.gather(rows, unique.inverse),
            tf.concat([tf.shape(signs), [self.dim]], 0),
        )

    def push(self, signs, gradients, step=1, learning_rate=None):
        """Applies gradients with the table's optimizer, outside of Keras.

        Args:
          signs: int64 `[n]`; gradients of a repeated sign are summed first.
          gradients: float32 `[n, dim]`, finite.
          step: int, counting from 1; matters to SparseAdam with global bias
            correction and to schedules.
          learning_rate: float, of this push alone. None is the rate of the
            table's optimizer, which must not be one that follows the model
            optimizer's.

        Returns:
          int, the number of rows updated.

        Raises:
          tf.errors.InvalidArgumentError: shapes that do not fit, a gradient
            that is not finite; the table is unchanged.
        """
        if learning_rate is None and self.optimizer.learning_rate is None:
            raise ValueError(
                f"Table {self.name!r} follows the model optimizer's learning "
                "rate, and `push` knows of no model: pass `learning_rate=`. "
                "Received: learning_rate=None"
            )
        if not tf.is_tensor(step) and not is_int(step):
            raise ValueError(
                "Argument `step` of SparseTable.push must be an integer. "
                f"Received: step={step!r}"
            )
        step = tf.convert_to_tensor(step, tf.int64)
        signs = to_signs(signs, "SparseTable.push")
        gradients = tf.convert_to_tensor(gradients, tf.float32)
        transport = get_transport([self])
        [summed] = transport.merge([(self, [(signs, gradients)])])
        if learning_rate is None:
            rate = self.optimizer.current_learning_rate(step - 1, None)
        else:
            rate = tf.cast(learning_rate, tf.float64)
        with tf.control_dependencies(check_finite([summed])):
            hyperparameters = tf.identity(self.optimizer.hyperparameters(rate))
        request = PushRequest(
            self, summed.signs, summed.values, hyperparameters, step
        )
        [updated] = transport.push([request])
        return int(updated) if hasattr(updated, "numpy") else updated

    def size(self):
        """The number of rows, an int."""
        return int(self.rows.size())

    def stats(self):
        """Counts and bytes, a dict of ints.

        `rows`; `bytes` (memory of rows and index); and what the core tells:
        `free_rows`, `stripes`, `row_bytes`, `slab_bytes`, `index_bytes`,
        `max_stripe_rows`, `min_stripe_rows`, `max_probe_length`. Those of a
        table with several shards are over all of them; `shard_stats` has them
        shard by shard.
        """
        shards = self.shard_stats()
        return {
            name: _COMBINED.get(name, sum)(s[name] for s in shards)
            for name in shards[0]
        }

    def shard_stats(self):
        """What `stats` tells, a list with a dict for each shard."""
        stats = []
        for shard in self.rows.stats():
            values = shard.numpy().tolist()
            one = dict(zip(ops.TABLE_STATS, values, strict=True))
            one["bytes"] = one["slab_bytes"] + one["index_bytes"]
            stats.append(one)
        return stats

    def export_rows(self):
        """All rows: `(signs [n] int64, {field: [n, count]})`, NumPy arrays.

        Fields are "weights" and the optimizer's slots.
        """
        signs, values = self.rows.export()
        return signs.numpy(), {k: v.numpy() for k, v in values.items()}

    def import_rows(self, signs, fields):
        """Sets fields of rows, creating absent ones.

        Args:
          signs: int64 `[n]`.
          fields: dict of `[n, count]`, keyed as in `export_rows`; fields left
            out keep their values, or start as a new row's.

        Returns:
          int, the number of rows set.
        """
        signs = to_signs(signs, "SparseTable.import_rows")
        return int(self.rows.import_rows(signs, dict(fields)))

    def erase(self, signs):
        """Removes rows; returns how many of the signs `[n]` were there."""
        return int(self.rows.erase(to_signs(signs, "SparseTable.erase")))

    def clear(self):
        """Removes all rows and gives back their memory; returns how many."""
        return int(self.rows.clear())

    def save(
        self,
        path,
        incremental=False,
        base=None,
        step=None,
        max_bytes_per_second=None,
    ):
        """Writes a snapshot: rows and slots, in a directory of their own.

        Training may go on meanwhile: each row is written as it is at one
        moment, and no row that is there from beginning to end is left out. A
        snapshot that is in the directory already stays as it is until the new
        one is complete and durable, and is removed then. A directory has one
        writer at a time: if another save begins there before this one is
        through, of this process or another, this one fails.

        With `incremental=True` the snapshot begins a chain: the table marks
        which rows change, and `save(another_path, base=path)` writes those,
        and which were erased, alone. A table has one chain at a time.

        Args:
          path: string or path-like, on any file system of TensorFlow. With
            shards on servers all of them write there.
          incremental: bool, whether deltas will continue this snapshot.
          base: string or path-like, the last snapshot of the chain, to write
            what has changed since.
          step: int of at least 0, kept in the manifest.
          max_bytes_per_second: int, a limit, so that training is not slowed
            down.

        Returns:
          The manifest: `id`, `kind`, `rows`, `erased`, `bytes`, `files`, ...

        Raises:
          ValueError: a second chain, or a `base` that is not the last.
          tf_ext.snapshot.SnapshotConflictError: another save began in the
            directory meanwhile.
          OSError, tf.errors.OpError: the file system's; the disk is full, for
            example. The snapshot that was there before is untouched.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2)
        >>> _ = table.pull([7, 9], training=True)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     table.save(directory).rows
        2
        """
        return snapshots.save(
            self.rows,
            path,
            snapshots.Description(self.uid, self.name, self._state()),
            incremental,
            base,
            step,
            max_bytes_per_second,
        )

    def load(self, path, weights_only=False, incremental=False):
        """Replaces all rows by those of a snapshot.

        Rows go to the shards that own them, however many there were. A table
        that holds rows is changed only after the whole snapshot was verified;
        an empty one is empty again if it turns out to be damaged. The table
        must be of the same dim, seed, initializer and optimizer, but may have
        another name. Hyperparameters are this program's, and differences are
        logged.

        `weights_only=True` moves what was learned into a table of another seed,
        initializer or optimizer: the rows of the snapshot have its weights,
        slots start as a new row's, and ids that it does not hold start as this
        table's own. Rows are streamed, so that no second copy of them is in
        memory. The dim has to be the same.

        Args:
          path: string or path-like, the directory. Of a delta: what it
            continues is loaded first.
          weights_only: bool, whether only the weights are taken.
          incremental: bool, whether deltas will continue this snapshot; not
            with `weights_only`.

        Returns:
          The manifest, as `save` does.

        Raises:
          FileNotFoundError: there is no snapshot.
          DamagedSnapshotError: a ValueError that names file and byte.
          tf_ext.snapshot.SnapshotConflictError: saves replaced the snapshot
            again and again while it was read.
          ValueError: rows of a table of another kind; both are named.

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
        """
        manifest = snapshots.load(
            self.rows,
            path,
            self.name,
            weights_only,
            incremental,
            None if weights_only else self._check_state,
        )
        state = dict(manifest.state)
        if weights_only:
            state.pop("optimizer", None)
        self._restore_state(state)
        return manifest

    def end_incremental(self):
        """Ends the chain of incremental snapshots; its files stay."""
        snapshots.end_chain(self.rows)

    @property
    def config(self):
        """The core's configuration of the table, a dict of strings."""
        return parse_config(self.rows.config)
