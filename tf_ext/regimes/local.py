# SPDX-License-Identifier: Apache-2.0
"""One process: no strategy, or one with all replicas in this process."""

import tensorflow as tf

from tf_ext.regimes.regime import Regime
from tf_ext.regimes.table_interface import Placement

_FOLLOWED = (
    tf.distribute.MirroredStrategy,
    # With a single worker.
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


class LocalRegime(Regime):
    """One shard of each table, in this process."""

    @property
    def merges_replicas(self) -> bool:
        """Whether there is a strategy."""
        return self.strategy is not None

    def placement(self) -> Placement:
        """One shard, on the device in scope."""
        if self.strategy is not None and not isinstance(
            self.strategy, _FOLLOWED
        ):
            raise NotImplementedError(
                f"Tables do not work under {self.strategy_name}: each process "
                "would train rows of its own. Use no strategy, "
                "tf.distribute.OneDeviceStrategy, MirroredStrategy, "
                "MultiWorkerMirroredStrategy or ParameterServerStrategy."
            )
        return Placement([""])
