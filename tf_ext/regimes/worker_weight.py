"""The weight of a worker's mean gradient in the global mean."""

import contextvars

from tf_ext._core import Setting

_weight = contextvars.ContextVar("tf_ext_worker_weight", default=None)


def worker_weight(weight):
    """Sets the factor of this worker's gradients before the sum.

    Keras gives every worker's mean loss the same weight, however many samples
    it has: `number of workers * samples here / samples of all` corrects that.

    Args:
      weight: float32 scalar tensor; 0 where there are no samples.
    """
    return Setting(_weight, weight)


def current_worker_weight():
    """The weight in the current training step, or None."""
    return _weight.get()
