# SPDX-License-Identifier: Apache-2.0
"""Settings of gRPC: those that TensorFlow reads from the environment, and one.

Two of the former take effect in TensorFlow 2.18 to 2.21, in the process whose
environment has them:

- `GRPC_FAIL_FAST`: whether a call to a task that is not running fails at once.
  With "use_caller" each call decides, so that the loss of a task is noticed at
  once, and connecting waits for a task that is still starting.
- `TF_GRPC_DEFAULT_OPTIONS`: arguments of each connection that is opened. Keep-
  alive messages are off without it, and calls to a machine that disappeared
  without closing its connections (loss of power or network) wait for ever. With
  them it counts as lost after some six and a half minutes: one message after
  330 s of silence, and gRPC's 60 s for its answer.

Messages need no setting: TensorFlow itself sets their limit to 2 GiB.

They are settings of clients. A server of gRPC drops a connection when what it
has sent on it is not acknowledged for 20 s, and TensorFlow has no way to change
that. After an outage TCP tries again at growing intervals, so that one of 13 s
may already take longer. So `set_server_patience` sets it on the sockets.
"""

import os
import socket

from tf_ext._compat.sockets import use_sockets

# A server closes connections that send keep-alive messages more often than
# every five minutes while no data moves, as during a long step.
_KEEPALIVE_SECONDS = 330
# It also limits the wait for sent data to be acknowledged: with gRPC's default
# of 20 s a short network outage would count as the loss of a server.
KEEPALIVE_TIMEOUT_SECONDS = 60


def set_grpc_options():
    """Sets those settings that the environment does not have.

    They apply to connections opened from then on, so call it before TensorFlow
    opens the first.

    Seen in: TensorFlow 2.18 to 2.21.

    Example:
      >>> import os
      >>> from tf_ext._compat import grpc_options
      >>> grpc_options.set_grpc_options()
      >>> "GRPC_FAIL_FAST" in os.environ
      True
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    os.environ.setdefault(
        "TF_GRPC_DEFAULT_OPTIONS",
        f"grpc.keepalive_time_ms={_KEEPALIVE_SECONDS * 1000},"
        f"grpc.keepalive_timeout_ms={KEEPALIVE_TIMEOUT_SECONDS * 1000}",
    )


def set_server_patience(port, seconds=KEEPALIVE_TIMEOUT_SECONDS):
    """Sets how long the server of this process waits for acknowledgements.

    Connections that it accepts later inherit it from the socket that listens.

    Seen in: TensorFlow 2.18 to 2.21, on Linux.

    Args:
      port: int, the port at which the server listens.
      seconds: float.
    """

    def set_timeout(descriptor, connection):
        del descriptor
        if (
            connection.type == socket.SOCK_STREAM
            and connection.getsockname()[1] == port
        ):
            connection.setsockopt(
                socket.IPPROTO_TCP,
                socket.TCP_USER_TIMEOUT,
                round(1000 * seconds),
            )

    use_sockets(set_timeout)
