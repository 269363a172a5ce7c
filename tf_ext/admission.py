# SPDX-License-Identifier: Apache-2.0
"""Admission policies of tables: which ids get a row.

A table without a policy creates a row for each id that is trained. With one,
`SparseTable.push`, and so each training step, decides for ids without a row
whether they get one. Other ids read as `unknown` of the table, and their
gradients are dropped, or train the row that they share.
"""

import typing

from tf_ext import _policy
from tf_ext._checks import is_fraction, is_int, refuse
from tf_ext._keras import keras

__all__ = ["Count", "Policy", "Probability", "get"]


def __dir__() -> list[str]:
    return sorted(__all__)


class Policy(_policy.Policy):
    """Base class of admission policies."""

    def table_config(self) -> dict[str, str]:
        """The entries of the core's configuration of a table."""
        raise NotImplementedError


@keras.utils.register_keras_serializable(package="tf_ext")
class Count(Policy):
    """Admits ids that occurred a number of times in training.

    Occurrences are counted exactly, in about 13 to 20 bytes per id that has
    been pushed but not admitted. A batch in which an id reaches `n` already
    trains its row. Files hold the counters, so that resumed training admits the
    same ids; docs/rows.md says what tables with other policies load.

    Args:
      n: int from 1 to 255, the number of occurrences that are needed.
      forget: int from 1 to 2^63 - 1, a number of steps. Steps are divided into
        periods of this length, and an id that did not occur in the current or
        the previous period loses its counter. None: counters are kept.

    Raises:
      ValueError: if an argument is invalid.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, admission=tf_ext.admission.Count(2))
    >>> table.push([7, 8], [[1.0, 1.0]] * 2, step=1, learning_rate=0.1)
    0
    >>> table.push([7], [[1.0, 1.0]], step=2, learning_rate=0.1)
    1
    >>> table.size(), table.stats()["waiting"]
    (1, 1)
    """

    def __init__(self, n: int, forget: int | None = None) -> None:
        if not is_int(n) or not 1 <= n <= 255:
            refuse("Count", "n", "an integer from 1 to 255", n)
        if forget is not None and not (is_int(forget) and 0 < forget < 2**63):
            allowed = "an integer from 1 to 2^63 - 1, or None"
            refuse("Count", "forget", allowed, forget)
        self.n = int(n)
        self.forget = None if forget is None else int(forget)

    def table_config(self) -> dict[str, str]:
        """The entries of the core's configuration of a table."""
        entries = {"admission": "count", "admission.n": str(self.n)}
        if self.forget is not None:
            entries["admission.forget"] = str(self.forget)
        return entries

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        return {"n": self.n, "forget": self.forget}


@keras.utils.register_keras_serializable(package="tf_ext")
class Probability(Policy):
    """Admits each occurrence of an id with a probability.

    An id is admitted after `1 / p` occurrences on average. The decision is a
    hash of the table's seed, the id and the step, so it is reproducible and
    takes no memory. An id that occurs k times in a step is admitted with
    probability `1 - (1 - p)^k`.

    Args:
      p: float, above 0 and at most 1.

    Raises:
      ValueError: if `p` is invalid.

    Example:
    >>> import tf_ext
    >>> table = tf_ext.SparseTable(
    ...     "user", dim=2, admission=tf_ext.admission.Probability(0.1))
    >>> updated = table.push(
    ...     range(10_000), [[1.0, 1.0]] * 10_000, step=1, learning_rate=0.1)
    >>> 900 < table.size() == updated < 1100
    True
    """

    def __init__(self, p: float) -> None:
        if not is_fraction(p):
            refuse("Probability", "p", "a number above 0, at most 1", p)
        self.p = float(p)

    def table_config(self) -> dict[str, str]:
        """The entries of the core's configuration of a table."""
        return {"admission": "probability", "admission.p": repr(self.p)}

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments."""
        return {"p": self.p}


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
    >>> tf_ext.admission.get(tf_ext.admission.Probability(0.5))
    Probability(p=0.5)
    """
    return _policy.get(
        Policy,
        "admission",
        "a tf_ext.admission.Count or Probability, or None",
        identifier,
    )
