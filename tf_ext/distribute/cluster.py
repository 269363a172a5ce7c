"""The tasks of a cluster: read, checked, and as a cluster resolver."""

import json
import os
import types
import typing

import tensorflow as tf

from tf_ext.distribute.addresses import split_address

COORDINATOR = "chief"
# What a server tells whoever started it: by its log, and by its exit status.
LISTENS = "listens at"
PORT_IN_USE_STATUS = 98


class Form(typing.NamedTuple):
    """What a cluster of some strategy has to look like.

    Attributes:
      text: string, the form in words.
      required: the jobs that it must have.
      optional: the jobs that it may have.
      ignored: dict of job -> a sentence that says what a program of the job
        does instead of being part of the cluster.
      refused: dict of job -> a sentence that says why it may not be there.
    """

    text: str
    required: tuple
    optional: tuple = ()
    ignored: dict = types.MappingProxyType({})
    refused: dict = types.MappingProxyType({})


PARAMETER_SERVERS = Form(
    '{"chief": ["host:port"], "worker": ["host:port", ...], '
    '"ps": ["host:port", ...]}',
    required=(COORDINATOR, "worker", "ps"),
    ignored={
        "evaluator": "An evaluator is no part of the cluster, and no server: "
        "it is a program that makes the model without a strategy, waits for "
        "checkpoints or recovery points and evaluates each. Run it without "
        "tf_ext.distribute.",
    },
)

MULTI_WORKER = Form(
    '{"worker": ["host:port", ...]}',
    required=("worker",),
    optional=(COORDINATOR,),
    refused={
        "ps": "Workers that train in step share the tables among themselves, "
        "and their collectives do not start where there are also parameter "
        "servers.",
        "evaluator": "Run it as a program of its own, without TF_CONFIG.",
    },
)


class Task(typing.NamedTuple):
    """One task of a cluster.

    Attributes:
      cluster: dict of job -> list of "host:port".
      job: string, "chief", "worker" or "ps".
      index: int, which of the job's tasks.
    """

    cluster: dict
    job: str
    index: int


def cluster_resolver(cluster=None):
    """The cluster as `tf.distribute.ParameterServerStrategy` takes it.

    Args:
      cluster: dict of "chief", "worker" and "ps" to lists of "host:port". The
        chief is this program: the others connect to it at its address. None:
        the environment variable `TF_CONFIG`, whose task must be the chief.

    Returns:
      A `tf.distribute.cluster_resolver.ClusterResolver`.

    Raises:
      ValueError: `cluster` or `TF_CONFIG` is not a cluster with one chief,
        workers and parameter servers, or `TF_CONFIG` says that this is not the
        chief.

    Example:
      >>> resolver = tf_ext.distribute.cluster_resolver(
      ...     {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"],
      ...      "ps": ["10.0.0.3:2222", "10.0.0.4:2222"]})
      >>> resolver.cluster_spec().num_tasks("ps")
      2
    """
    if cluster is None:
        task = task_from_environment()
        if task.job != COORDINATOR:
            raise ValueError(
                f"TF_CONFIG says that this is task {task.index} of job "
                f"'{task.job}', but the program that trains is the task 0 of "
                "job 'chief'. Run `python -m tf_ext.distribute.server` as "
                "worker and ps."
            )
        cluster = task.cluster
    else:
        cluster = check_cluster_dict(cluster, "cluster")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster),
        task_type=COORDINATOR,
        task_id=0,
        rpc_layer="grpc",
    )


def strategy_name(strategy):
    """The public name of a strategy's class."""
    # TensorFlow's own name of it is another one.
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return "MultiWorkerMirroredStrategy"
    return type(strategy).__name__.removesuffix("V2")


def is_parameter_server(strategy):
    """Whether it is a `tf.distribute.ParameterServerStrategy`."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def cluster_of(strategy):
    """The cluster that a strategy is connected to.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.

    Returns:
      dict of job -> list of "host:port".

    Raises:
      ValueError: the strategy has none.
    """
    # TensorFlow 2.21's public property is None for this very strategy.
    resolver = getattr(strategy, "cluster_resolver", None) or getattr(
        strategy, "_cluster_resolver", None
    )
    if resolver is None:
        raise ValueError(
            "strategy must be a tf.distribute.ParameterServerStrategy, but is "
            f"{strategy!r}."
        )
    return resolver.cluster_spec().as_dict()


def worker_tasks(strategy):
    """The workers of a `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
      strategy: the strategy.

    Returns:
      `([(job, index), ...], rank)`: all workers in the order of their ranks,
      and which of them this is. Without a cluster the list is empty.
    """
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict() if resolver else {}
    tasks = [
        (job, index)
        for job in (COORDINATOR, "worker")
        for index in range(len(cluster.get(job, ())))
    ]
    if not tasks:
        return [], 0
    return tasks, tasks.index((resolver.task_type, resolver.task_id))


def task_from_environment(form=PARAMETER_SERVERS):
    """The task that the environment variable `TF_CONFIG` describes.

    Args:
      form: the `Form` of the cluster.

    Returns:
      A `Task`.

    Raises:
      ValueError: it is not set, or does not describe one.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ValueError(
            "TF_CONFIG is not set and no cluster is given. Give one, as "
            f"{form.text}; or set TF_CONFIG to JSON of the form "
            '{"cluster": {...}, "task": {"type": "chief", "index": 0}}.'
        )
    config = parse_json(text, "TF_CONFIG")
    if not isinstance(config, dict) or not isinstance(config.get("task"), dict):
        raise ValueError(
            'TF_CONFIG must have the form {"cluster": {...}, "task": '
            f'{{"type": "chief", "index": 0}}}}, but it is {text}.'
        )
    cluster = check_cluster_dict(
        config.get("cluster"), "TF_CONFIG's cluster", form
    )
    job, index = config["task"].get("type"), config["task"].get("index", 0)
    if job in form.ignored:
        raise ValueError(
            f"TF_CONFIG says that this is an {job!r}. {form.ignored[job]}"
        )
    return Task(cluster, *check_task(cluster, job, index, "TF_CONFIG's task"))


def parse_json(text, name):
    """The value of a JSON text; errors call the text by `name`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error}): {text}") from error


def check_cluster_dict(cluster, name, form=PARAMETER_SERVERS):
    """A cluster as lists of strings.

    Args:
      cluster: what should be a dict of job -> list of "host:port".
      name: string, what errors call it.
      form: the `Form` that it must have.

    Returns:
      dict of job -> list of "host:port", without the jobs that are ignored.

    Raises:
      ValueError: it is another thing, has another job, misses one that is
        required, or has several chiefs or an address twice.
    """
    if isinstance(cluster, tf.train.ClusterSpec):
        cluster = cluster.as_dict()
    if not isinstance(cluster, dict):
        raise ValueError(f"{name} must be {form.text}, but is {cluster!r}.")
    cluster = {
        job: addresses
        for job, addresses in cluster.items()
        if job not in form.ignored
    }
    _check_jobs(cluster, name, form)
    for job, addresses in cluster.items():
        if not isinstance(addresses, (list, tuple)):
            raise ValueError(
                f"{name} must have a list of addresses for {job!r}, but has "
                f"{addresses!r}."
            )
        for address in addresses:
            _check_address(address, f"{name}, job {job!r},")
    for job in form.required:
        if not cluster.get(job):
            raise ValueError(
                f"{name} must have at least one {job!r} task, but is {cluster}."
            )
    every = [address for addresses in cluster.values() for address in addresses]
    for address in every:
        if every.count(address) > 1:
            raise ValueError(f"{name} has the address {address!r} twice.")
    if len(cluster.get(COORDINATOR, ())) > 1:
        raise ValueError(
            f"{name} must have one 'chief', but has {cluster[COORDINATOR]}."
        )
    return {
        job: list(addresses) for job, addresses in cluster.items() if addresses
    }


def _check_jobs(cluster, name, form):
    allowed = form.required + form.optional
    unknown = sorted(set(cluster) - set(allowed), key=str)
    if unknown:
        reason = form.refused.get(unknown[0], "")
        raise ValueError(
            f"{name} has the job {unknown[0]!r}; jobs are "
            f"{', '.join(map(repr, allowed))}.{reason and ' '}{reason}"
        )


def check_task(cluster, job, index, name):
    """(job, index) of a task that the cluster has.

    Args:
      cluster: dict of job -> list of "host:port".
      job: what should be one of its jobs.
      index: what should be the number of one of the job's tasks.
      name: string, what errors call the task.

    Raises:
      ValueError: the cluster has no such task.
    """
    tasks = {job: len(addresses) for job, addresses in cluster.items()}
    if not isinstance(job, str) or job not in tasks:
        raise ValueError(
            f"{name} has the type {job!r}; the cluster has "
            f"{', '.join(map(repr, tasks))}."
        )
    try:
        number = int(index)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < tasks[job]:
        raise ValueError(
            f"{name} has the index {index!r}; the {job!r} tasks of the cluster "
            f"have 0 to {tasks[job] - 1}."
        )
    return job, number


def _check_address(address, name):
    try:
        host, port = split_address(address)
    except (AttributeError, ValueError):
        host, port = "", 0
    if not host or not 0 < port < 65536:
        raise ValueError(
            f"{name} must have addresses 'host:port', but has {address!r}."
        )
