# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's coordination service, which notices workers that are lost.

The leader, which is the first task of the cluster, runs the service, and every
task sends it heartbeats. When a task's heartbeats stop, the service tells the
others, whose collectives then fail; when the service itself does not answer,
each task notices by its own heartbeat, with the same effect.
"""

from collections.abc import Collection


def leader(cluster: Collection[str]) -> tuple[str, int]:
    """(job, index) of the task that runs the service.

    Args:
      cluster: dict of job -> list of "host:port".

    Example:
      >>> from tf_ext.distribute import coordination
      >>> coordination.leader({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})
      ('worker', 0)
    """
    return ("chief" if "chief" in cluster else "worker"), 0
