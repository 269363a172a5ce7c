# SPDX-License-Identifier: Apache-2.0
"""What is traced to be served by TensorFlow's ops alone: no shards."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext._batch_source import Lookup
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.placement import Placement
from tf_ext.regimes.plan import PullRequest
from tf_ext.regimes.processes import Processes
from tf_ext.regimes.regime import Regime


class StockExchange(Exchange):
    """Rows come from what was put in the tables' place.

    Args:
      lookup: as of `BatchSource`.
    """

    trains = False
    shares_rows = False

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self._lookup = lookup

    def pull(
        self,
        requests: Sequence[PullRequest],
        error: tf.Tensor | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Rows of each request's distinct signs; none is made."""
        del error, after
        return [
            self._lookup(table, plan.signs, statistics)
            for table, plan, _, statistics in requests
        ]


def stock_regime(lookup: Lookup) -> Regime:
    """The regime of what is traced with `lookup` in the tables' place."""
    return Regime(
        "keras", None, Placement(), StockExchange(lookup), Processes()
    )
