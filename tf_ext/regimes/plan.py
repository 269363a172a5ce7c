# SPDX-License-Identifier: Apache-2.0
"""The plan of a pull, which its push uses again."""

import dataclasses
import typing
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_ext import _core, ops
from tf_ext._compat.graphs import attached_to_graph, is_identity, source_of
from tf_ext.ops.bags import bag_ops
from tf_ext.regimes import counted_signs
from tf_ext.regimes.table_interface import Table

_PLANS = "pull_plans"


class Route(typing.NamedTuple):
    """The way of some distinct signs to their owners.

    Attributes:
      split_sizes: int64 `[workers]`, how many went to each.
      counts: int64 `[workers]`, how many came from each.
      signs: int64 `[n]`, those that came.
      width: int64 scalar, what was agreed on for the values of all that went
        along.
      flag: int64 scalar, above 0 if a worker that sent some had an error.
    """

    split_sizes: tf.Tensor
    counts: tf.Tensor
    signs: tf.Tensor
    width: tf.Tensor
    flag: tf.Tensor


@dataclasses.dataclass(eq=False)
class PullPlan:
    """The distinct signs of a batch, and their shards.

    Attributes:
      signs: int64 `[u]`, distinct; by shard, unless `split_sizes` is None.
      inverse: int32 `[n]`, the index in `signs` of each sign of the batch.
      split_sizes: int64 `[num_shards]`, how many of `signs` each shard owns.
      num_shards: int, of the table.
      route: of a pull over synchronous workers, its Route.
      counts: int64 `[u]`, how often each of `signs` occurs in the batch.
      statistics: float32 `[u, 2]`, show and click of each of `signs`; None
        before `count`.
      counted: complex128 `[u]`, `signs` with `statistics` as of
        `counted_signs`; None before `count`.
      shared: int32 `[u]`, the index in `signs` of the row that each of them
        shares while it has none; None for tables without such rows.
    """

    signs: tf.Tensor
    inverse: tf.Tensor | None = None
    split_sizes: tf.Tensor | None = None
    num_shards: int | None = None
    route: Route | None = None
    counts: tf.Tensor | None = None
    statistics: tf.Tensor | None = None
    counted: tf.Tensor | None = None
    shared: tf.Tensor | None = None

    @property
    def way(self) -> Route:
        """The route, where one has been found."""
        return typing.cast(Route, self.route)

    def count(self, clicks: tf.Tensor | None = None) -> None:
        """Makes the statistics, for the tables that have some.

        Args:
          clicks: float32 `[n]`, the clicks of each sign of the batch. None: no
            click.
        """
        shows = tf.cast(self.counts, tf.float32)[:, tf.newaxis]
        summed = tf.zeros_like(shows)
        if clicks is not None:
            summed = ops.sum_segments(
                clicks[:, tf.newaxis],
                self.inverse,
                tf.size(self.signs, tf.int64),
            )
        self.statistics = tf.concat([shows, summed], 1)
        self.counted = counted_signs.join(self.signs, self.statistics)
        self.attach(self.counted)

    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the plan but its route, for `with_tensors`."""
        return [getattr(self, name) for name in self._names()]

    def with_tensors(self, tensors: Iterator[tf.Tensor]) -> "PullPlan":
        """Another plan of the same kind, without a route.

        Args:
          tensors: iterator, of what `tensors` returned for it.
        """
        own = {name: next(tensors) for name in self._names()}
        plan = dataclasses.replace(self, route=None, **own)
        plan.attach(plan.signs)
        if plan.counted is not None:
            plan.attach(plan.counted)
        return plan

    def _names(self) -> list[str]:
        """The names of the tensors that there are."""
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if tf.is_tensor(getattr(self, name))]

    def attach(self, indices: tf.Tensor) -> None:
        """Lets `plan_of` find the plan by the indices of a gradient."""
        if not tf.executing_eagerly():
            attached_to_graph(indices.graph, _PLANS)[_place(indices)] = self


class PullRequest(typing.NamedTuple):
    """Rows wanted.

    Attributes:
      table: SparseTable.
      plan: PullPlan for `table.rows.num_shards`.
      insert: bool or bool scalar tensor, whether absent signs are created.
      statistics: int, how many statistics follow the weights of a row: 0, or
        how many the table has.
    """

    table: Table
    plan: PullPlan
    insert: bool | tf.Tensor
    statistics: int = 0


def plan_pull(
    signs: tf.Tensor, num_shards: int, shared_rows: int = 0
) -> PullPlan:
    """The plan of a pull.

    Args:
      signs: int64 `[n]`, of a batch.
      num_shards: int, of the table.
      shared_rows: int, how many rows signs without one share; 0: none.

    Returns:
      PullPlan. In a graph, `plan_of` returns it for the pull's gradient.
    """
    [plan] = plan_pulls([signs], num_shards, shared_rows)
    return plan


def plan_pulls(
    signs: Sequence[tf.Tensor], num_shards: int, shared_rows: int = 0
) -> list[PullPlan]:
    """The plans of several pulls, as of `plan_pull`, by one op.

    Args:
      signs: list of int64 `[n]`, not empty.
      num_shards: int, of the tables.
      shared_rows: int, as of `plan_pull`.

    Returns:
      List of PullPlan.
    """
    plans = [
        PullPlan(unique, inverse, split_sizes, num_shards, counts=counts)
        for unique, counts, inverse, split_sizes in zip(
            *bag_ops.unique_by_shard_each(signs, num_shards)
        )
    ]
    if shared_rows:
        plans = _beside_shared(plans, num_shards, shared_rows)
    for plan in plans:
        plan.attach(plan.signs)
    return plans


def _beside_shared(
    plans: Sequence[PullPlan], num_shards: int, shared_rows: int
) -> list[PullPlan]:
    """Plans that pull the rows that their signs share, too."""
    found = []
    for plan, signs, _, inverse, split_sizes in zip(
        plans,
        *bag_ops.unique_by_shard_each(
            [
                tf.concat([p.signs, shared_signs(p.signs, shared_rows)], 0)
                for p in plans
            ],
            num_shards,
        ),
    ):
        own, shared = tf.split(inverse, 2)
        places, size = own[:, tf.newaxis], tf.size(signs)
        found.append(
            PullPlan(
                signs,
                tf.gather(own, plan.inverse),
                split_sizes,
                num_shards,
                counts=tf.scatter_nd(places, plan.counts, [size]),
                shared=tf.tensor_scatter_nd_update(
                    tf.range(size), places, shared
                ),
            )
        )
    return found


def shared_signs(signs: tf.Tensor, shared_rows: int) -> tf.Tensor:
    """The signs of the rows that signs share while they have none.

    Args:
      signs: int64 `[n]`.
      shared_rows: int, how many rows are shared, at least 1.

    Returns:
      int64 `[n]`; of a shared row its own sign.
    """
    first = _core.FIRST_SHARED_SIGN
    is_shared = (signs >= first) & (signs < first + shared_rows)
    rest = tf.math.floormod(signs, shared_rows)
    return tf.where(is_shared, signs, first + rest)


def plan_of(signs: tf.Tensor) -> PullPlan | None:
    """The plan of the pull that a gradient belongs to, by its signs.

    Only a `tf.IndexedSlices` gets from the tape to the optimizer, and it cannot
    hold the plan, so the plan is kept with the graph, by the output that the
    signs are.

    Args:
      signs: int64 `[n]`, the indices of a gradient; complex128 if statistics
        are with them.

    Returns:
      PullPlan; of nothing but `signs` if they come from one pull in another
      graph, and so are distinct. None if they may repeat, and in eager mode.
    """
    if not is_identity(signs, bag_ops.UNIQUE_SIGNS):
        return None
    plans = attached_to_graph(signs.graph, _PLANS)
    return plans.get(_place(source_of(signs))) or PullPlan(signs)


def _place(tensor: tf.Tensor) -> tuple[tf.Operation, int]:
    """Where in its graph a tensor is: its operation and the output of that."""
    return tensor.op, tensor.value_index
