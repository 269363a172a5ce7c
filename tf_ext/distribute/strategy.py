"""ParameterServerStrategy on tasks that are there and fit together."""

import weakref

import tensorflow as tf

import tf_ext
from tf_ext import ops
from tf_ext.distribute.addresses import (
    task_addresses,
    wait_until_listening,
)
from tf_ext.distribute.cluster import cluster_of, cluster_resolver
from tf_ext.distribute.grpc_options import set_grpc_options

_checked = weakref.WeakSet()


def parameter_server_strategy(
    cluster=None, timeout_seconds=60.0, variable_partitioner=None
):
    """Connects to a cluster of workers and parameter servers.

    Settings of gRPC that the environment does not have are made first, see
    `tf_ext.distribute.grpc_options`; all tasks are checked afterwards, see
    `check_cluster`.

    Args:
      cluster: dict of "worker" and "ps", and perhaps "chief", to lists of
        "host:port". None: the environment variable `TF_CONFIG`.
      timeout_seconds: float, how long to wait for tasks that do not accept
        connections yet.
      variable_partitioner: as `tf.distribute.ParameterServerStrategy` takes
        it. Tables need none.

    Returns:
      A `tf.distribute.ParameterServerStrategy`.

    Raises:
      ValueError: `cluster` or `TF_CONFIG` is not a cluster.
      TimeoutError: tasks do not accept connections; the message names them.
      RuntimeError: a task runs other versions, or has no op library.

    Example:
    ```python
    strategy = tf_ext.distribute.parameter_server_strategy()
    with strategy.scope():
        model = build_model()
    ```
    """
    resolver = cluster_resolver(cluster)
    set_grpc_options()
    tasks = task_addresses(resolver.cluster_spec().as_dict())
    silent = wait_until_listening(tasks, timeout_seconds)
    if silent:
        names = ", ".join(f"{name} at {at}" for name, at in silent.items())
        raise TimeoutError(
            f"{len(silent)} of the {len(tasks)} workers and parameter servers "
            f"do not accept connections after {timeout_seconds:g} s: {names}. "
            "Start each with `python -m tf_ext.distribute.server`, and see "
            "that this machine reaches its address."
        )
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=variable_partitioner
    )
    check_cluster(strategy)
    return strategy


def check_cluster(strategy):
    """Refuses a cluster whose tasks cannot work together.

    Every worker and parameter server has to run this program's versions of
    tf_ext and of TensorFlow, with the op library loaded. A strategy that has
    passed is not checked again.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.

    Raises:
      RuntimeError: a task does not; the message names it.

    Example:
    ```python
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    tf_ext.distribute.check_cluster(strategy)
    ```
    """
    if strategy in _checked:
        return
    wanted = (tf_ext.__version__, tf.__version__)
    tasks = task_addresses(cluster_of(strategy))
    for task, address in tasks.items():
        found = _versions(task, address)
        for package, needed, has in zip(
            ("tf_ext", "TensorFlow"), wanted, found, strict=True
        ):
            if needed != has:
                raise RuntimeError(
                    f"{task} at {address} runs {package} {has}, but this "
                    f"program runs {package} {needed}. Install {package} "
                    f"{needed} there and start the task again: all tasks of "
                    "a cluster need the same versions."
                )
    _checked.add(strategy)


def _versions(task, address):
    try:
        with tf.init_scope(), tf.device(f"{task}/device:CPU:0"):
            return [version.decode() for version in ops.versions().numpy()]
    except tf.errors.NotFoundError as error:
        raise RuntimeError(
            f"{task} at {address} has not loaded the op library of tf_ext "
            f"{tf_ext.__version__}. Start it with `python -m "
            "tf_ext.distribute.server` of that version, or call "
            "tf_ext.ops.library() before its tf.distribute.Server is made. "
            f"TensorFlow says: {error.message}"
        ) from error
    except tf.errors.UnavailableError as error:
        raise RuntimeError(
            f"{task} at {address} does not answer. Start it again with "
            "`python -m tf_ext.distribute.server`. TensorFlow says: "
            f"{error.message}"
        ) from error
