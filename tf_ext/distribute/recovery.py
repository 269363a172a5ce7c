"""Going on after a parameter server was lost."""

import gc
import logging

from tf_ext.distribute import coordinators
from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import ServerLostError, naming_lost_server
from tf_ext.distribute.handshake import wait_until_answering
from tf_ext.distribute.strategy import parameter_server_strategy

_logger = logging.getLogger(__name__)


def run_with_recovery(
    train, make_strategy=None, max_restarts=3, timeout_seconds=600.0
):
    """Trains, and begins again from the last checkpoint if a server is lost.

    What a lost parameter server held is gone, and the other servers are ahead
    of the last checkpoint. So all is made anew: a strategy, which connects to
    the cluster as it is then, and what `train` makes under it.

    The lost server has to be restarted by whatever runs the cluster; here it
    is waited for.

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
    make_strategy = make_strategy or parameter_server_strategy
    for restarts_left in range(max_restarts, -1, -1):
        strategy = make_strategy()
        try:
            with naming_lost_server(strategy):
                return train(strategy)
        except ServerLostError as error:
            if restarts_left == 0:
                raise
            _logger.warning(
                "%s Waiting for it to be back, to begin again from the last "
                "checkpoint (%d more times at most).",
                str(error),  # Records of logs would keep its frames.
                restarts_left,
            )
        tasks = task_addresses(cluster_of(strategy))
        coordinators.release(strategy)
        # Its coordinator's threads end with it, and the old model's memory
        # should not be there beside the new one's.
        del strategy
        gc.collect()
        _wait_for(tasks, timeout_seconds)
        _logger.warning("All tasks are back.")
    raise ValueError(f"max_restarts must be at least 0, but is {max_restarts}.")


def _wait_for(tasks, timeout_seconds):
    silent = wait_until_answering(tasks, timeout_seconds)
    if silent:
        raise TimeoutError(
            f"After {timeout_seconds:g} s tasks still do not answer: {silent}. "
            "Start them again with `python -m tf_ext.distribute.server`, and "
            "run this program again: it goes on from its last checkpoint."
        )
