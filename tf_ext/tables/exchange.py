"""Tables whose shards are in the workers of a synchronous strategy.

Every worker asks for its distinct signs and gets their rows by two all-to-all
collectives, whose sizes all of them have agreed on before; the gradients go
back by a third, to where the signs went. The owner of a row sums what comes
from all workers, in the order of their ranks.
"""

import collections

import tensorflow as tf

from tf_ext import ops
from tf_ext.tables.gradients import (
    TableGradient,
    from_one_pull,
    sum_by_sign,
    unique_signs_op,
)

_ROUTES = "_tf_ext_routes"

_Route = collections.namedtuple(
    "_Route", ["split_sizes", "counts", "signs", "width"]
)
_Route.__doc__ = """The way of some distinct signs to their owners.

split_sizes: int64 `[workers]`, how many went to each; counts: int64
`[workers]`, how many came from each; signs: int64 `[n]`, those that came;
width: int64 scalar, what was agreed on for the values of all that went along.
"""


class AllToAllTransport:
    """Signs, rows and gradients of all tables in one buffer for each worker.

    Args:
      collectives: `tf_ext.distribute.collectives.Collectives`.
    """

    # An error that is found on one worker is to be raised by `pull` on all.
    shares_errors = True

    def __init__(self, collectives):
        self._collectives = collectives

    def pull(self, requests, error=None):
        """Rows of each request's unique signs: a list of float32 `[u, dim]`.

        Args:
          requests: list of PullRequest.
          error: string scalar, what is wrong on this worker, or "".

        Raises:
          tf.errors.InvalidArgumentError: on all workers, the error of one.
        """
        uniques = {id(r.unique): r.unique for r in requests}
        floats = dict.fromkeys(uniques, 0)
        for request in requests:
            floats[id(request.unique)] += request.table.dim
        routes = self._send_signs(
            [(u.unique, u.split_sizes) for u in uniques.values()],
            list(floats.values()),
            error,
        )
        routes = dict(zip(uniques, routes))
        for key, unique in uniques.items():
            _remember(unique.unique, routes[key])
        ways = [routes[id(r.unique)] for r in requests]
        dims = [request.table.dim for request in requests]
        shards = [request.table.rows.shards[0] for request in requests]
        received = self._collectives.all_to_all(
            lambda width: ops.exchange_pull(
                [shard.resource_handle for shard in shards],
                [way.signs for way in ways],
                [way.counts for way in ways],
                [request.insert for request in requests],
                width,
                dims,
            ),
            tf.float32,
            ways[0].width,
        )
        return ops.exchange_unpack(
            received,
            tf.stack([way.split_sizes for way in ways]),
            dims,
        )

    def merge(self, parts):
        """One gradient a sign, of all workers, on the sign's owner.

        Args:
          parts: list of `(table, [(signs [n], values [n, dim]), ...])`.

        Returns:
          List of TableGradient: the signs that this worker owns.
        """
        pieces = [
            (table, signs, tf.cast(values, tf.float32))
            for table, its_parts in parts
            for signs, values in its_parts
        ]
        ways = [_remembered(signs) for _, signs, _ in pieces]
        pieces, ways = self._find_ways(pieces, ways)
        received = self._send_values([v for _, _, v in pieces], ways)
        finite = tf.equal(tf.reduce_max(received[:, 0]), 0.0)
        tables = [table for table, _ in parts]
        sum_of = [tables.index(table) for table, _, _ in pieces]
        uniques = [
            ops.unique_by_shard(
                tf.concat([w.signs for w, j in zip(ways, sum_of) if j == i], 0),
                1,
            )
            for i in range(len(tables))
        ]
        sums = ops.exchange_sum(
            received,
            tf.stack([way.counts for way in ways]),
            [unique.inverse for unique in uniques],
            [tf.size(unique.unique, tf.int64) for unique in uniques],
            dims=[table.dim for table, _, _ in pieces],
            sum_of=sum_of,
            offset=1,
        )
        return [
            TableGradient(table, unique.unique, summed, finite)
            for table, unique, summed in zip(tables, uniques, sums)
        ]

    def push(self, requests):
        """Updates this worker's rows; returns how many, a list of int64 `[]`.

        Args:
          requests: list of PushRequest of signs that this worker owns.
        """
        return [
            table.rows.shards[0].push(signs, gradients, hyperparameters, step)
            for table, signs, gradients, hyperparameters, step in requests
        ]

    def sum(self, tensor):
        """The sum of a float tensor over all workers."""
        return self._collectives.sum([tensor])[0]

    def _send_signs(self, signs, floats, error=None):
        """Sends distinct signs to their owners.

        Args:
          signs: list of `(signs [n] by worker, split_sizes [workers])`.
          floats: list of int, how many values go with each of those signs.
          error: string scalar or None.

        Returns:
          List of _Route.
        """
        count = len(signs)
        split_sizes = [sizes for _, sizes in signs]
        header = ops.exchange_header(
            split_sizes,
            floats,
            0 if error is None else tf.cast(error != "", tf.int64),
        )

        def send(wanted):
            return self._collectives.all_to_all(
                lambda width: ops.exchange_pack(
                    [values for values, _ in signs],
                    split_sizes,
                    header,
                    width,
                    all_or_none=True,
                ),
                tf.int64,
                wanted,
            )

        # As wide as was needed before, and some more. All workers know that,
        # though they may have traced this at different times.
        expected = self._collectives.remembered(
            ("signs", *floats), count + ops.HEADER_COLUMNS
        )
        received = send(expected.value)
        agreed = ops.exchange_agree(received, count)
        width = agreed.signs_width
        keep = expected.keep(
            tf.maximum(
                width + width // 8, expected.value - expected.value // 16
            )
        )
        # Before anything can be raised, which would leave it to chance.
        with tf.control_dependencies([keep]):
            width = tf.identity(width)
        if error is not None:
            raised = self._raise(error, agreed.flag > 0)
            with tf.control_dependencies([raised]):
                width = tf.identity(width)
        received = tf.cond(
            width <= tf.shape(received, tf.int64)[1],
            lambda: received,
            lambda: send(width),
        )
        arrived = ops.exchange_unpack(
            received,
            agreed.counts,
            [1] * count,
            offset=count + ops.HEADER_COLUMNS,
        )
        return [
            _Route(sizes, counts, part[:, 0], agreed.values_width)
            for sizes, counts, part in zip(
                split_sizes, tf.unstack(agreed.counts), arrived
            )
        ]

    def _raise(self, error, somewhere):
        """Raises the first worker's error, if there is one `somewhere`."""
        return ops.raise_error(
            tf.cond(
                somewhere,
                lambda: self._collectives.first_error(error),
                lambda: "",
            )
        )

    def _find_ways(self, pieces, ways):
        """Gives the pieces without a way their own, by sign and worker."""
        lost = [i for i, way in enumerate(ways) if way is None]
        if not lost:
            return pieces, ways
        pieces, ways = list(pieces), list(ways)
        split_sizes = []
        for i in lost:
            table, signs, values = pieces[i]
            signs, values, sizes = sum_by_sign(
                signs, values, self._collectives.size
            )
            pieces[i] = (table, signs, values)
            split_sizes.append(sizes)
        found = self._send_signs(
            [(pieces[i][1], sizes) for i, sizes in zip(lost, split_sizes)],
            [pieces[i][0].dim for i in lost],
        )
        for i, way in zip(lost, found):
            ways[i] = way
        return pieces, ways

    def _send_values(self, values, ways):
        """Sends values of signs after them.

        Returns:
          float32 `[workers, width]`: of each worker, 1 if a value of its is
          not finite or 0, and its values.
        """
        size = self._collectives.size
        # What the owner sums stays finite, too.
        limit = tf.float32.max / (size * len(values))
        # Those that went together share one width.
        widths = {id(way.width): way.width for way in ways}
        return self._collectives.all_to_all(
            lambda width: ops.exchange_pack(
                values,
                [way.split_sizes for way in ways],
                tf.zeros([size, 1]),
                width,
                limit,
            ),
            tf.float32,
            tf.add_n(list(widths.values())),
        )


def _remember(signs, route):
    """Keeps the way of a pull's signs for their gradients."""
    if tf.executing_eagerly():
        return
    routes = getattr(signs.graph, _ROUTES, None)
    if routes is None:
        routes = {}
        setattr(signs.graph, _ROUTES, routes)
    routes[signs.op] = route


def _remembered(signs):
    """The way of a gradient's signs if they are those of one pull, or None."""
    if not from_one_pull(signs):
        return None
    return getattr(signs.graph, _ROUTES, {}).get(unique_signs_op(signs))
