# SPDX-License-Identifier: Apache-2.0
"""What the graph of a tensor tells of it."""

import tensorflow as tf


def attached_to_graph(graph, key):
    """A dict of tf_ext that lives as long as a graph.

    TensorFlow passes nothing but tensors from a pull to its gradient, so the
    plan of a pull is kept beside its tensor.

    Seen in: TensorFlow 2.18 to 2.21, whose graphs take attributes.

    Args:
      graph: tf.Graph.
      key: string, which dict.

    Returns:
      dict.
    """
    name = f"_tf_ext_{key}"
    kept = getattr(graph, name, None)
    if kept is None:
        kept = {}
        setattr(graph, name, kept)
    return kept


def is_identity(tensor, name):
    """Whether a tensor was made by `tf.identity(..., name=name)`.

    TensorFlow's tapes pass the indices of slices on unchanged, and use other
    ops where they add slices up.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      tensor: a tensor; an eager one has no op.
      name: string, what the name begins with, without scopes.
    """
    if tf.executing_eagerly():
        return False
    operation = tensor.op
    return operation.type == "Identity" and operation.name.rsplit("/", 1)[
        -1
    ].startswith(name)


def source_of(tensor):
    """The symbolic tensor that a tensor equals, past any `tf.identity`.

    Layers and tapes insert identities, which carry no information.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def in_other_function(graph):
    """Whether what is traced is kept by another tf.function than a graph's.

    Branches of tf.cond and bodies of loops are graphs, too, of a class of their
    own; they last as long as the graph that they are in.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      graph: FuncGraph, of the function that is being traced.
    """
    inner = tf.compat.v1.get_default_graph()
    while inner is not graph:
        if type(inner).__name__ == "FuncGraph":
            return True
        inner = inner.outer_graph
    return False
