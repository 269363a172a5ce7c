"""The op that lets the tensors between tasks travel together."""

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("Bundle", "BundleTransfers", "Unbundle"):
    tf.no_gradient(f"TfExt>{_op}")


def bundle_transfers(name=None):
    """Lets tensors between the tasks of a function travel together.

    To be called once while a `tf.function` is traced. Where it runs on several
    tasks, what one task sends to another without waiting for its answer is one
    message, instead of one for each tensor. Values that are in loops or depend
    on branches are sent one by one, and strings too. Elsewhere it does nothing.

    Args:
      name: optional name of the operation.

    Returns:
      The operation; None in eager mode.
    """
    return library().tf_ext_bundle_transfers(name=name)
