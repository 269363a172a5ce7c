# SPDX-License-Identifier: Apache-2.0
"""Distinct signs on their way to the workers that own them."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext.distribute.collectives import Collectives
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes.plan import PullPlan, Route


class SignExchange:
    """Sends the distinct signs of plans to their owners, together.

    Args:
      workers: `tf_ext.distribute.collectives.Collectives`.
      plans: list of PullPlan, which get their `route`.
      floats: list of int, the number of values per sign of each plan.
      error: string scalar, the error of this worker, or ""; None where there
        cannot be one.

    Attributes:
      is_complete: bool, whether the plans have their routes.
    """

    def __init__(
        self,
        workers: Collectives,
        plans: Sequence[PullPlan],
        floats: Sequence[int],
        error: tf.Tensor | None = None,
    ) -> None:
        self._workers = workers
        self._plans = plans
        self._header = exchange_ops.exchange_header(
            [plan.split_sizes for plan in plans],
            floats,
            0 if error is None else tf.cast(error != "", tf.int64),
        )
        # As wide as the last one needed, and some more. All workers know that
        # width, though they may have traced this at different times.
        self._expected = workers.remembered(
            ("signs", *floats), len(plans) + exchange_ops.HEADER_COLUMNS
        )
        self.is_complete = False

    def words(self) -> tf.Tensor:
        """The signs for each worker, for those who send them themselves.

        Returns:
          int32 `[workers, n]`, n the same on all workers. If signs of a worker
          do not fit, it sends none yet.
        """
        packed = tf.bitcast(self._pack(self._expected.value), tf.int32)
        return tf.reshape(packed, [self._workers.size, -1])

    def take_words(self, gathered: tf.Tensor) -> list[tf.Tensor]:
        """Finds the routes, by a collective if signs did not fit.

        Args:
          gathered: int32 `[workers, n]`, row p from worker p's `words`.

        Returns:
          List of tensors that depend on that collective.
        """
        pairs = tf.reshape(gathered, [self._workers.size, -1, 2])
        self._complete(tf.bitcast(pairs, tf.int64))
        return [plan.way.flag for plan in self._plans]

    def send(self) -> None:
        """Sends the signs, by a collective."""
        self._complete(self._send(self._expected.value))

    def _complete(self, received: tf.Tensor) -> None:
        count = len(self._plans)
        agreed = exchange_ops.exchange_agree(received, count)
        width, expected = agreed.signs_width, self._expected.value
        keep = self._expected.keep(
            tf.maximum(width + width // 8, expected - expected // 16)
        )
        # Before anything can raise, so that it always runs.
        with tf.control_dependencies([keep]):
            width = tf.identity(width)
        received = tf.cond(
            width <= tf.shape(received, tf.int64)[1],
            lambda: received,
            lambda: self._send(width),
        )
        arrived = exchange_ops.exchange_unpack(
            received,
            agreed.counts,
            [1] * count,
            offset=count + exchange_ops.HEADER_COLUMNS,
            flat=True,
        )
        # An error must not find the other collective under way.
        with tf.control_dependencies(arrived):
            flag = tf.identity(agreed.flag)
        for plan, counts, part in zip(
            self._plans, tf.unstack(agreed.counts), arrived
        ):
            plan.route = Route(
                plan.split_sizes,
                counts,
                part,
                agreed.values_width,
                flag,
            )
        self.is_complete = True

    def _send(self, wanted: tf.Tensor) -> tf.Tensor:
        return self._workers.all_to_all(self._pack, tf.int64, wanted)

    def _pack(self, width: tf.Tensor) -> tf.Tensor:
        return exchange_ops.exchange_pack(
            [plan.signs for plan in self._plans],
            [plan.split_sizes for plan in self._plans],
            self._header,
            width,
            all_or_none=True,
        )
