# SPDX-License-Identifier: Apache-2.0
"""Counters of Keras 3 that are exact when several workers count at once.

Keras 3 adds to a variable by reading it and assigning the sum, so additions of
asynchronous steps get lost. The functions here make the variables of metrics,
and an optimizer's iterations, add in one operation on the device that stores
them.
"""

import functools

import tensorflow as tf

from tf_ext._compat.variables import give_own_class

_DELTA = "_tf_ext_delta"

# Operations between the variable that a metric adds to and the sum: those of
# the first group pass any input on, the others the first.
_SUMS = {"Add", "AddV2", "AddN"}
_ADDITIVE = {*_SUMS, "Cast", "Identity", "Reshape", "Sub", "TensorScatterAdd"}


class _ExactCounter:
    """The members that `make_exact` adds to a Keras 3 variable's class."""

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

    Seen in: Keras 3.15, which adds by assigning a sum.

    Args:
      variable: a `keras.Variable`; others stay as they are.
    """
    if not isinstance(variable, (tf.Variable, _ExactCounter)):
        give_own_class(variable, {}, (_ExactCounter,))


def make_metric_exact(metric):
    """Makes `update_state` of a Keras 3 metric add to the metric's variables.

    In a graph, the metric updates variables that are 0, and the results are
    added to the stored variables. In eager mode nothing changes.

    Seen in: Keras 3.15.

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
        # A metric that only contains others, as Keras has, leaves it to them.
        if tf.executing_eagerly() or not metric._variables:
            return update_state(*args, **kwargs)
        for variable in metric.variables:
            make_exact(variable)
        # The outer metric waits for those of a metric inside it.
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
