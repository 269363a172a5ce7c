# SPDX-License-Identifier: Apache-2.0
"""Placement of tables and training steps, for each kind of strategy.

`regime_in_scope`, `regime_of_model` and `regime_of_tables` are the only
functions that ask which strategy is in force; everything else asks the regime
that they return.
"""

from tf_ext.regimes import shared_rows
from tf_ext.regimes.carried_words import Carried
from tf_ext.regimes.choice import (
    regime_in_scope,
    regime_of,
    regime_of_model,
    regime_of_tables,
)
from tf_ext.regimes.gradients import (
    TableGradient,
    check_finite,
    check_variables,
    nonfinite_error,
)
from tf_ext.regimes.local import local_regime
from tf_ext.regimes.plan import (
    PullPlan,
    PullRequest,
    Route,
    plan_pull,
    plan_pulls,
)
from tf_ext.regimes.regime import Regime
from tf_ext.regimes.replica_weights import (
    ReplicaWeight,
    library_step,
    losses_of_layers,
    weigh_computed_loss,
    weigh_own_loss,
)
from tf_ext.regimes.shard_ops import Hyperparameters
from tf_ext.regimes.sign_exchange import SignExchange
from tf_ext.regimes.step_context import (
    StepContext,
    Updates,
    current_step,
    step_with,
)
from tf_ext.regimes.synchronous import SynchronousRegime

__all__ = [
    "Carried",
    "Hyperparameters",
    "PullPlan",
    "PullRequest",
    "Regime",
    "ReplicaWeight",
    "Route",
    "SignExchange",
    "StepContext",
    "SynchronousRegime",
    "TableGradient",
    "Updates",
    "check_finite",
    "check_variables",
    "current_step",
    "library_step",
    "local_regime",
    "losses_of_layers",
    "nonfinite_error",
    "plan_pull",
    "plan_pulls",
    "regime_in_scope",
    "regime_of",
    "regime_of_model",
    "regime_of_tables",
    "shared_rows",
    "step_with",
    "weigh_computed_loss",
    "weigh_own_loss",
]
