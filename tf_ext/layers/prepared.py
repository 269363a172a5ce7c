# SPDX-License-Identifier: Apache-2.0
"""Batches of layers that are hashed before the layers are called."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ext.feature_column import Bags
from tf_ext.feature_column.column import Column
from tf_ext.layers.column_sets import Part
from tf_ext.regimes import PullPlan


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A batch of a layer, for which no row has been read.

    Attributes:
      parts: list of Part, one for each table.
      plans: list of PullPlan, one for each table; tables that read the same
        columns have one.
      masks: dict of bool `[batch_size, length]`, by sequence.
      error: string scalar, the error of the batch, or ""; None where it has
        been raised already.
    """

    parts: Sequence[Part]
    plans: Sequence[PullPlan]
    masks: Mapping[Column, tf.Tensor]
    error: tf.Tensor | None

    def distinct_plans(self) -> list[PullPlan]:
        """The plans, each once."""
        return list(dict.fromkeys(self.plans))

    def tensors(self) -> list[tf.Tensor]:
        """What a call of the layer needs but routes, for `with_tensors`."""
        found = [t for t in (self.error, *self.masks.values()) if t is not None]
        for bags in self._bags().values():
            found += [bags.row_splits, bags.weights]
        for plan in self.distinct_plans():
            found += plan.tensors()
        return found

    def with_tensors(self, tensors: Iterable[tf.Tensor]) -> "Prepared":
        """Another batch of the same layer, whose plans have no routes.

        Args:
          tensors: those that `tensors` returned for it.
        """
        rest = iter(tensors)
        error = None if self.error is None else next(rest)
        masks = {column: next(rest) for column in self.masks}
        # The plans hold the distinct ones.
        no_signs = tf.zeros([0], tf.int64)
        bags = {
            key: Bags(no_signs, next(rest), next(rest)) for key in self._bags()
        }
        plans = {
            plan: plan.with_tensors(rest) for plan in self.distinct_plans()
        }
        return Prepared(
            [Part(part.key, bags[part.key]) for part in self.parts],
            [plans[plan] for plan in self.plans],
            masks,
            error,
        )

    def _bags(self) -> dict[typing.Any, Bags]:
        return {part.key: part.bags for part in self.parts}
