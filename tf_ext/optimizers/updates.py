"""What one training step does with gradients of tables and variables.

Both Keras versions share this: `tf_ext.optimizers.Optimizer` hands in the
gradients of a step and a function that applies the dense ones; here they are
summed by sign, checked, clipped together and pushed.
"""

import collections

import tensorflow as tf

from tf_ext import ops
from tf_ext.tables import shadow
from tf_ext.tables.transport import PushRequest, get_transport, sum_by_sign

Clipping = collections.namedtuple(
    "Clipping", ["clipnorm", "global_clipnorm", "clipvalue"]
)

TableGradient = collections.namedtuple(
    "TableGradient", ["table", "signs", "values"]
)


def split(grads, variables):
    """Separates gradients of tables from those of variables.

    Args:
      grads: list of tensors, `tf.IndexedSlices` or None.
      variables: list of Keras or TensorFlow variables, one each.

    Returns:
      `(dense gradients, dense variables, [(table, tf.IndexedSlices)])`,
      without those that are None.

    Raises:
      ValueError: all gradients are None.
    """
    dense, dense_variables, slices = [], [], []
    missing = []
    for grad, variable in zip(grads, variables, strict=True):
        table = shadow.table_of(variable)
        if grad is None:
            if table is None:
                missing.append(variable.name)
        elif table is None:
            dense.append(grad)
            dense_variables.append(variable)
        else:
            slices.append((table, _as_slices(table, grad)))
    if not dense and not slices:
        raise ValueError(
            "No gradients provided for any variable: the loss depends on none "
            f"of {[v.name for v in variables]}."
        )
    if missing:
        tf.get_logger().warning(
            "Gradients do not exist for variables %s when minimizing the loss.",
            missing,
        )
    return dense, dense_variables, slices


def _as_slices(table, grad):
    if isinstance(grad, tf.IndexedSlices):
        return grad
    raise ValueError(
        f"The gradient of table {table.name!r} arrived as a dense tensor of "
        f"shape {grad.shape}: something between the tape and the optimizer "
        "converted it (a loss-scaling or clipping wrapper?). Put "
        "tf_ext.optimizers.Optimizer outermost."
    )


def merge(table, parts):
    """One gradient a sign, of all layers, calls and replicas.

    Args:
      table: SparseTable.
      parts: list of `(signs [n], values [n, dim])`.

    Returns:
      A TableGradient of distinct signs.
    """
    if len(parts) == 1:
        signs, values = parts[0]
        if _from_one_pull(signs):
            return TableGradient(table, signs, values)
    signs = tf.concat([signs for signs, _ in parts], 0)
    values = tf.concat([values for _, values in parts], 0)
    signs, values, _ = sum_by_sign(signs, values, table.rows.num_shards)
    return TableGradient(table, signs, values)


def _from_one_pull(signs):
    operation = None if tf.executing_eagerly() else signs.op
    return (
        operation is not None
        and operation.type == "Identity"
        and operation.name.rsplit("/", 1)[-1].startswith(ops.UNIQUE_SIGNS)
    )


def map_values(function, grad):
    """Applies a function to a gradient's values, slices or not."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(
            function(grad.values), grad.indices, grad.dense_shape
        )
    return function(grad)


def scale(grads, factor):
    """Gradients times a scalar."""
    return [
        map_values(lambda v: v * tf.cast(factor, v.dtype), grad)
        for grad in grads
    ]


def all_finite(dense, tables):
    """Whether every gradient value is finite: bool scalar tensor."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in dense]
    values += [t.values for t in tables]
    return tf.reduce_all(
        tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in values])
    )


def clip(clipping, dense, tables):
    """Clips gradients of variables and tables together.

    Args:
      clipping: Clipping; at most one is set, with Keras's meaning.
      dense: list of gradients of variables.
      tables: list of TableGradient.

    Returns:
      `(function, tables)`: the function clips a list like `dense` (that of
      any replica), the tables are clipped.
    """
    if clipping.global_clipnorm:
        limit = clipping.global_clipnorm
        norm = tf.linalg.global_norm(dense + [t.values for t in tables])
        factor = limit / tf.maximum(norm, limit)
        return (
            lambda grads: scale(grads, factor),
            [t._replace(values=t.values * factor) for t in tables],
        )
    if clipping.clipnorm:
        one = lambda v: tf.clip_by_norm(v, clipping.clipnorm)  # noqa: E731
    elif clipping.clipvalue:
        limit = clipping.clipvalue
        one = lambda v: tf.clip_by_value(v, -limit, limit)  # noqa: E731
    else:
        return (lambda grads: grads), tables
    return (
        lambda grads: [map_values(one, grad) for grad in grads],
        [t._replace(values=one(t.values)) for t in tables],
    )


def push(tables, iterations, model_learning_rate):
    """Makes one push a table.

    Args:
      tables: list of TableGradient.
      iterations: int64 scalar tensor, steps made before this one.
      model_learning_rate: scalar tensor.

    Returns:
      int64 scalar tensor, rows updated. Use it: a graph optimiser may drop
      what nobody reads.
    """
    iterations = tf.cast(iterations, tf.int64)
    requests = []
    for table, signs, values in tables:
        rule = table.optimizer
        rate = rule.current_learning_rate(iterations, model_learning_rate)
        requests.append(
            PushRequest(
                table,
                signs,
                tf.cast(values, tf.float32),
                rule.hyperparameters(rate),
                iterations + 1,
            )
        )
    updated = get_transport([r.table for r in requests]).push(requests)
    return tf.add_n(updated) if updated else tf.constant(0, tf.int64)
