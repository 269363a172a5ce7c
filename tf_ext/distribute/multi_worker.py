# SPDX-License-Identifier: Apache-2.0
"""MultiWorkerMirroredStrategy on workers that were checked."""

import os
import re
import typing

import tensorflow as tf

from tf_ext._checks import is_finite, is_int, refuse
from tf_ext._compat.clusters import configure_coordination, keeping_sigterm
from tf_ext._compat.grpc_options import (
    KEEPALIVE_TIMEOUT_SECONDS,
    set_server_patience,
)
from tf_ext._version import __version__
from tf_ext.distribute import (
    coordination,
    cpu_limit,
    peers,
    process_1,
    this_task,
)
from tf_ext.distribute.addresses import (
    named,
    split_address,
    task_addresses,
    task_name,
)
from tf_ext.distribute.cluster import (
    MULTI_WORKER,
    Task,
    check_cluster_dict,
    task_from_environment,
)
from tf_ext.distribute.collectives import Collectives, collectives_of
from tf_ext.distribute.errors import naming_lost_tasks
from tf_ext.distribute.ports import why_not_free

_logger = this_task.logger(__name__)
_NAME = "multi_worker_strategy"  # As errors call it.
_JOBS = ("chief", "worker")  # In the order of ranks.
_MISSING = re.compile(r"timed out task names:\s*((?:/job:\S+\s+)+)")
_TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


def multi_worker_strategy(
    cluster: dict[str, list[str]] | None = None,
    task: int | None = None,
    timeout_seconds: float = 60.0,
    heartbeat_timeout_seconds: float = 30.0,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Connects to the workers of a cluster, which train synchronously.

    Every worker runs this program and calls this, before anything else of
    TensorFlow that makes tensors or lists logical devices. The call returns
    when all workers have called it. Without a cluster, or with a cluster of
    one task, the strategy is that of this process alone.

    Args:
      cluster: dict of "worker" to a list of "host:port", and possibly of
        "chief" to a list of one address, which is then the first worker. None:
        the environment variable `TF_CONFIG`; where that is not set, there is no
        other worker.
      task: int, with `cluster`: which task this process is, counted from 0
        over the chief, if there is one, and the workers.
      timeout_seconds: float, how long workers wait for each other. Python
        does not see an interrupt (Ctrl-C) meanwhile. TensorFlow 2.18 does
        not keep to it, and waits up to an hour.
      heartbeat_timeout_seconds: float, after how long without a heartbeat a
        worker counts as lost, and after how long without an answer to another
        worker. A worker that was killed is often noticed earlier.

    Returns:
      A `tf.distribute.MultiWorkerMirroredStrategy`.

    Raises:
      ValueError: `cluster` or `TF_CONFIG` is not a cluster of workers, a
        time-out is not positive, or this process has several GPUs.
      RuntimeError: TensorFlow has begun already, this worker's address cannot
        be listened at, or workers run different versions of tf_ext or
        TensorFlow.
      TimeoutError: workers have not started in time; the message names them.
      WorkerLostError: a worker has ended since it connected.

    Example:
    ```python
    strategy = tf_ext.distribute.multi_worker_strategy()  # by TF_CONFIG
    with strategy.scope():
        model = build_model()
    ```
    """
    for name, seconds in (
        ("timeout_seconds", timeout_seconds),
        ("heartbeat_timeout_seconds", heartbeat_timeout_seconds),
    ):
        if not is_finite(seconds) or seconds <= 0:
            refuse(_NAME, name, "a positive number of seconds", seconds)
    own = _own_task(cluster, task)
    _check_gpus()
    process_1.end_on_sigterm()
    cpu_limit.limit_threads()
    tasks = {} if own is None else task_addresses(own.cluster, _JOBS)
    if own is None or len(tasks) < 2:
        return tf.distribute.MultiWorkerMirroredStrategy(_resolver(None))
    with this_task.connecting(own.job, own.index):
        _check_begin(own)
        timed = configure_coordination(
            own.cluster,
            coordination.leader(own.cluster),
            timeout_seconds,
            heartbeat_timeout_seconds,
        )
        if not timed:
            _logger.warning(
                "TensorFlow %s waits up to an hour for workers that do not "
                "start, whatever the `timeout_seconds` of %s. Use TensorFlow "
                "2.19 or later.",
                tf.__version__,
                _NAME,
            )
        strategy = _connect(own, timeout_seconds)
        own_name = task_name(own.job, own.index)
        # TCP may take as long again as an outage to notice its end.
        set_server_patience(
            split_address(tasks[own_name])[1],
            max(2 * heartbeat_timeout_seconds, KEEPALIVE_TIMEOUT_SECONDS),
        )
        others = {name: a for name, a in tasks.items() if name != own_name}
        peers.watch(strategy, others, heartbeat_timeout_seconds)
        with naming_lost_tasks(strategy):
            _check_versions(strategy, tasks)
    return strategy


def _own_task(
    cluster: dict[str, list[str]] | None, index: int | None
) -> Task | None:
    """The `Task` of this process, or None if it is alone."""
    if cluster is None:
        if index is not None:
            refuse(
                _NAME,
                "task",
                "None without `cluster`, where the task is that of TF_CONFIG",
                index,
            )
        if not os.environ.get("TF_CONFIG"):
            return None
        return task_from_environment(MULTI_WORKER)
    cluster = check_cluster_dict(
        cluster, f"Argument `cluster` of {_NAME}", MULTI_WORKER
    )
    tasks = [
        Task(cluster, job, number)
        for job in _JOBS
        for number in range(len(cluster.get(job, ())))
    ]
    if index is None and len(tasks) == 1:
        return tasks[0]
    if index is None or not is_int(index) or not 0 <= index < len(tasks):
        refuse(
            _NAME,
            "task",
            f"an integer from 0 to {len(tasks) - 1}, the number of this "
            "process in the cluster",
            index,
        )
    return tasks[index]


def _check_gpus() -> None:
    gpus = tf.config.get_visible_devices("GPU")
    count = sum(
        len(tf.config.get_logical_device_configuration(gpu) or [gpu])
        for gpu in gpus
    )
    if count > 1:
        raise ValueError(
            "A worker of multi_worker_strategy must have one replica, so at "
            f"most one GPU. Received: {count} GPUs. Start one worker per GPU, "
            "and give each its own by CUDA_VISIBLE_DEVICES or "
            "tf.config.set_visible_devices."
        )


def _check_begin(own: Task) -> None:
    if _has_begun():
        raise RuntimeError(
            "multi_worker_strategy must be called before TensorFlow makes its "
            "first tensor, variable or random generator, or lists its logical "
            "devices, and once in a process. Call it first in the program."
        )
    address = own.cluster[own.job][own.index]
    reason = why_not_free(split_address(address)[1])
    if reason is not None:
        raise RuntimeError(
            f"{task_name(own.job, own.index)} cannot listen at {address}: "
            f"{reason}. Is another process using the port?"
        )


def _has_begun() -> bool:
    """Whether TensorFlow's devices are fixed."""
    threading = tf.config.threading
    threads = threading.get_inter_op_parallelism_threads()
    try:
        threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    threading.set_inter_op_parallelism_threads(threads)
    return False


def _resolver(
    own: Task | None,
) -> tf.distribute.cluster_resolver.ClusterResolver:
    accelerators = {"GPU": len(tf.config.get_visible_devices("GPU"))}
    if own is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({}), num_accelerators=accelerators
        )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(own.cluster),
        task_type=own.job,
        task_id=own.index,
        num_accelerators=accelerators,
        rpc_layer="grpc",
    )


def _connect(
    own: Task, timeout_seconds: float
) -> tf.distribute.MultiWorkerMirroredStrategy:
    try:
        with keeping_sigterm():
            return tf.distribute.MultiWorkerMirroredStrategy(_resolver(own))
    except tf.errors.DeadlineExceededError as error:
        tasks = task_addresses(own.cluster, _JOBS)
        told = _MISSING.search(error.message)
        # No error names the leader, which counts the others.
        found = (
            _TASK.findall(told.group(1))
            if told
            else [coordination.leader(own.cluster)]
        )
        missing = {(name := task_name(*one)): tasks[name] for one in found}
        raise TimeoutError(
            f"{len(missing)} of the {len(tasks)} workers did not start within "
            f"{timeout_seconds:g} s: {named(missing)}. Start this program "
            "there too, with its own task in TF_CONFIG, and make sure that all "
            "machines reach its address."
        ) from error


def _check_versions(
    strategy: tf.distribute.Strategy, tasks: dict[str, str]
) -> None:
    own = f"{__version__} {tf.__version__}"
    # There are several workers.
    workers = typing.cast(Collectives, collectives_of(strategy))
    gathered = workers.gather_bytes(own.encode())
    for (task, address), text in zip(tasks.items(), gathered, strict=True):
        has = text.decode()
        if has != own:
            versions = [
                "tf_ext {} with TensorFlow {}".format(*text.split(" "))
                for text in (has, own)
            ]
            raise RuntimeError(
                f"{task} at {address} runs {versions[0]}, but this worker runs "
                f"{versions[1]}. All workers need the same versions."
            )
