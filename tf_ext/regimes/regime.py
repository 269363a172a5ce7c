# SPDX-License-Identifier: Apache-2.0
"""How tables train under a strategy: a Regime, of three pieces.

Everything that depends on the `tf.distribute` strategy is a method of one of
them. Each has a base class for one process that reaches all shards; a module
for each kind of strategy composes a Regime of these and its own. The layers
above ask the pieces; none of them checks which regime it has.
"""

import contextlib
import dataclasses
import typing

import tensorflow as tf

from tf_ext.distribute.cluster import strategy_name
from tf_ext.regimes.exchange import Exchange, num_replicas
from tf_ext.regimes.placement import Placement
from tf_ext.regimes.processes import Processes


@dataclasses.dataclass(frozen=True, eq=False)
class Regime:
    """How tables train under a strategy.

    Attributes:
      loop: string, who runs the steps of `fit`: "keras"; or a loop of tf_ext,
        "parameter_servers" or "synchronous".
      strategy: the tf.distribute strategy, or None.
      placement: Placement of rows and variables.
      exchange: Exchange of rows and gradients, the stages of a step.
      processes: Processes, and how they agree, fail and save together.
    """

    loop: str
    strategy: tf.distribute.Strategy | None
    placement: Placement
    exchange: Exchange
    processes: Processes

    @property
    def strategy_name(self) -> str:
        """The public name of the strategy."""
        return strategy_name(self.strategy)

    @property
    def num_replicas(self) -> int:
        """The number of replicas that compute a step together, an int."""
        return num_replicas(self.strategy)

    def scope(self) -> contextlib.AbstractContextManager[typing.Any]:
        """The strategy's scope, in which variables are made."""
        no_scope = contextlib.nullcontext()
        return no_scope if self.strategy is None else self.strategy.scope()
