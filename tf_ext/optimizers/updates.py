"""What one training step does with gradients of tables and variables.

Both Keras versions share this: `tf_ext.optimizers.Optimizer` hands in the
gradients of a step and a function that applies the dense ones; here they are
summed by sign, checked, clipped together and pushed.
"""

import collections
import contextlib
import threading

import tensorflow as tf

from tf_ext.optimizers.share import current_share
from tf_ext.tables import shadow
from tf_ext.tables.transport import PushRequest, get_transport

Clipping = collections.namedtuple(
    "Clipping", ["clipnorm", "global_clipnorm", "clipvalue"]
)

# The graph in which a thread is in `after`.
_waiting = threading.local()


@contextlib.contextmanager
def after(tensors):
    """A context whose operations wait for tensors, used by them or not.

    Keras learns that data of unknown length have ended by running a step that
    fails to read any. What does not depend on the batch, as adding 1 to
    `iterations`, would be done in that step too.

    Args:
      tensors: nested structure of tensors, ragged, sparse or sliced ones too,
        and of anything else, which is not waited for.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    leaves = tf.nest.flatten(tensors, expand_composites=True)
    leaves = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    # What waits for a batch waits for no gradients: they come of the batch.
    if graph is None or not leaves or graph is getattr(_waiting, "graph", None):
        yield
        return
    before = getattr(_waiting, "graph", None)
    _waiting.graph = graph
    try:
        with tf.control_dependencies([tf.group(*leaves)]):
            yield
    finally:
        _waiting.graph = before


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
            if isinstance(grad, tf.Tensor):
                # Not every gradient function of TensorFlow says it.
                grad.set_shape(variable.shape)
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


def merge(parts):
    """One gradient a sign for each table, of all layers, calls and replicas.

    Args:
      parts: list of `(table, [(signs [n], values [n, dim]), ...])`.

    Returns:
      List of TableGradient.
    """
    return _transport(parts).merge(parts) if parts else []


def sum_over_workers(collectives, grads, slices):
    """Gradients of the global batch, from those of each worker's share.

    Args:
      collectives: Collectives.
      grads: list of gradients of variables.
      slices: list of `(table, tf.IndexedSlices)`.

    Returns:
      `(gradients of variables, list of TableGradient)`: of variables the same
      on all workers, of tables those of rows that this worker owns.
    """
    share = current_share()
    if share is not None:
        grads = [map_values(lambda v: _times(v, share), g) for g in grads]
        slices = [
            (t, map_values(lambda v: _times(v, share), g)) for t, g in slices
        ]
    places = [
        i for i, g in enumerate(grads) if not isinstance(g, tf.IndexedSlices)
    ]
    summed = list(grads)
    if places:
        sums = collectives.sum([grads[i] for i in places])
        for i, value in zip(places, sums):
            summed[i] = value
    context = tf.distribute.get_replica_context()
    for i in set(range(len(grads))) - set(places):
        summed[i] = context.all_reduce(tf.distribute.ReduceOp.SUM, grads[i])
    return summed, merge([(t, [(g.indices, g.values)]) for t, g in slices])


def check_on_nonfinite(value):
    """Raises ValueError unless it is "raise" or "skip"."""
    if value not in ("raise", "skip"):
        raise ValueError(
            "Argument `on_nonfinite` of tf_ext.optimizers.Optimizer must be "
            f"'raise' or 'skip'. Received: on_nonfinite={value!r}"
        )


def refuse_skip(on_nonfinite):
    """Raises ValueError if steps are to be skipped."""
    if on_nonfinite == "skip":
        raise ValueError(
            "on_nonfinite='skip' of tf_ext.optimizers.Optimizer does not work "
            "under ParameterServerStrategy: its steps are not left out as a "
            "whole. Use on_nonfinite='raise'."
        )


def _times(value, share):
    # An empty batch's gradients may be NaN, and count for nothing.
    return tf.math.multiply_no_nan(value, tf.cast(share, value.dtype))


def _transport(parts):
    return get_transport([part[0] for part in parts])


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
    values += [t.values for t in tables if t.finite is None]
    finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values]
    finite += [t.finite for t in tables if t.finite is not None]
    return tf.reduce_all(tf.stack(finite))


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
        norms = [tf.linalg.global_norm(dense)] if dense else []
        if tables:
            norms.append(tf.sqrt(tf.reduce_sum(_square_sums(tables))))
        factor = limit / tf.maximum(tf.linalg.global_norm(norms), limit)
        return (
            lambda grads: scale(grads, factor),
            [t._replace(values=t.values * factor) for t in tables],
        )
    if clipping.clipnorm:
        limit = clipping.clipnorm
        one = lambda v: tf.clip_by_norm(v, limit)  # noqa: E731
        if tables:
            norms = tf.unstack(tf.sqrt(_square_sums(tables)), len(tables))
            tables = [
                t._replace(values=t.values * (limit / tf.maximum(norm, limit)))
                for t, norm in zip(tables, norms)
            ]
    elif clipping.clipvalue:
        limit = clipping.clipvalue
        one = lambda v: tf.clip_by_value(v, -limit, limit)  # noqa: E731
        tables = [t._replace(values=one(t.values)) for t in tables]
    else:
        return (lambda grads: grads), tables
    return (lambda grads: [map_values(one, grad) for grad in grads]), tables


def _square_sums(tables):
    """The squared norm of each table's gradient: float32 `[len(tables)]`."""
    sums = [tf.reduce_sum(tf.square(t.values)) for t in tables]
    return _transport(tables).sum(tf.cast(tf.stack(sums), tf.float32))


def push(tables, iterations, model_learning_rate, factor):
    """Makes one push a table.

    Args:
      tables: list of TableGradient.
      iterations: int64 scalar tensor, steps made before this one.
      model_learning_rate: scalar tensor.
      factor: float64 scalar tensor, for rates of tables' own.

    Returns:
      int64 scalar tensor, rows updated. Use it: a graph optimiser may drop
      what nobody reads.
    """
    iterations = tf.cast(iterations, tf.int64)
    requests = []
    for table, signs, values, _ in tables:
        rule = table.optimizer
        rate = rule.current_learning_rate(
            iterations, model_learning_rate, factor
        )
        requests.append(
            PushRequest(
                table,
                signs,
                tf.cast(values, tf.float32),
                rule.hyperparameters(rate),
                iterations + 1,
            )
        )
    if not requests:
        return tf.constant(0, tf.int64)
    return tf.add_n(_transport(requests).push(requests))
