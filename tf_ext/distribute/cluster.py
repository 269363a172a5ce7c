# SPDX-License-Identifier: Apache-2.0
"""The tasks of a cluster: read, checked, and as a cluster resolver."""

import json
import os
import types
import typing
from collections.abc import Mapping

import tensorflow as tf

from tf_ext._compat.clusters import resolver_of
from tf_ext.distribute.addresses import split_address

COORDINATOR = "chief"
# How a server reports to the process that started it: log and exit status.
LISTENS = "Listens at"
PORT_IN_USE_STATUS = 98


class Form(typing.NamedTuple):
    """The form that the cluster of a strategy must have.

    Attributes:
      text: string, the form in words.
      required: the jobs that it must have.
      optional: the jobs that it may have.
      ignored: dict of job -> a sentence that says what a program of the job
        does instead of being part of the cluster.
      refused: dict of job -> a sentence that says why it may not be there.
    """

    text: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    ignored: Mapping[str, str] = types.MappingProxyType({})
    refused: Mapping[str, str] = types.MappingProxyType({})


_IGNORED = {
    "evaluator": "An evaluator is not a task of the cluster: it is a "
    "program that creates the model without a strategy and evaluates each new "
    "recovery point or checkpoint, as tf_ext.utils.SidecarEvaluator does. Run "
    "it without tf_ext.distribute.",
}

PARAMETER_SERVERS = Form(
    '{"chief": ["host:port"], "worker": ["host:port", ...], '
    '"ps": ["host:port", ...]}',
    required=(COORDINATOR, "worker", "ps"),
    ignored=_IGNORED,
)

MULTI_WORKER = Form(
    '{"worker": ["host:port", ...]}',
    required=("worker",),
    optional=(COORDINATOR,),
    ignored=_IGNORED,
    refused={
        "ps": "Synchronous workers hold the tables themselves, and their "
        "collectives do not start in a cluster with parameter servers.",
    },
)


class Task(typing.NamedTuple):
    """One task of a cluster.

    Attributes:
      cluster: dict of job -> list of "host:port".
      job: string, "chief", "worker" or "ps".
      index: int, the task's number in its job.
    """

    cluster: dict[str, list[str]]
    job: str
    index: int  # type: ignore[assignment]


def cluster_resolver(
    cluster: dict[str, list[str]] | None = None,
) -> tf.distribute.cluster_resolver.ClusterResolver:
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
                "TF_CONFIG's task must be task 0 of job 'chief', the program "
                f"that trains. Received: task {task.index} of job "
                f"{task.job!r}. Run `python -m tf_ext.distribute.server` as "
                "worker and ps."
            )
        cluster = task.cluster
    else:
        cluster = check_cluster_dict(
            cluster, "Argument `cluster` of cluster_resolver"
        )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster),
        task_type=COORDINATOR,
        task_id=0,
        rpc_layer="grpc",
    )


def strategy_name(strategy: tf.distribute.Strategy) -> str:
    """The public name of a strategy's class."""
    # Its class has another name inside TensorFlow.
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return "MultiWorkerMirroredStrategy"
    return type(strategy).__name__.removesuffix("V2")


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is a `tf.distribute.ParameterServerStrategy`."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def cluster_of(strategy: tf.distribute.Strategy) -> dict[str, list[str]]:
    """The cluster that a strategy is connected to.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.

    Returns:
      dict of job -> list of "host:port".

    Raises:
      ValueError: the strategy has none.
    """
    resolver = resolver_of(strategy)
    if resolver is None:
        raise ValueError(
            "Argument `strategy` must be a "
            "tf.distribute.ParameterServerStrategy. Received: "
            f"strategy={strategy!r}"
        )
    return resolver.cluster_spec().as_dict()


def worker_tasks(
    strategy: tf.distribute.Strategy,
) -> tuple[list[tuple[str, int]], int]:
    """The workers of a `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
      strategy: the strategy.

    Returns:
      `([(job, index), ...], rank)`: all workers in the order of their ranks,
      and this worker's rank. Without a cluster the list is empty.
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


def task_from_environment(form: Form = PARAMETER_SERVERS) -> Task:
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
            f'{{"type": "chief", "index": 0}}}}. Received: {text}'
        )
    cluster = check_cluster_dict(
        config.get("cluster"), "TF_CONFIG's cluster", form
    )
    job, index = config["task"].get("type"), config["task"].get("index", 0)
    if job in form.ignored:
        raise ValueError(
            "TF_CONFIG's task must be a member of the cluster. Received: an "
            f"{job!r}. {form.ignored[job]}"
        )
    return Task(cluster, *check_task(cluster, job, index, "TF_CONFIG's task"))


def parse_json(text: str, name: str) -> typing.Any:
    """Parses JSON; errors call the text `name`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{name} must be JSON. Received: {text} ({error})"
        ) from error


def check_cluster_dict(
    cluster: typing.Any, name: str, form: Form = PARAMETER_SERVERS
) -> dict[str, list[str]]:
    """A cluster as lists of strings.

    Args:
      cluster: the value to check, a dict of job -> list of "host:port".
      name: string, what errors call it: where it comes from.
      form: the `Form` that it must have.

    Returns:
      dict of job -> list of "host:port", without the jobs that are ignored.

    Raises:
      ValueError: it is something else, has an unknown job, lacks a required
        one, or has several chiefs or an address twice.
    """
    if isinstance(cluster, tf.train.ClusterSpec):
        cluster = cluster.as_dict()
    if not isinstance(cluster, dict):
        raise ValueError(f"{name} must be {form.text}. Received: {cluster!r}")
    cluster = {
        job: addresses
        for job, addresses in cluster.items()
        if job not in form.ignored
    }
    _check_jobs(cluster, name, form)
    for job, addresses in cluster.items():
        if not isinstance(addresses, (list, tuple)):
            raise ValueError(
                f"{name} must have a list of addresses for job {job!r}. "
                f"Received: {addresses!r}"
            )
        for address in addresses:
            _check_address(address, job, name)
    for job in form.required:
        if not cluster.get(job):
            raise ValueError(
                f"{name} must have at least one task of job {job!r}. "
                f"Received: {cluster}"
            )
    every = [address for addresses in cluster.values() for address in addresses]
    for address in every:
        if every.count(address) > 1:
            raise ValueError(
                f"{name} must have each address once. Received: {address!r} "
                f"{every.count(address)} times"
            )
    if len(cluster.get(COORDINATOR, ())) > 1:
        raise ValueError(
            f"{name} must have one 'chief'. Received: {cluster[COORDINATOR]}"
        )
    return {
        job: list(addresses) for job, addresses in cluster.items() if addresses
    }


def _check_jobs(cluster: dict[str, typing.Any], name: str, form: Form) -> None:
    allowed = form.required + form.optional
    unknown = sorted(set(cluster) - set(allowed), key=str)
    if unknown:
        reason = form.refused.get(unknown[0], "")
        raise ValueError(
            f"{name} must have no jobs other than "
            f"{', '.join(map(repr, allowed))}. Received: {unknown[0]!r}"
            f"{reason and '. '}{reason}"
        )


def check_task(
    cluster: dict[str, list[str]], job: typing.Any, index: typing.Any, name: str
) -> tuple[str, int]:
    """(job, index) of a task that the cluster has.

    Args:
      cluster: dict of job -> list of "host:port".
      job: the value to check, one of its jobs.
      index: the value to check, the number of one of the job's tasks.
      name: string, what errors call the task.

    Raises:
      ValueError: the cluster has no such task.
    """
    tasks = {job: len(addresses) for job, addresses in cluster.items()}
    if not isinstance(job, str) or job not in tasks:
        raise ValueError(
            f"{name} must be of a job of the cluster: "
            f"{', '.join(map(repr, tasks))}. Received: {job!r}"
        )
    try:
        number = int(index)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < tasks[job]:
        raise ValueError(
            f"{name} must be one of the tasks 0 to {tasks[job] - 1} of job "
            f"{job!r}. Received: {index!r}"
        )
    return job, number


def _check_address(address: typing.Any, job: str, name: str) -> None:
    try:
        host, port = split_address(address)
    except (AttributeError, ValueError):
        host, port = "", 0
    if not host or not 0 < port < 65536:
        raise ValueError(
            f"{name} must have addresses of the form 'host:port'. Received: "
            f"{address!r} for job {job!r}"
        )
