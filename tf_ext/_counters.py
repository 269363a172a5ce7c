"""Counters of Keras 3 that are exact when several workers count at once.

Keras 3 adds to a variable by reading it and assigning the sum, so additions of
asynchronous steps get lost. Here the variables of metrics, and an optimizer's
iterations, add where they are stored, in one operation.
"""

import functools

import tensorflow as tf

_DELTA = "_tf_ext_delta"

# Operations from what a metric adds to, to the sum: of the first group through
# any input, of the others through the first.
_SUMS = {"Add", "AddV2", "AddN"}
_ADDITIVE = {*_SUMS, "Cast", "Identity", "Reshape", "Sub", "TensorScatterAdd"}


class _ExactCounter:
    """What `make_exact` adds to the class of a Keras 3 variable."""

    @property
    def value(self):
        delta = self.__dict__.get(_DELTA)
        return super().value if delta is None else delta

    def assign(self, value):
        if _DELTA not in self.__dict__:
            return super().assign(value)
        value = tf.cast(tf.convert_to_tensor(value), self.dtype)
        self.__dict__[_DELTA] = value
        return value

    def assign_add(self, value):
        stored = self.value
        if not isinstance(stored, tf.Variable):
            return super().assign_add(value)
        stored.assign_add(tf.cast(value, stored.dtype))
        return stored


def make_exact(variable):
    """Makes `assign_add` of a Keras 3 variable one operation.

    Args:
      variable: a `keras.Variable`; others stay as they are.
    """
    base = type(variable)
    if isinstance(variable, (tf.Variable, _ExactCounter)):
        return
    members = {"__module__": base.__module__}
    variable.__class__ = type(base.__name__, (_ExactCounter, base), members)


def make_metric_exact(metric):
    """Makes `update_state` of a Keras 3 metric add to the metric's variables.

    In a graph, the metric computes what it adds to variables that are 0, and
    that is added to the stored ones. In eager mode nothing changes.

    Args:
      metric: a `keras.metrics.Metric` that adds to its variables, as all of
        Keras do.
    """
    if getattr(metric.update_state, "tf_ext_exact", False):
        return
    for part in [*metric._metrics, *getattr(metric, "metrics", ())]:
        make_metric_exact(part)
    update_state = metric.update_state

    @functools.wraps(update_state)
    def add(*args, **kwargs):
        # One that only holds others, as Keras does, leaves it to them.
        if tf.executing_eagerly() or not metric._variables:
            return update_state(*args, **kwargs)
        for variable in metric.variables:
            make_exact(variable)
        # Those of a metric inside another one are waited for by that.
        own = [v for v in metric.variables if _DELTA not in v.__dict__]
        zeros = [tf.identity(tf.zeros(v.shape, v.dtype)) for v in own]
        for variable, zero in zip(own, zeros, strict=True):
            variable.__dict__[_DELTA] = zero
        try:
            update_state(*args, **kwargs)
        finally:
            deltas = [v.__dict__.pop(_DELTA) for v in own]
        for variable, zero, delta in zip(own, zeros, deltas, strict=True):
            if delta is not zero:
                _check_additive(metric, variable, zero, delta, zeros)
                variable.assign_add(delta)

    add.tf_ext_exact = True
    metric.update_state = add


def _check_additive(metric, variable, zero, delta, zeros):
    """Raises if `delta` is not `zero` plus something that needs no variable."""
    dependent = set().union(
        *(_dependents(other) for other in zeros if other is not zero)
    )
    if delta.op in dependent or _times_added(zero, delta) != 1:
        raise ValueError(
            f"Metric {metric.name!r} ({type(metric).__name__}) does not add to "
            f"its variable {variable.name!r}: with asynchronous steps its "
            "result would depend on their order. Use a metric whose "
            "update_state only adds to its variables (sums and counts), or "
            "compute it in evaluate() of one process."
        )


def _dependents(tensor):
    """The set of a tensor's op and all that depend on it, in its graph."""
    found, ways = set(), [tensor.op]
    while ways:
        op = ways.pop()
        if op not in found:
            found.add(op)
            ways.extend(c for out in op.outputs for c in out.consumers())
    return found


def _times_added(zero, delta):
    """How often `delta` has `zero` as a summand, up to 2.

    None if it depends on `zero` in another way.
    """
    dependents = _dependents(zero)
    times = 0
    ways = [delta.op]
    while ways and times < 2:
        op = ways.pop()
        if op is zero.op:
            times += 1
            continue
        for index, tensor in enumerate(op.inputs):
            if tensor.op not in dependents:
                continue
            if op.type not in _ADDITIVE or (index and op.type not in _SUMS):
                return None
            ways.append(tensor.op)
    return times
