# SPDX-License-Identifier: Apache-2.0
"""The ops that an exported model may contain."""

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

ALLOWED = frozenset(
    {
        "Add",
        "AddV2",
        "All",
        "AsString",
        "Assert",
        "Bitcast",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Bucketize",
        "Cast",
        "ConcatV2",
        "Const",
        "Cumsum",
        "DivNoNan",
        "Equal",
        "Fill",
        "Fingerprint",
        "FloorDiv",
        "GatherV2",
        "Greater",
        "GreaterEqual",
        "Identity",
        "IsNan",
        "LeftShift",
        "Less",
        "LessEqual",
        "LogicalAnd",
        "LogicalNot",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "NoOp",
        "NotEqual",
        "Pack",
        "Placeholder",
        "Prod",
        "RaggedRange",
        "Range",
        "RealDiv",
        "Reshape",
        "RightShift",
        "SelectV2",
        "Shape",
        "Size",
        "Sqrt",
        "StatelessIf",
        "StridedSlice",
        "StringJoin",
        "StringToHashBucketFast",
        "Sub",
        "Sum",
        "Transpose",
        "Unpack",
        "UnsortedSegmentMax",
        "UnsortedSegmentSum",
        "Where",
    }
)
"""The ops that this folder's modules use, all older than TensorFlow 2.0."""


def foreign_ops(graph: graph_pb2.GraphDef) -> list[str]:
    """Returns the ops of a graph and its functions that are not TensorFlow's.

    Args:
      graph: GraphDef.

    Returns:
      Sorted list of the names of ops of tf_ext and of other op libraries.

    Example:
      >>> from tf_ext.ops._stock.allowed import foreign_ops
      >>> @tf.function
      ... def distinct(signs):
      ...     return tf_ext.ops.unique_by_shard(signs).unique
      >>> signs = tf.TensorSpec([None], tf.int64)
      >>> graph = distinct.get_concrete_function(signs).graph
      >>> foreign_ops(graph.as_graph_def())
      ['TfExt>UniqueByShard']
    """
    functions = {function.signature.name for function in graph.library.function}
    names = {node.op for node in nodes_of(graph)} - functions
    # tf.raw_ops contains the ops of TensorFlow, but not those of op libraries.
    return sorted(name for name in names if not hasattr(tf.raw_ops, name))


def nodes_of(graph: graph_pb2.GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    """The nodes of a graph and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
