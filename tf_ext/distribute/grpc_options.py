"""Settings of gRPC that TensorFlow takes from the environment.

Two of them act in TensorFlow 2.21, in the process whose environment has them:

- `GRPC_FAIL_FAST`: whether a call to a task that is not there fails at once.
  With "use_caller" each call decides, so that the loss of a task is seen at
  once, and connecting waits for a task that is still starting.
- `TF_GRPC_DEFAULT_OPTIONS`: arguments of each connection that is opened. There
  are no keep-alive messages without it, and a machine that vanished without
  closing its connections (loss of power, of the network) is waited for for
  ever.

Messages need no setting: TensorFlow itself sets their limit to 2 GiB.
"""

import os

# A server closes connections that send keep-alive messages more often than
# every five minutes while no data moves, as during a long step.
_KEEPALIVE_SECONDS = 330
# Also how long data may stay without acknowledgement.
_KEEPALIVE_TIMEOUT_SECONDS = 30


def set_grpc_options():
    """Sets those that the environment does not have.

    They act on connections opened from then on, so that it is called before
    TensorFlow opens the first.

    Example:
      >>> import os
      >>> from tf_ext.distribute import grpc_options
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
