# SPDX-License-Identifier: Apache-2.0
"""Starts a cluster, prints its processes and waits to be killed."""

import time

from tf_ext import distribute

with distribute.local_cluster(workers=1, ps=1) as cluster:
    print(cluster.pid("worker", 0), cluster.pid("ps", 0), flush=True)
    time.sleep(3600)
