# SPDX-License-Identifier: Apache-2.0
"""What a table is: its arguments, and what follows from them."""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext import _core, initializers
from tf_ext import admission as admissions
from tf_ext import eviction as evictions
from tf_ext._checks import is_finite, is_int, refuse
from tf_ext._keras import keras
from tf_ext.regimes.table_interface import Field
from tf_ext.snapshot.manifest import MAX_DIM
from tf_ext.tables.sparse_optimizers import SparseOptimizer

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")

# What is read for ids without a row, if no vector.
_INITIAL = "initial"
_SHARED = "shared"

# The core's rule for rows that cannot be trained.
_NO_RULE = "none"

# That which moves rows while they are absent.
_MOVING_RULE = "dense_adam"

# The end of an error's last sentence, where weights are not taken alone.
_EXPORT = (
    ", or export the rows of one that has loaded them: export_rows(), "
    "serving.export(model, path)."
)

# The first parts of the keys that concern fields which do not serve.
_NOT_SERVED = (
    "optimizer",
    "slot_dtype",
    "last_seen",
    "statistics",
    "admission",
)

# Keys, or first parts of keys, in which a table may differ from that whose rows
# it takes: names, what is true of new rows alone, and of signs without a row.
_NOT_IDENTITY = (
    "name",
    "optimizer.initial_accumulator_value",
    "admission",
    "unknown",
)

# Those in which it may differ if it takes nothing but weights.
_NOT_OF_WEIGHTS = (
    "seed",
    "initializer",
    "optimizer",
    "last_seen",
    "statistics",
    "slot_dtype",
)

# What shrinks all rows in each step. A table may have them if the saved one has
# neither, and it takes nothing but weights.
SHRINKAGE = ("l2", "l1")

# Those in which it may differ if values are converted.
_DTYPES = ("dtype", "slot_dtype")

# What a text does not say if it is so.
_DEFAULTS = {"slot_dtype": "float32"}


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The arguments of a table, checked.

    The constructor of `SparseTable` passes its arguments on to this class,
    whose members are what Keras saves (`get_config`), what the core is given
    (`text`) and how rows are stored (`fields`).

    Args:
      name, dim, ...: those of `SparseTable`; policies and rules are objects.
      uid: string that identifies the table, so that copies of layers that share
        it share one copy of it.
      served_statistics: None if rows can be trained; for rows that only serve,
        the statistics that they have beside their weights.

    Raises:
      ValueError: if an argument is none of those allowed, or lacks another that
        it needs.
    """

    name: str
    dim: int
    optimizer: SparseOptimizer
    initializer: initializers.Initializer
    seed: int = 0
    eviction: evictions.Policy | None = None
    statistics: Sequence[str] = ()
    admission: admissions.Policy | None = None
    unknown: str | Sequence[float] = "initial"
    unknown_buckets: int = 1
    dtype: str = "float32"
    slot_dtype: str = "float32"
    l2: float = 0.0
    l1: float = 0.0
    uid: str = ""
    served_statistics: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            allowed = "1 to 200 letters, digits, '_', '.' or '-'"
            refuse("SparseTable", "name", allowed, self.name)
        check_dim(self.dim)
        if not is_int(self.seed) or not 0 <= self.seed < 2**64:
            allowed = "an integer from 0 to 2^64 - 1, or None"
            refuse("SparseTable", "seed", allowed, self.seed)
        unknown = self._checked_unknown()
        reason = (
            ", the type of stored values: tables compute in float32 under any "
            "policy"
        )
        types = _core.field_types()
        for key, use in (("dtype", "of_weights"), ("slot_dtype", "of_slots")):
            allowed_types = tuple(name for name in types if types[name][use])
            _check_choice(key, getattr(self, key), allowed_types, reason)
        statistics = self.statistics
        if not isinstance(statistics, list | tuple) or (
            tuple(statistics) not in ((), ("show",), ("show", "click"))
        ):
            allowed = '["show"], ["show", "click"] or None'
            refuse("SparseTable", "statistics", allowed, statistics)
        if self.eviction is not None:
            self.eviction.check(
                self.name, self.eviction.last_seen, len(statistics)
            )
        for key in SHRINKAGE:
            value = getattr(self, key)
            if not is_finite(value) or value < 0:
                allowed = "a finite number of at least 0; 0 for none"
                refuse("SparseTable", key, allowed, value)
        most = _core.MOST_L1_OF_L2
        if self.l2 > 0 and self.l1 > most * self.l2:
            allowed = (
                f"0, or at least l1 / {most:,.0f}: less is not precise beside "
                "l1, and too little to matter"
            )
            refuse("SparseTable", "l2", allowed, self.l2)
        if self.moves_absent_rows and self.l1:
            allowed = "0 with a rule that moves absent rows; l2 may be more"
            refuse("SparseTable", "l1", allowed, self.l1)
        # They may be NumPy's numbers, and a list that the caller changes.
        own = {
            "dim": int(self.dim),
            "seed": int(self.seed),
            "statistics": tuple(statistics),
            "unknown": unknown,
            "unknown_buckets": int(self.unknown_buckets),
            "l2": float(self.l2),
            "l1": float(self.l1),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def _checked_unknown(self) -> str | tuple[float, ...]:
        """The argument `unknown`, a vector as a tuple of float32's numbers."""
        buckets, most = self.unknown_buckets, _core.MOST_SHARED_ROWS
        shared = isinstance(self.unknown, str) and self.unknown == _SHARED
        if not is_int(buckets) or not 1 <= buckets <= (most if shared else 1):
            allowed = f"an integer from 1 to {most:,}"
            if not shared:
                allowed = '1, unless unknown="shared"'
            refuse("SparseTable", "unknown_buckets", allowed, buckets)
        if isinstance(self.unknown, str):
            if self.unknown in (_INITIAL, "zeros", _SHARED):
                return self.unknown
        else:
            try:
                with np.errstate(over="ignore"):
                    vector = np.asarray(self.unknown, np.float32)
            except (TypeError, ValueError):
                vector = np.zeros([0], np.float32)
            if vector.shape == (self.dim,) and np.isfinite(vector).all():
                return tuple(vector.tolist())
        allowed = (
            "'initial', 'zeros', 'shared', or a list of dim finite numbers, "
            f"here {self.dim}"
        )
        refuse("SparseTable", "unknown", allowed, self.unknown)

    @property
    def shared_rows(self) -> int:
        """How many rows ids without one share; 0: none."""
        return self.unknown_buckets if self.unknown == _SHARED else 0

    def get_config(self) -> dict[str, typing.Any]:
        """The arguments of `SparseTable` and the unique id, for Keras."""
        config = {
            field.name: _serialized(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }
        del config["served_statistics"]
        return config

    @property
    def weights_only(self) -> bool:
        """Whether rows hold only what serves, and so cannot be trained."""
        return self.served_statistics is not None

    @property
    def stored_statistics(self) -> tuple[str, ...]:
        """The statistics that rows hold."""
        if self.served_statistics is not None:
            return self.served_statistics
        return tuple(self.statistics)

    @property
    def shrinks(self) -> bool:
        """Whether rows hold how far they have been shrunk."""
        return self.l2 > 0 or self.l1 > 0

    @property
    def moves_absent_rows(self) -> bool:
        """Whether rows hold up to when they have been moved while absent."""
        return not self.weights_only and self.optimizer.moves_absent_rows

    @property
    def last_seen(self) -> str | None:
        """Whether rows hold the "step" or the "second" of their last push."""
        if self.weights_only or self.eviction is None:
            return None
        return self.eviction.last_seen

    @property
    def text(self) -> str:
        """The configuration that the core is given."""
        entries = {
            "name": self.name,
            "dim": str(self.dim),
            "dtype": self.dtype,
            "hash_version": "1",
            "seed": str(self.seed),
            **self.initializer.table_config(),
            **self.optimizer.table_config(),
        }
        if self.last_seen:
            entries["last_seen"] = self.last_seen
        if self.stored_statistics:
            entries["statistics"] = ",".join(self.stored_statistics)
        if self.admission is not None:
            entries.update(self.admission.table_config())
        if not isinstance(self.unknown, str):
            entries["unknown"] = "vector"
            entries["unknown.vector"] = ",".join(
                str(np.float32(value)) for value in self.unknown
            )
        elif self.unknown != _INITIAL:
            entries["unknown"] = self.unknown
        if self.unknown_buckets != 1:
            entries["unknown.buckets"] = str(self.unknown_buckets)
        if self.slot_dtype != "float32":
            entries["slot_dtype"] = self.slot_dtype
        for key in SHRINKAGE:
            if getattr(self, key):
                entries[key] = repr(getattr(self, key))
        text = config_text(entries)
        if self.served_statistics is None:
            return text
        return served_text(text, self.served_statistics)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a row, `weights` first."""
        fields = [Field("weights", tf.as_dtype(self.dtype), self.dim)]
        if self.shrinks:
            # The halves of an int64.
            fields.append(Field(_core.SHRUNK_FIELD, tf.int32, 2))
        if self.moves_absent_rows:
            fields.append(Field(_core.CAUGHT_UP_FIELD, tf.int32, 1))
        if not self.weights_only:
            slots = tf.as_dtype(self.slot_dtype)
            fields += [
                Field(name, slots if dtype.is_floating else dtype, count)
                for name, dtype, count in self.optimizer.slots(self.dim)
            ]
        if self.last_seen:
            fields.append(Field("last_seen", tf.int32, 1))
        statistics = self.stored_statistics
        return (*fields, *(Field(name, tf.float32, 1) for name in statistics))


def check_dim(dim: typing.Any) -> None:
    """Raises ValueError if `dim` is not the number of weights of a row."""
    if not is_int(dim) or not 1 <= dim <= MAX_DIM:
        allowed = f"an integer from 1 to {MAX_DIM}"
        refuse("SparseTable", "dim", allowed, dim)


def _serialized(value: typing.Any) -> typing.Any:
    if isinstance(value, tuple):
        return list(value) or None
    if hasattr(value, "get_config"):
        return keras.utils.serialize_keras_object(value)
    return value


def _check_choice(
    argument: str, value: object, allowed: Sequence[str], reason: str = ""
) -> None:
    if not isinstance(value, str) or value not in allowed:
        what = " or ".join(map(repr, allowed))
        refuse("SparseTable", argument, what + reason, value)


def parse_config(text: str) -> dict[str, str]:
    """The entries of a table's configuration text, as a dict of strings."""
    return dict(line.split("=", 1) for line in text.splitlines() if line)


def config_text(entries: Mapping[str, str]) -> str:
    """The configuration text of a table, from a dict of strings."""
    return "".join(f"{k}={v}\n" for k, v in sorted(entries.items()))


def served_text(text: str, statistics: Sequence[str] = ()) -> str:
    """The text of the table that serves the rows of one that is trained.

    Args:
      text: string, of the table that is trained.
      statistics: the statistics that rows keep, for layers that read them.
    """
    entries = {
        key: value
        for key, value in parse_config(text).items()
        if key.partition(".")[0] not in _NOT_SERVED
    }
    if statistics:
        entries["statistics"] = ",".join(statistics)
    return config_text({**entries, "optimizer": _NO_RULE})


def exported_text(text: str) -> str:
    """The text of the table of rows as they are read, which are exported."""
    entries = {
        key: value
        for key, value in parse_config(text).items()
        if key not in SHRINKAGE and key.partition(".")[0] != "optimizer"
    }
    return config_text({**entries, "optimizer": _NO_RULE})


def check_identity(
    name: str,
    text: str,
    saved: str,
    weights_only: bool,
    convert: bool = False,
) -> None:
    """Raises unless rows of a table of `saved` fit a table of `text`.

    Args:
      name: string, the table's name, for the message.
      text: string, the table's configuration.
      saved: string, the configuration of the table that was saved.
      weights_only: bool, whether seed, initializer and optimizer may differ.
      convert: bool, whether the types of weights and slots may differ.

    Raises:
      ValueError: the message names the first key that differs.
    """
    mine = _DEFAULTS | parse_config(text)
    theirs = _DEFAULTS | parse_config(saved)
    serves = mine["optimizer"] == _NO_RULE
    if theirs["optimizer"] == _MOVING_RULE and (serves or weights_only):
        raise ValueError(
            f"Rows cannot be restored into table {name!r} without their slots: "
            "the rule of the saved table is SparseAdam(absent='decay'), which "
            "moves rows by their slots while they are absent from batches. "
            f"Make the table as it was saved{_EXPORT}"
        )
    for key in sorted(mine.keys() | theirs.keys()):
        kind = key.partition(".")[0]
        if key in _NOT_IDENTITY or kind in _NOT_IDENTITY:
            continue
        may_differ = kind in _NOT_OF_WEIGHTS or (
            key in SHRINKAGE and not theirs.keys() & set(SHRINKAGE)
        )
        if (weights_only and may_differ) or (convert and key in _DTYPES):
            continue
        # Only tables of layers that read statistics have these.
        reads_it = key == "statistics" and key in mine
        if serves and kind in _NOT_SERVED and not reads_it:
            continue
        if mine.get(key) != theirs.get(key):
            raise ValueError(
                f"Rows cannot be restored into table {name!r}: its `{key}` "
                f"is {mine.get(key)!r}, that of the saved rows is "
                f"{theirs.get(key)!r}. Make the table as it was saved"
                f"{_other_way(key, may_differ, theirs['optimizer'])}"
            )


def _other_way(key: str, may_differ: bool, saved_rule: str) -> str:
    """The end of an error's last sentence: what can be done instead."""
    if key in _DTYPES:
        what, option = "round the values", "convert"
    elif may_differ and saved_rule == _MOVING_RULE:
        return _EXPORT
    elif may_differ:
        what, option = "take the weights alone", "weights_only"
    else:
        return "."
    return (
        f", or {what}: save(path) of that table, load(path, {option}=True) of "
        "this one."
    )
