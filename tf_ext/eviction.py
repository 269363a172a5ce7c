# SPDX-License-Identifier: Apache-2.0
"""Eviction policies of tables.

The policies remove rows, with weights and slots, depending on when they were
last pushed or on their statistics: `SparseTable.evict` and the callback
`tf_ext.callbacks.Evict` apply them. If the policy that a table is created with
depends on when rows were last pushed, rows have a field `last_seen` of 4 bytes
with this time. The next incremental snapshot lists evicted signs as erased. If
such a sign occurs again, it gets a new row with initial weights.
"""

import typing

from tf_ext import _policy
from tf_ext._checks import is_finite, is_int, refuse
from tf_ext._keras import keras

__all__ = ["Capacity", "Evicted", "Policy", "Score", "Unseen", "get"]


def __dir__() -> list[str]:
    return sorted(__all__)


_MOST = 2**31 - 1  # The largest value of `last_seen`.


class Evicted(typing.NamedTuple):
    """The result of an eviction, summed over all shards.

    Attributes:
      examined: int, the number of rows that were examined.
      evicted: int, the number of rows that were removed.
    """

    examined: int
    evicted: int


class Policy(_policy.Policy):
    """Base class of eviction policies.

    Attributes:
      last_seen: "step" or "second", the unit of the field `last_seen` in tables
        that are created with the policy; None if the policy does not need it.
      statistics: int, how many of the fields "show" and "click" the policy
        reads.
    """

    last_seen: str | None = "step"
    statistics: int = 0

    def check(self, label: str, last_seen: str | None, statistics: int) -> None:
        """Raises ValueError if the policy cannot evict from a table.

        Args:
          label: string, the table's name.
          last_seen: "step" or "second", the unit of `last_seen` in its rows;
            None if they do not have this field.
          statistics: int, how many of the fields "show" and "click" they have.
        """
        if self.last_seen is not None and last_seen is None:
            raise ValueError(
                f"Table {label!r} cannot evict by {self}: its rows do not "
                "record when they were last seen. Make it with "
                f"eviction={self}."
            )
        if statistics < self.statistics:
            fields = ["show", "click"][: self.statistics]
            raise ValueError(
                f"Table {label!r} cannot evict by {self}: its rows do not hold "
                f"the field {fields[-1]!r}. Make it with statistics={fields}."
            )

    def limits(self, shard: int, num_shards: int) -> dict[str, typing.Any]:
        """The arguments of `ops.sparse_table_evict` for one of the shards."""
        raise NotImplementedError


@keras.utils.register_keras_serializable(package="tf_ext")
class Unseen(Policy):
    """Evicts rows that have not been pushed for some time.

    Args:
      steps: int from 1 to 2^31 - 1: a row is kept if it was pushed in the last
        `steps` steps.
      seconds: int from 1 to 2^31 - 1: the same in seconds of wall time, instead
        of `steps`.

    Raises:
      ValueError: if both or none of the arguments are given, or if one is out
        of range.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, eviction=tf_ext.eviction.Unseen(steps=100))
    >>> table.push([7], [[1.0, 1.0]], step=1, learning_rate=0.1)
    1
    >>> table.push([8], [[1.0, 1.0]], step=50, learning_rate=0.1)
    1
    >>> table.evict(now=101)
    Evicted(examined=2, evicted=1)
    """

    def __init__(
        self, steps: int | None = None, seconds: int | None = None
    ) -> None:
        if (steps is None) == (seconds is None):
            raise ValueError(
                "Exactly one of the arguments `steps` and `seconds` of Unseen "
                f"must be given. Received: steps={steps!r}, "
                f"seconds={seconds!r}"
            )
        for name, value in (("steps", steps), ("seconds", seconds)):
            if value is not None and not (is_int(value) and 0 < value <= _MOST):
                refuse("Unseen", name, f"an integer from 1 to {_MOST}", value)
        self.steps = steps
        self.seconds = seconds
        self.last_seen = "second" if steps is None else "step"

    def check(self, label: str, last_seen: str | None, statistics: int) -> None:
        """Raises ValueError if rows have no `last_seen`, or another unit."""
        super().check(label, last_seen, statistics)
        if last_seen != self.last_seen:
            raise ValueError(
                f"{self} cannot evict from table {label!r}, whose rows hold "
                f"the {last_seen} of their last push; make it with "
                f"eviction={self}."
            )

    def limits(self, shard: int, num_shards: int) -> dict[str, typing.Any]:
        """The age from which rows are evicted, the same for all shards."""
        del shard, num_shards
        age = self.seconds if self.steps is None else self.steps
        return {"unseen": int(typing.cast(int, age))}

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        if self.steps is None:
            return {"seconds": self.seconds}
        return {"steps": self.steps}


@keras.utils.register_keras_serializable(package="tf_ext")
class Capacity(Policy):
    """Evicts the least recently pushed rows above a maximum number.

    Among rows that were pushed in the same step, a hash of the sign decides.
    The maximum is divided among the shards of the table, each of which evicts
    independently, so the rows that remain depend on the number of shards.

    Args:
      rows: int, at least 0, the maximum number of rows that remain.
      by: "last_seen", or "show": the rows with the highest `show` remain, in a
        table that has `statistics`. A hash of the sign breaks ties there, too.

    Raises:
      ValueError: if an argument is invalid.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, eviction=tf_ext.eviction.Capacity(2))
    >>> for step in (1, 2, 3):
    ...     pushed = table.push(
    ...         [step], [[1.0, 1.0]], step=step, learning_rate=0.1)
    >>> table.evict(now=3)
    Evicted(examined=3, evicted=1)
    >>> sorted(table.export_rows()[0].tolist())
    [2, 3]
    """

    def __init__(self, rows: int, by: str = "last_seen") -> None:
        if not is_int(rows) or not 0 <= rows < 2**63:
            refuse("Capacity", "rows", "an integer from 0 to 2^63 - 1", rows)
        if by not in ("last_seen", "show"):
            refuse("Capacity", "by", '"last_seen" or "show"', by)
        self.rows = rows
        self.by = by
        if by == "show":
            self.last_seen, self.statistics = None, 1

    def limits(self, shard: int, num_shards: int) -> dict[str, typing.Any]:
        """The shard's part of the maximum; parts differ by at most 1."""
        part, more = divmod(int(self.rows), num_shards)
        capacity = part + (shard < more)
        if self.by == "last_seen":
            return {"capacity": capacity}
        return {"capacity": capacity, "by_show": True}

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        if self.by == "last_seen":
            return {"rows": self.rows}
        return {"rows": self.rows, "by": self.by}


@keras.utils.register_keras_serializable(package="tf_ext")
class Score(Policy):
    """Evicts rows with a low score, which is computed from their statistics.

    The score of a row is `show_weight * show + click_weight * click`. Let the
    statistics decay (`SparseTable.decay_statistics`), so that they measure how
    often ids have occurred recently. The default is TensorNet's threshold of
    `show`. Paddle's `nonclk_coeff * (show - click) + click_coeff * click` has
    the weights `show_weight=nonclk_coeff,
    click_weight=click_coeff - nonclk_coeff`.

    Args:
      threshold: float, the lowest score of a row that is kept.
      unseen: an `Unseen`, which applies to rows as well; None: only the score
        does.
      require: "any": rows are evicted that have a low score or are old, like
        Paddle's; "all": only those that are both, like TensorNet's.
      show_weight: float, the weight of `show`.
      click_weight: float, the weight of `click`; 0 for tables without it.

    Raises:
      ValueError: if an argument is invalid.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, statistics=["show"],
    ...     eviction=tf_ext.eviction.Score(threshold=2))
    >>> for signs in ([7, 8], [7]):
    ...     pushed = table.push(
    ...         signs, [[1.0, 1.0]] * len(signs), learning_rate=0.1)
    >>> table.evict()
    Evicted(examined=2, evicted=1)
    >>> table.export_rows()[1]["show"].tolist()
    [[2.0]]
    """

    def __init__(
        self,
        threshold: float,
        unseen: Unseen | dict[str, typing.Any] | None = None,
        require: str = "any",
        show_weight: float = 1.0,
        click_weight: float = 0.0,
    ) -> None:
        for name, value in (
            ("threshold", threshold),
            ("show_weight", show_weight),
            ("click_weight", click_weight),
        ):
            if not is_finite(value):
                refuse("Score", name, "a finite number", value)
        if isinstance(unseen, dict):
            unseen = keras.utils.deserialize_keras_object(unseen)
        if unseen is not None and not isinstance(unseen, Unseen):
            refuse(
                "Score", "unseen", "a tf_ext.eviction.Unseen or None", unseen
            )
        if require not in ("any", "all"):
            refuse("Score", "require", '"any" or "all"', require)
        self.threshold = float(threshold)
        self.unseen = unseen
        self.require = require
        self.show_weight = float(show_weight)
        self.click_weight = float(click_weight)
        self.last_seen = None if unseen is None else unseen.last_seen
        self.statistics = 2 if self.click_weight else 1

    def check(self, label: str, last_seen: str | None, statistics: int) -> None:
        """Raises ValueError if rows lack a field or have another unit."""
        super().check(label, last_seen, statistics)
        if self.unseen is not None:
            self.unseen.check(label, last_seen, statistics)

    def limits(self, shard: int, num_shards: int) -> dict[str, typing.Any]:
        """The score and the age, the same for all shards."""
        score = [self.threshold, self.show_weight, self.click_weight]
        limits: dict[str, typing.Any] = {"score": score}
        if self.unseen is not None:
            limits.update(self.unseen.limits(shard, num_shards))
            limits["require_all"] = self.require == "all"
        return limits

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        return {
            "threshold": self.threshold,
            "unseen": self.unseen
            and keras.utils.serialize_keras_object(self.unseen),
            "require": self.require,
            "show_weight": self.show_weight,
            "click_weight": self.click_weight,
        }

    def __repr__(self) -> str:
        return (
            f"Score(threshold={self.threshold}, unseen={self.unseen!r}, "
            f"require={self.require!r}, show_weight={self.show_weight}, "
            f"click_weight={self.click_weight})"
        )


def get(identifier: Policy | dict[str, typing.Any] | None) -> Policy | None:
    """Converts an argument to a policy.

    Args:
      identifier: a `Policy`, a dict in which Keras serialized one, or None.

    Returns:
      A `Policy`, or None.

    Raises:
      ValueError: if `identifier` is anything else.

    Example:
    >>> import tf_ext
    >>> tf_ext.eviction.get(tf_ext.eviction.Unseen(steps=5))
    Unseen(steps=5)
    """
    return _policy.get(
        Policy,
        "eviction",
        "a tf_ext.eviction.Unseen, Capacity or Score, or None",
        identifier,
    )
