# SPDX-License-Identifier: Apache-2.0
"""Tables with a shard on each worker of a synchronous strategy.

Every worker sends its distinct signs to their owners, with their numbers in
front (`sign_exchange`). One all-to-all collective sends the rows back, another
one the gradients to the owners, and with them what is `Carried`: the signs of
the next batch, for one. The owner of a row sums the gradients of all
workers, in the order of their ranks.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.distribute.collectives import Collectives
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import clock
from tf_ext.regimes.carried_words import Carried, deliver, to_floats
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.gradients import TableGradient, from_slices
from tf_ext.regimes.plan import PullPlan, PullRequest, Route, plan_pulls
from tf_ext.regimes.sign_exchange import SignExchange
from tf_ext.regimes.table_interface import Parts, Table


class _Sum(typing.NamedTuple):
    """What the owners of a table's signs sum.

    Attributes:
      table: SparseTable.
      dim: int, of a row.
      plan: PullPlan of the signs of all that comes.
      values: list of float32 `[n, dim]`, those that this worker sends.
      ways: list of Route, one each.
    """

    table: Table
    dim: int
    plan: PullPlan
    values: list[tf.Tensor]
    ways: Sequence[Route]


class AllToAll(Exchange):
    """Rows, or gradients, of all tables in one buffer for each worker.

    Args:
      workers: `tf_ext.distribute.collectives.Collectives`.
      strategy: the strategy of these workers.
    """

    def __init__(
        self,
        workers: Collectives,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        super().__init__(strategy)
        self.workers = workers

    def pull(
        self,
        requests: Sequence[PullRequest],
        error: tf.Tensor | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """As in the base class; steps do not overlap.

        Raises:
          tf.errors.InvalidArgumentError: on all workers, the error of one.
        """
        del after
        if requests[0].plan.route is None:
            exchange = self.sign_exchange(
                [(request.table, request.plan) for request in requests], error
            )
            exchange.send()
        ways = [request.plan.way for request in requests]
        width = ways[0].width
        if error is not None:
            raised = self._raise(error, ways[0].flag > 0)
            with tf.control_dependencies([raised]):
                width = tf.identity(width)
        dims = [request.table.dim for request in requests]
        statistics = [request.statistics for request in requests]
        shards = [request.table.rows.shards[0] for request in requests]
        received = self.workers.all_to_all(
            lambda width: exchange_ops.exchange_pull(
                [shard.resource_handle for shard in shards],
                [way.signs for way in ways],
                [way.counts for way in ways],
                [request.insert for request in requests],
                width,
                dims,
                statistics,
            ),
            tf.float32,
            width,
        )
        return exchange_ops.exchange_unpack(
            received,
            tf.stack([way.split_sizes for way in ways]),
            [dim + more for dim, more in zip(dims, statistics)],
        )

    def sign_exchange(
        self,
        plans: Sequence[tuple[Table, PullPlan]],
        error: tf.Tensor | None = None,
    ) -> SignExchange:
        """The exchange of signs that `pull` makes unless it has been made.

        Args:
          plans: list of `(table, PullPlan)`. Tables that read the same columns
            have one plan.
          error: as of `pull`.

        Returns:
          SignExchange, not yet sent.
        """
        floats: dict[PullPlan, int] = {}
        for table, plan in plans:
            floats[plan] = floats.get(plan, 0) + _floats_per_sign(table)
        return SignExchange(
            self.workers, list(floats), list(floats.values()), error
        )

    def merge(
        self, parts: Parts, carried: Sequence[Carried] = ()
    ) -> list[TableGradient]:
        """As in the base class, on the signs' owners.

        Returns:
          List of TableGradient: the signs that this worker owns, with the time
          of the first worker.
        """
        records = any(table.rows.records_seconds for table, _ in parts)
        if not records:
            return self._merge(parts, carried)
        present = Carried(tf.bitcast(clock.seconds(), tf.int32))
        gradients = self._merge(parts, [*carried, present])
        # The first worker's.
        time = tf.bitcast(present.gathered[0], tf.int64)
        return [gradient._replace(time=time) for gradient in gradients]

    def _merge(
        self, parts: Parts, carried: Sequence[Carried]
    ) -> list[TableGradient]:
        pieces = [
            from_slices(table, indices, tf.cast(values, tf.float32))
            for table, its_parts in parts
            for indices, values in its_parts
        ]
        pieces = self._with_ways(pieces)
        ways = [typing.cast(PullPlan, piece.plan).way for piece in pieces]
        sums = _sums(pieces, ways)
        sent = [(v, w) for one in sums for v, w in zip(one.values, one.ways)]
        values, its_ways = zip(*sent)
        received, offset = self._send_values(values, its_ways, carried)
        finite = tf.equal(tf.reduce_max(received[:, 0]), 0.0)
        summed = exchange_ops.exchange_sum(
            received,
            tf.stack([way.counts for _, way in sent]),
            [one.plan.inverse for one in sums],
            [one.plan.signs for one in sums],
            dims=[one.dim for one in sums for _ in one.values],
            sum_of=[i for i, one in enumerate(sums) for _ in one.values],
            offset=offset,
        )
        gradients: dict[Table, TableGradient] = {}
        for one, total in zip(sums, summed):
            if one.table in gradients:
                of_table = gradients[one.table]._replace(statistics=total)
            else:
                of_table = TableGradient(
                    one.table, one.plan.signs, total, finite
                )
            gradients[one.table] = of_table
        return list(gradients.values())

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of a float tensor over all workers."""
        return self.workers.sum([tensor])[0]

    def _raise(self, error: tf.Tensor, somewhere: tf.Tensor) -> tf.Tensor:
        """Raises the first worker's error, if there is one `somewhere`."""
        return self.workers.raise_error(
            tf.cond(
                somewhere,
                lambda: self.workers.first_error(error),
                lambda: "",
            )
        )

    def _with_ways(self, pieces: list[TableGradient]) -> list[TableGradient]:
        """Finds the ways of pieces without one, by sign and worker."""
        pieces = [
            piece
            if piece.plan is not None and piece.plan.route is not None
            else piece.summed_by_sign(self.workers.size)
            for piece in pieces
        ]
        lost = [
            (piece.table, piece.plan)
            for piece in pieces
            if piece.plan is not None and piece.plan.route is None
        ]
        if lost:
            self.sign_exchange(lost).send()
        return pieces

    def _send_values(
        self,
        values: Sequence[tf.Tensor],
        ways: Sequence[Route],
        carried: Sequence[Carried],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends the values of signs to where the signs went.

        Returns:
          `(received, offset)`: float32 `[workers, width]`, of each worker 1 if
          a value of its is not finite or 0, what is carried, and its
          values; int64 scalar, where the values begin.
        """
        size = self.workers.size
        # The owner's sums stay finite as well.
        limit = tf.float32.max / (size * len(values))
        beside = [one for one in carried if one.gathered is None]
        header = tf.concat([tf.zeros([size, 1]), to_floats(beside, size)], 1)
        offset = tf.shape(header, tf.int64)[1]
        # Signs that were sent together share one width, with a number.
        widths = {id(way.width): way.width for way in ways}
        received = self.workers.all_to_all(
            lambda width: exchange_ops.exchange_pack(
                values,
                [way.split_sizes for way in ways],
                header,
                width,
                limit,
            ),
            tf.float32,
            tf.add_n(list(widths.values())) + offset - 1,
        )
        before_errors = deliver(beside, received[:, 1:offset])
        with tf.control_dependencies(before_errors):
            return tf.identity(received), offset


def _floats_per_sign(table: Table) -> int:
    """The length of what a sign's gradient sends; a row is not longer."""
    return table.dim + table.statistics_width


def _sums(pieces: Sequence[TableGradient], ways: Sequence[Route]) -> list[_Sum]:
    """The sums of gradients, each followed by that of its statistics.

    Args:
      pieces: list of TableGradient.
      ways: list of Route, one each.

    Returns:
      List of _Sum.
    """
    of_table: dict[Table, list[tuple[TableGradient, Route]]] = {}
    for piece, way in zip(pieces, ways):
        of_table.setdefault(piece.table, []).append((piece, way))
    plans = plan_pulls(
        [
            tf.concat([way.signs for _, way in its], 0)
            for its in of_table.values()
        ],
        num_shards=1,
    )
    sums = []
    for (table, its), plan in zip(of_table.items(), plans):
        its_pieces, its_ways = zip(*its)
        values = [piece.values for piece in its_pieces]
        sums.append(_Sum(table, table.dim, plan, values, its_ways))
        width = table.statistics_width
        if width:
            values = [piece.statistics for piece in its_pieces]
            sums.append(_Sum(table, width, plan, values, its_ways))
    return sums
