"""Settings of gRPC that TensorFlow reads from the environment.

Two of them take effect in TensorFlow 2.21, in the process whose environment has
them:

- `GRPC_FAIL_FAST`: whether a call to a task that is not running fails at once.
  With "use_caller" each call decides, so that the loss of a task is noticed at
  once, and connecting waits for a task that is still starting.
- `TF_GRPC_DEFAULT_OPTIONS`: arguments of each connection that is opened. Keep-
  alive messages are off without it, and calls to a machine that disappeared
  without closing its connections (loss of power or network) wait for ever. With
  them it counts as lost after some six and a half minutes: one message after
  330 s of silence, and gRPC's 60 s for its answer.

Messages need no setting: TensorFlow itself sets their limit to 2 GiB.
"""

import os

# A server closes connections that send keep-alive messages more often than
# every five minutes while no data moves, as during a long step.
_KEEPALIVE_SECONDS = 330
# It also limits the wait for sent data to be acknowledged: with gRPC's default
# of 20 s a short network outage would count as the loss of a server.
_KEEPALIVE_TIMEOUT_SECONDS = 60


def set_grpc_options():
    """Sets those settings that the environment does not have.

    They apply to connections opened from then on, so call it before TensorFlow
    opens the first.

    Seen in: TensorFlow 2.21.

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
        f"grpc.keepalive_timeout_ms={_KEEPALIVE_TIMEOUT_SECONDS * 1000}",
    )
