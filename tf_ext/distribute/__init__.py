# SPDX-License-Identifier: Apache-2.0
"""Training on several machines.

With parameter servers, workers and servers are processes that run `python -m
tf_ext.distribute.server`, and the program that trains is the chief. Without
them, every worker runs the program that trains, and training is synchronous.
"""

from tf_ext.distribute.cluster import cluster_resolver
from tf_ext.distribute.errors import (
    ServerLostError,
    StepLostError,
    WorkerLostError,
    name_lost_tasks,
    naming_lost_tasks,
)
from tf_ext.distribute.local import LocalCluster, local_cluster
from tf_ext.distribute.local_workers import (
    LocalWorkers,
    LocalWorkersError,
    WorkerResult,
    run_local_workers,
)
from tf_ext.distribute.multi_worker import multi_worker_strategy
from tf_ext.distribute.recovery import run_with_recovery
from tf_ext.distribute.strategy import check_cluster, parameter_server_strategy

__all__ = [
    "LocalCluster",
    "LocalWorkers",
    "LocalWorkersError",
    "ServerLostError",
    "StepLostError",
    "WorkerLostError",
    "WorkerResult",
    "check_cluster",
    "cluster_resolver",
    "local_cluster",
    "multi_worker_strategy",
    "name_lost_tasks",
    "naming_lost_tasks",
    "parameter_server_strategy",
    "run_local_workers",
    "run_with_recovery",
]


def __dir__() -> list[str]:
    return sorted(__all__)
