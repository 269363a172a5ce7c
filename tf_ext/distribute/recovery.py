# SPDX-License-Identifier: Apache-2.0
"""Recovery after the loss of a parameter server, or of a step."""

import contextlib
import gc
import time
import typing
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_ext._checks import check_count
from tf_ext.distribute import coordinators, this_task
from tf_ext.distribute.addresses import named, task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import (
    ServerLostError,
    StepLostError,
    naming_lost_tasks,
)
from tf_ext.distribute.handshake import wait_until_answering
from tf_ext.distribute.strategy import parameter_server_strategy

_RETRY_SECONDS = 0.5
_COLLECT_RETRY_SECONDS = 0.01

_logger = this_task.logger(__name__)


def run_with_recovery(
    train: Callable[[tf.distribute.Strategy], typing.Any],
    make_strategy: Callable[[], tf.distribute.Strategy] | None = None,
    max_restarts: int = 3,
    timeout_seconds: float = 600.0,
) -> typing.Any:
    """Trains, and restarts from the last checkpoint if a server is lost.

    Or a worker, in `fit(retry_steps=False)`.

    The state of a lost parameter server is gone, and the other servers are
    ahead of the last checkpoint. So everything is made again: the strategy,
    which connects to the cluster as it then is, and what `train` makes under
    it.

    The cluster manager has to restart the lost task; this function waits for
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
        again, and to reach each other.

    Returns:
      What `train` returned.

    Raises:
      ServerLostError, StepLostError: a task was lost for the
        `max_restarts` + 1st time.
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
    deadline = 0.0
    while True:
        strategy = _connected(make_strategy, deadline)
        with contextlib.ExitStack() as stack:
            try:
                with naming_lost_tasks(strategy):
                    return train(strategy)
            except (ServerLostError, StepLostError) as error:
                if restarts_left == 0:
                    raise
                _logger.warning(
                    "%s Waiting until they answer, to restart from the last "
                    "checkpoint (at most %d more times).",
                    str(error),  # A log record would keep the error's frames.
                    restarts_left,
                )
                # The frames keep the old model until the coordinator has
                # ended: TensorFlow crashes where memory on tasks is freed
                # while it connects to them again, or in several threads.
                deadline = _wait_for_all(strategy, timeout_seconds)
                stack.enter_context(_no_automatic_collections())
            # This frees the old model before the new one is made.
            del strategy
            _collect(deadline)
        _logger.warning("All tasks are back.")
        restarts_left -= 1


class _Cycle:
    """An object that only a collection of garbage frees."""

    def __init__(self) -> None:
        self.own = self


def _collect(deadline: float) -> None:
    """Frees the garbage that there is now.

    `gc.collect` does nothing while another thread collects, and that thread may
    have begun before there was all of the garbage.
    """
    probe = weakref.ref(_Cycle())
    while True:
        gc.collect()
        if probe() is None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(
                "Another thread of this program does not end collecting "
                "garbage, so that the last model cannot be freed. Run this "
                "program again: it resumes from its last checkpoint."
            )
        time.sleep(_COLLECT_RETRY_SECONDS)


@contextlib.contextmanager
def _no_automatic_collections() -> Iterator[None]:
    """Has no thread collect garbage in a block, unless it asks for that."""
    were_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_enabled:
            gc.enable()


def _connected(
    make_strategy: Callable[[], tf.distribute.Strategy], deadline: float
) -> tf.distribute.Strategy:
    while True:
        try:
            return make_strategy()
        except TimeoutError as error:
            if time.monotonic() > deadline:
                raise
            _logger.warning("%s Trying again.", str(error))
        time.sleep(_RETRY_SECONDS)


def _wait_for_all(
    strategy: tf.distribute.Strategy, timeout_seconds: float
) -> float:
    """Waits for all tasks, and for the coordinator to end.

    Returns:
      float of `time.monotonic()`, when the time for a restart is over.
    """
    tasks = task_addresses(cluster_of(strategy))
    deadline = time.monotonic() + timeout_seconds
    thread = coordinators.release(strategy)
    silent = wait_until_answering(tasks, timeout_seconds)
    if silent:
        raise TimeoutError(
            f"After {timeout_seconds:g} s tasks still do not answer: {silent}. "
            "Start them again with `python -m tf_ext.distribute.server`, and "
            "run this program again: it resumes from its last checkpoint."
        )
    if thread is not None:
        thread.join(max(0.0, deadline - time.monotonic()))
    if thread is not None and thread.is_alive():
        raise TimeoutError(
            f"After {timeout_seconds:g} s TensorFlow still connects to the "
            f"workers and parameter servers, {named(tasks)}. Run this program "
            "again: it resumes from its last checkpoint."
        )
    return deadline
