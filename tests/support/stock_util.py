# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of stock ops."""

import functools

import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext.ops._stock.allowed import ALLOWED, foreign_ops, nodes_of

EAGERLY = "eagerly"
KNOWN_SHAPES = "traced"
UNKNOWN_BATCH = "traced_of_any_batch"
UNKNOWN_SHAPES = "traced_of_any_shape"
HOW = (EAGERLY, KNOWN_SHAPES, UNKNOWN_BATCH, UNKNOWN_SHAPES)


def in_stock_ops(how, function):
    """Wraps a function to run with stock ops, and to fail if it uses others.

    Args:
      how: one of HOW, how it is called.
      function: takes tensors in any structure.

    Returns:
      A function of the same arguments.
    """

    def called(*args, **kwargs):
        with source_with(lookup=_no_lookup):
            return function(*args, **kwargs)

    return called if how == EAGERLY else functools.partial(_trace, how, called)


def _trace(how, called, *args, **kwargs):
    flat = tf.nest.flatten(args)
    places = [i for i, one in enumerate(flat) if tf.is_tensor(one)]

    @tf.function(
        autograph=False,
        input_signature=[_spec(how, flat[place]) for place in places],
    )
    def traced(*tensors):
        filled = list(flat)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        return called(*tf.nest.pack_sequence_as(args, filled), **kwargs)

    graph = traced.get_concrete_function().graph.as_graph_def()
    if found := foreign_ops(graph):
        raise AssertionError(f"Ops that TensorFlow does not have: {found}")
    ops = {node.op for node in nodes_of(graph)}
    if found := sorted(ops - ALLOWED):
        raise AssertionError(f"Ops that are not in ALLOWED: {found}")
    return traced(*[flat[place] for place in places])


def _spec(how, tensor):
    shape = tensor.shape
    if how == UNKNOWN_BATCH and shape.rank:
        shape = [None, *shape[1:]]
    elif how == UNKNOWN_SHAPES:
        shape = [None] * shape.rank
    return tf.TensorSpec(shape, tensor.dtype)


def _no_lookup(table, signs):
    raise AssertionError("These tests have no table.")
