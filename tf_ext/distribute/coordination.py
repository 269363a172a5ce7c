"""TensorFlow's coordination service, which notices workers that are lost.

The leader, which is the first task of the cluster, runs the service, and every
task sends it heartbeats. When those of a task stay away, the service tells the
others, whose collectives then fail; when the service does not answer, each
task sees that by its own heartbeat, with the same effect.
"""

import contextlib
import signal
import sys
import threading


def leader(cluster):
    """(job, index) of the task that runs the service.

    Args:
      cluster: dict of job -> list of "host:port".

    Example:
      >>> from tf_ext.distribute import coordination
      >>> coordination.leader({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})
      ('worker', 0)
    """
    return ("chief" if "chief" in cluster else "worker"), 0


def configure(cluster, register_timeout_seconds, heartbeat_timeout_seconds):
    """Sets the service up for the MultiWorkerMirroredStrategy made next.

    Args:
      cluster: dict of job -> list of "host:port".
      register_timeout_seconds: float, how long tasks wait for each other when
        they start.
      heartbeat_timeout_seconds: float, after how long without heartbeats a
        task is lost.
    """
    # The strategy sets the service up with defaults unless that has been done,
    # and TensorFlow 2.21 has no public way to do it: what it has sets no
    # time-outs (tf.experimental.dtensor), or comes before this one's defaults
    # and is overwritten by them (a ConfigProto).
    context = sys.modules["tensorflow.python.eager.context"].context()
    job, index = leader(cluster)
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{job}/replica:0/task:{index}",
        cluster_register_timeout_in_ms=round(1000 * register_timeout_seconds),
        heartbeat_timeout_in_ms=round(1000 * heartbeat_timeout_seconds),
    )
    settings = context.coordination_service
    # Otherwise the time-out does not act: tasks wait for a missing one for
    # ever.
    settings.cluster_register_with_barrier = True
    for job, addresses in cluster.items():
        settings.coordinated_job_list.add(name=job, num_tasks=len(addresses))


@contextlib.contextmanager
def keeping_sigterm():
    """Gives SIGTERM back what it did before.

    The service's client takes the signal, and the process does not end by it
    any more. In another thread than the main one nothing can be done.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and before is not None:
            signal.signal(signal.SIGTERM, before)
