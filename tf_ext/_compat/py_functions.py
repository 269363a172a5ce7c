# SPDX-License-Identifier: Apache-2.0
"""Functions of Python that graphs of other processes call by name."""

import sys

import tensorflow as tf

# TensorFlow keeps weak references only.
_registered = {}


def register(name, function):
    """Has graphs that run in this process call a function by a name.

    Seen in: TensorFlow 2.18 to 2.21, whose public functions have names that
    only the process knows which made the graph.

    Args:
      name: string.
      function: function from arrays, or bytes for scalar strings, to arrays.
    """
    _registered[name] = function
    module = sys.modules["tensorflow.python.ops.script_ops"]
    module._py_funcs._funcs[name] = function


def call(name, inputs, specs):
    """Calls a function of the process that runs the graph.

    Seen in: TensorFlow 2.18 to 2.21, whose servers run such operations, too.

    Args:
      name: string, which it has registered.
      inputs: list of tensors.
      specs: list of `tf.TensorSpec`, of what it returns.

    Returns:
      List of tensors.
    """
    outputs = tf.raw_ops.PyFunc(
        input=inputs, token=name, Tout=[spec.dtype for spec in specs]
    )
    for output, spec in zip(outputs, specs, strict=True):
        output.set_shape(spec.shape)
    return outputs
