"""How much of the global batch a worker's gradients stand for."""

import contextlib
import contextvars

_share = contextvars.ContextVar("tf_ext_sample_share", default=None)


@contextlib.contextmanager
def sample_share(factor):
    """Sets what gradients of this worker are multiplied by before the sum.

    Keras gives every worker's mean loss the same weight, however many samples
    it has: `number of workers * samples here / samples of all` corrects that.

    Args:
      factor: float32 scalar tensor; 0 where there are no samples.
    """
    token = _share.set(factor)
    try:
        yield
    finally:
        _share.reset(token)


def current_share():
    """The factor of the training step under way, or None."""
    return _share.get()
