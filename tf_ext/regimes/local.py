# SPDX-License-Identifier: Apache-2.0
"""One process: no strategy, or one with all replicas in this process."""

import tensorflow as tf

from tf_ext.distribute.cluster import strategy_name
from tf_ext.regimes.exchange import Exchange
from tf_ext.regimes.placement import Placement
from tf_ext.regimes.processes import Processes
from tf_ext.regimes.regime import Regime
from tf_ext.regimes.table_interface import ShardDevices

_FOLLOWED = (
    tf.distribute.MirroredStrategy,
    # With a single worker.
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


class LocalPlacement(Placement):
    """One shard of each table, in this process."""

    def shards(self) -> ShardDevices:
        """One shard, on the device in scope."""
        if self.strategy is not None and not isinstance(
            self.strategy, _FOLLOWED
        ):
            raise NotImplementedError(
                f"Tables do not work under {strategy_name(self.strategy)}: "
                "each process would train rows of its own. Use no strategy, "
                "tf.distribute.OneDeviceStrategy, MirroredStrategy, "
                "MultiWorkerMirroredStrategy or ParameterServerStrategy."
            )
        return ShardDevices([""])


def local_regime(strategy: tf.distribute.Strategy | None = None) -> Regime:
    """The regime of one process, whose replicas share its tables."""
    return Regime(
        "keras",
        strategy,
        LocalPlacement(strategy),
        Exchange(strategy),
        Processes(),
    )
