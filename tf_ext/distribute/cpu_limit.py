# SPDX-License-Identifier: Apache-2.0
"""The processors that this process may use, limits of containers included.

TensorFlow starts a thread for each processor of the machine. In a container
that may use few of them, these threads use up its share of a scheduling period
early, and the process then stands still until the next period.
"""

import contextlib
import math
import os

import tensorflow as tf

from tf_ext._compat.cgroups import cpu_quota
from tf_ext.distribute import this_task

# TensorFlow's own setting, which has priority.
THREADS = "TF_NUM_INTRAOP_THREADS"

_logger = this_task.logger(__name__)


def processors() -> int:
    """How many processors this process can keep busy, at least 1.

    Those of the machine that it may run on, or the limit of its control groups
    (`docker run --cpus`, `resources.limits.cpu` of Kubernetes), rounded up.
    """
    here = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return here if quota is None else max(1, min(here, math.ceil(quota)))


def limit_threads() -> None:
    """Has TensorFlow start as many threads as there are `processors`.

    Nothing changes without a limit, after TensorFlow has started its threads,
    and where the program or the environment has set their number.
    """
    threading = tf.config.threading
    count = processors()
    if (
        count >= len(os.sched_getaffinity(0))
        or os.environ.get(THREADS)
        or threading.get_intra_op_parallelism_threads()
    ):
        return
    with contextlib.suppress(RuntimeError):
        threading.set_intra_op_parallelism_threads(count)
        _logger.info(
            "TensorFlow uses %d threads, as the container may use that many "
            "processors; %s changes it.",
            count,
            THREADS,
        )
