# SPDX-License-Identifier: Apache-2.0
"""A worker without the op library: python plain_server_program.py CLUSTER."""

import json
import sys

import tensorflow as tf

server = tf.distribute.Server(
    tf.train.ClusterSpec(json.loads(sys.argv[1])),
    job_name="worker",
    task_index=0,
    protocol="grpc",
)
server.join()
