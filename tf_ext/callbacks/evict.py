# SPDX-License-Identifier: Apache-2.0
"""Evicts rows, and lets their statistics decay, during training."""

import logging
import typing

from tf_ext._checks import check_count, is_fraction, refuse
from tf_ext.callbacks.every_steps import EverySteps
from tf_ext.eviction import Evicted
from tf_ext.tables.find import tables_of
from tf_ext.tables.sparse_table import SparseTable

_LOG = logging.getLogger("tf_ext")


_EXAMPLES = {
    "eviction": "eviction=tf_ext.eviction.Unseen(steps=...)",
    "statistics": 'statistics=["show", "click"]',
}


class Evict(EverySteps):
    """Evicts rows of all tables that were created with `eviction`.

    With `decay`, the statistics of all tables are multiplied by it first.

    An eviction follows each step of the optimizer that reaches or passes a
    multiple of `steps`. So it is at the same step in every process, even after
    training was interrupted and resumed. Under ParameterServerStrategy,
    workers may run steps during an eviction.

    Args:
      steps: int, at least 1, the number of steps between evictions.
      decay: float, above 0 and at most 1, the factor by which statistics are
        multiplied just before each eviction. None: they do not decay.

    Attributes:
      evicted: dict from the names of tables to the `tf_ext.eviction.Evicted` of
        their last evictions.

    Raises:
      ValueError: if an argument is invalid; or, when `fit` begins (at the first
        eviction if the model is not built by then), if no table of the model
        was created with `eviction`, or, with `decay`, none with `statistics`.

    Example:
    >>> import tf_ext
    >>> evict = tf_ext.callbacks.Evict(steps=50_000, decay=0.98)
    >>> evict.steps, evict.decay
    (50000, 0.98)
    """

    def __init__(self, steps: int, decay: float | None = None) -> None:
        check_count("Evict", "steps", steps, 1)
        if decay is not None and not is_fraction(decay):
            refuse("Evict", "decay", "above 0 and at most 1, or None", decay)
        super().__init__(steps)
        self.steps = int(steps)
        self.decay = None if decay is None else float(decay)
        self.evicted: dict[str, Evicted] = {}

    def on_train_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        """Called by Keras."""
        super().on_train_begin(logs)
        if self.model.built:
            self._tables()

    def act(self, step: int, logs: dict[str, typing.Any]) -> None:
        """Evicts rows after a step."""
        del logs
        decaying, evicting = self._tables()
        for table in decaying:
            table.decay_statistics(self.decay)
        for table in evicting:
            by_steps = table.config.get("last_seen") == "step"
            evicted = table.evict(now=step if by_steps else None)
            self.evicted[table.name] = evicted
            _LOG.info(
                "Step %d: %d of %d rows of table %r were evicted.",
                step,
                evicted.evicted,
                evicted.examined,
                table.name,
            )

    def _tables(self) -> tuple[list[typing.Any], list[typing.Any]]:
        """The tables whose statistics decay, and those that evict."""
        tables = tables_of(self.model)
        decays = self.decay is not None
        decaying = self._those(tables, "statistics") if decays else []
        return decaying, self._those(tables, "eviction")

    def _those(
        self, tables: list[SparseTable], made_with: str
    ) -> list[typing.Any]:
        """The tables that were made with an argument."""
        found = [table for table in tables if getattr(table, made_with)]
        if not found:
            raise ValueError(
                "The model of Evict must have a table that was made with "
                f"`{made_with}`. Received: model {self.model.name!r} with the "
                f"tables {[table.name for table in tables]}, all with "
                f"{made_with}=None. Make one with SparseTable(..., "
                f"{_EXAMPLES[made_with]}), or leave out what needs it."
            )
        return found
