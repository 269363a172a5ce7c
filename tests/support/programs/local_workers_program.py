# SPDX-License-Identifier: Apache-2.0
"""Starts workers that sleep, prints their processes and waits to be killed."""

import signal
import sys
import time

from tf_ext import distribute

_SLEEP = "import time; time.sleep(3600)"

with distribute.LocalWorkers([sys.executable, "-c", _SLEEP], 2) as workers:
    # A process that is stopped has to end, too.
    workers.send(1, signal.SIGSTOP)
    print(*workers.pids(), flush=True)
    time.sleep(3600)
