# SPDX-License-Identifier: Apache-2.0
"""Recovery after the loss of a parameter server."""

import gc
import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf_ext._checks import check_count
from tf_ext.distribute import coordinators, this_task
from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import ServerLostError, naming_lost_tasks
from tf_ext.distribute.handshake import wait_until_answering
from tf_ext.distribute.strategy import parameter_server_strategy

_logger = this_task.logger(__name__)


def run_with_recovery(
    train: Callable[[tf.distribute.Strategy], typing.Any],
    make_strategy: Callable[[], tf.distribute.Strategy] | None = None,
    max_restarts: int = 3,
    timeout_seconds: float = 600.0,
) -> typing.Any:
    """Trains, and restarts from the last checkpoint if a server is lost.

    The state of a lost parameter server is gone, and the other servers are
    ahead of the last checkpoint. So everything is made again: the strategy,
    which connects to the cluster as it then is, and what `train` makes under
    it.

    The cluster manager has to restart the lost server; this function waits for
    it.

    Args:
      train: function of the strategy, which builds the model and the dataset
        in `strategy.scope()`, restores the last checkpoint if there is one,
        and trains, saving checkpoints. No variable, table or `tf.function` of
        an earlier call may be used again.
      make_strategy: function without arguments that connects to the cluster.
        None: `parameter_server_strategy`, by `TF_CONFIG`.
      max_restarts: int, how many losses are recovered from.
      timeout_seconds: float, how long to wait for all tasks to answer
        again.

    Returns:
      What `train` returned.

    Raises:
      ServerLostError: a server was lost for the `max_restarts` + 1st time.
      TimeoutError: after a loss, tasks did not come back in time; the message
        names them.

    Example:
    ```python
    def train(strategy):
        with strategy.scope():
            model = build_model()
        checkpoint = tf.train.Checkpoint(model=model)
        manager = tf.train.CheckpointManager(checkpoint, folder, 3)
        checkpoint.restore(manager.latest_checkpoint)
        ...

    tf_ext.distribute.run_with_recovery(train)
    ```
    """
    check_count("run_with_recovery", "max_restarts", max_restarts, least=0)
    make_strategy = make_strategy or parameter_server_strategy
    restarts_left = max_restarts
    while True:
        strategy = make_strategy()
        try:
            with naming_lost_tasks(strategy):
                return train(strategy)
        except ServerLostError as error:
            if restarts_left == 0:
                raise
            _logger.warning(
                "%s Waiting until they answer, to restart from the last "
                "checkpoint (at most %d more times).",
                str(error),  # Log records would keep the error's frames alive.
                restarts_left,
            )
        tasks = task_addresses(cluster_of(strategy))
        coordinators.release(strategy)
        # This ends its coordinator's threads, and frees the old model's memory
        # before the new one is made.
        del strategy
        gc.collect()
        _wait_for(tasks, timeout_seconds)
        _logger.warning("All tasks are back.")
        restarts_left -= 1


def _wait_for(tasks: Mapping[str, str], timeout_seconds: float) -> None:
    silent = wait_until_answering(tasks, timeout_seconds)
    if silent:
        raise TimeoutError(
            f"After {timeout_seconds:g} s tasks still do not answer: {silent}. "
            "Start them again with `python -m tf_ext.distribute.server`, and "
            "run this program again: it resumes from its last checkpoint."
        )
