# SPDX-License-Identifier: Apache-2.0
"""Graphs of functions whose variables have become inputs."""

import importlib

import tensorflow as tf

_CONVERTER = "tensorflow.python.framework.convert_to_constants"


def with_variables_as_inputs(function):
    """The graph of a function without resources.

    Loops read variables, too, so only TensorFlow's own conversion to constants
    finds all places. The constants then become placeholders again.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      function: tf.ConcreteFunction.

    Returns:
      `(graph, inputs, outputs, variables)`: tf.compat.v1.GraphDef; the names of
      tensors, for `structured_input_signature` and for flat outputs; and for
      each of `function.variables` the name of a tensor, or None if it is not
      read.
    """
    captured = list(function.captured_inputs)
    inner = function.graph.inputs[len(function.graph.inputs) - len(captured) :]
    place_of = {
        id(outer): tensor.op.name
        for outer, tensor in zip(captured, inner, strict=True)
    }
    converter = importlib.import_module(_CONVERTER)
    frozen = converter.convert_variables_to_constants_v2(
        function, lower_control_flow=False
    )
    graph = frozen.graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    variables = []
    for variable in function.variables:
        node = nodes.get(place_of.get(id(variable.handle)))
        if node is None:
            variables.append(None)
            continue
        made = tf.compat.v1.NodeDef(name=node.name, op="Placeholder")
        made.attr["dtype"].type = variable.dtype.as_datatype_enum
        made.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
        node.CopyFrom(made)
        variables.append(f"{node.name}:0")
    return (
        graph,
        [one.name for one in frozen.inputs],
        [one.name for one in frozen.outputs],
        variables,
    )
