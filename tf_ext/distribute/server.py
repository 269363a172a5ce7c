# SPDX-License-Identifier: Apache-2.0
"""Runs one worker or parameter server: `python -m tf_ext.distribute.server`.

The task is taken from `TF_CONFIG`, or from the command line:

    python -m tf_ext.distribute.server --job=ps --task=0 \
        --cluster='{"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"],
                    "ps": ["10.0.0.3:2222"]}'

It logs one line when it listens, and ends with status 0 on SIGTERM or SIGINT:
at once on SIGINT; on SIGTERM when the chief has ended, which may be writing a
recovery point, but after `--grace_seconds` at the latest.
TensorFlow's server listens at its port on all interfaces, whatever the host of
its address: whoever reaches the port can run any code (SECURITY.md). The number
of threads is that of the processors that the container may use, or what
`TF_NUM_INTRAOP_THREADS` says. With `--metrics_port` it serves `/metrics` and
`/ready` over HTTP.
"""

import argparse
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext._checks import is_finite
from tf_ext._compat.grpc_options import (
    set_grpc_options,
    set_server_patience,
)
from tf_ext.distribute import cpu_limit, this_task
from tf_ext.distribute.addresses import is_listening, split_address
from tf_ext.distribute.cluster import (
    COORDINATOR,
    LISTENS,
    PORT_IN_USE_STATUS,
    Task,
    check_cluster_dict,
    check_task,
    parse_json,
    task_from_environment,
)
from tf_ext.distribute.handshake import problem
from tf_ext.distribute.metrics_server import LOOPBACK, MetricsServer
from tf_ext.distribute.ports import why_not_free
from tf_ext.ops import _library, process_ops

_logger = this_task.logger("tf_ext.distribute.server")

_USAGE_STATUS = 2  # As argparse ends programs.
# Kubernetes kills a process 30 s after SIGTERM.
_GRACE_SECONDS = 25.0
_POLL_SECONDS = 0.2
# A probe waits 1 s for an answer, unless it is told otherwise.
_OWN_ANSWER_SECONDS = 0.5


def main(arguments: Sequence[str] | None = None) -> typing.NoReturn:
    """Runs the task until a signal ends the process.

    The process ends with status 98 if a port is in use.

    Args:
      arguments: list of strings, the command line. None: this process's.

    Raises:
      SystemExit: the command line or `TF_CONFIG` is not a task (status 2).
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        task = _task(options)
        _check_metrics(options, task)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    this_task.set_connecting(task.job, task.index)
    chief = task.cluster[COORDINATOR][0]
    signal.signal(signal.SIGINT, lambda number, _: _stop(number))
    signal.signal(
        signal.SIGTERM,
        lambda number, _: _leave(number, chief, options.grace_seconds),
    )
    if options.metrics_port is not None:
        _serve_metrics(options.metrics_port, options.metrics_host, task)
    server = _start(task)  # noqa: F841 (it ends with its object)
    tf_ext_version, tensorflow_version = (
        version.decode() for version in process_ops.versions().numpy()
    )
    _logger.info(
        "%s %s, and at that port of all other addresses of this machine, "
        "without encryption or authentication (tf_ext %s, TensorFlow %s, "
        "process %d)",
        LISTENS,
        task.cluster[task.job][task.index],
        tf_ext_version,
        tensorflow_version,
        os.getpid(),
    )
    # It may read streams, whose messages are many objects of Python.
    gc.freeze()
    _handle_signals()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tf_ext.distribute.server",
        description="Runs one worker or parameter server of a cluster.",
    )
    parser.add_argument(
        "--cluster",
        help='JSON: {"chief": ["host:port"], "worker": ["host:port", ...], '
        '"ps": [...]}; without it the task is the one of TF_CONFIG',
    )
    parser.add_argument("--job", help="worker or ps")
    parser.add_argument("--task", help="which of the job's tasks, from 0")
    parser.add_argument(
        "--grace_seconds",
        type=_seconds,
        default=_GRACE_SECONDS,
        help="how long the task keeps running after SIGTERM while the chief "
        "runs, which may have got SIGTERM, too: %(default)g by default",
    )
    parser.add_argument(
        "--metrics_port",
        type=_port,
        help="serve /metrics and /ready over HTTP at this port",
    )
    parser.add_argument(
        "--metrics_host",
        help=f"the address to serve them at: {LOOPBACK} by default, 0.0.0.0 "
        "for all interfaces",
    )
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(
            f"must be a port, 1 to 65535. Received: {text}"
        )
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not is_finite(seconds) or seconds < 0:
        raise ValueError(text)  # argparse names the argument.
    return seconds


def _task(options: argparse.Namespace) -> Task:
    if options.cluster is not None:
        if options.job is None or options.task is None:
            raise ValueError(
                "--cluster must be given together with --job and --task. "
                f"Received: --job={options.job}, --task={options.task}"
            )
        cluster = check_cluster_dict(
            parse_json(options.cluster, "--cluster"), "--cluster"
        )
        job, index = options.job, options.task
    else:
        task = task_from_environment()
        cluster = task.cluster
        job = task.job if options.job is None else options.job
        index = task.index if options.task is None else options.task
    job, index = check_task(cluster, job, index, "The task to run")
    if job == COORDINATOR:
        raise ValueError(
            "The task to run must be of job 'worker' or 'ps': the 'chief' is "
            f"your own program that trains. Received: {job!r}"
        )
    return Task(cluster, job, index)


def _check_metrics(options: argparse.Namespace, task: Task) -> None:
    port, host = options.metrics_port, options.metrics_host
    if host is not None and port is None:
        raise ValueError(
            "--metrics_host must be given together with --metrics_port. "
            f"Received: --metrics_host={host}"
        )
    if port == _port_of(task):
        raise ValueError(
            "--metrics_port must be another port than the task's own. "
            f"Received: --metrics_port={port}"
        )


def _port_of(task: Task) -> int:
    return split_address(task.cluster[task.job][task.index])[1]


def _serve_metrics(port: int, host: str | None, task: Task) -> None:
    own = f"{LOOPBACK}:{_port_of(task)}"

    def why_not_ready() -> str | None:
        found = problem(own, _OWN_ANSWER_SECONDS)
        return None if found is None else f"the port of TensorFlow {found}"

    try:
        MetricsServer(port, LOOPBACK if host is None else host, why_not_ready)
    except (ModuleNotFoundError, ValueError) as error:
        _logger.error("%s", error)
        _end(_USAGE_STATUS)
    except RuntimeError as error:
        _logger.error("%s", error)
        _end(PORT_IN_USE_STATUS)


def _start(task: Task) -> tf.distribute.Server:
    set_grpc_options()
    # A server can run the ops registered in its process.
    _library.library()
    _check_port(task)
    # The chief compares it with its own.
    process_ops.set_task(json.dumps(task._asdict()))
    config = tf.compat.v1.ConfigProto()
    processors = cpu_limit.processors()
    if not os.environ.get(cpu_limit.THREADS):
        config.intra_op_parallelism_threads = processors
    # With few processors, steps of several workers wait for each other.
    config.inter_op_parallelism_threads = max(
        processors, len(task.cluster["worker"]) + 1
    )
    # A step waits for other tasks several times, while idle threads would use
    # CPU time to look for work.
    config.experimental.disable_thread_spinning = True
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(task.cluster),
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        _fail(task, error.message)
    set_server_patience(_port_of(task))
    return server


def _check_port(task: Task) -> None:
    reason = why_not_free(_port_of(task))
    if reason is not None:
        _fail(task, reason)


def _fail(task: Task, reason: str) -> typing.NoReturn:
    address = task.cluster[task.job][task.index]
    _logger.error(
        "Cannot listen at %s: %s. Is another process using the port?",
        address,
        reason,
    )
    _end(PORT_IN_USE_STATUS)


def _handle_signals() -> typing.NoReturn:
    """Has this thread call the handlers of signals, until one of them raises.

    The kernel may give a signal to a thread of TensorFlow, as that of a process
    that was stopped, which `signal.pause` in this thread would not notice.
    """
    noticing, notifying = socket.socketpair()
    with noticing, notifying:
        notifying.setblocking(False)
        before = signal.set_wakeup_fd(notifying.fileno())
        try:
            while True:
                noticing.recv(1)
        finally:
            signal.set_wakeup_fd(before)


def _leave(number: int, chief: str, grace_seconds: float) -> typing.NoReturn:
    """Ends the process when the chief needs it no longer."""
    signal.signal(number, signal.SIG_IGN)
    deadline = time.monotonic() + grace_seconds
    if grace_seconds and is_listening(chief):
        _logger.info(
            "Stays on %s until the chief at %s has ended, for %g s at most",
            signal.Signals(number).name,
            chief,
            grace_seconds,
        )
        while time.monotonic() < deadline and is_listening(chief):
            time.sleep(_POLL_SECONDS)
    _stop(number)


def _stop(number: int) -> typing.NoReturn:
    _logger.info("Ends on %s", signal.Signals(number).name)
    _end()


def _end(status: int = 0) -> typing.NoReturn:
    # A tf.distribute.Server cannot be stopped, and TensorFlow's threads can
    # keep a process that ends: they hold nothing to save.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
