"""The optimizer a model with tables is compiled with."""

from tf_ext._keras import IS_KERAS_3, keras

if IS_KERAS_3:
    from tf_ext.optimizers.optimizer_keras3 import Keras3Optimizer as _Base
else:
    from tf_ext.optimizers.optimizer_legacy import TfKerasOptimizer as _Base


@keras.utils.register_keras_serializable(package="tf_ext")
class Optimizer(_Base):
    """Wraps a Keras optimizer: it updates variables, tables update rows.

    Each step the gradients of a table from all layers, calls and replicas are
    summed by sign and pushed once, to be applied by the table's own rule; all
    other gradients go to the wrapped optimizer. Gradient clipping, loss
    scaling and gradient accumulation of the wrapped optimizer act on both:
    `global_clipnorm` is one norm over variables and tables, `clipnorm` takes
    a table as one variable, accumulation sums micro-steps by sign and pushes
    once, and a step with a non-finite scaled gradient is skipped whole.

    Args:
      dense: a `keras.optimizers.Optimizer` or the name of one, for everything
        but tables. It belongs to this optimizer from then on. Under Keras 3 it
        may be a `LossScaleOptimizer`; a `mixed_float16` policy brings dynamic
        loss scaling by itself.
      name: string, the name of the optimizer.
      on_nonfinite: what to do with a step whose gradients are not all finite:
        "raise" an error before a table is changed, or "skip" it whole, without
        counting it. With dynamic loss scaling it is always skipped. Under
        MultiWorkerMirroredStrategy all workers do the same.

    Raises:
      ValueError: `use_ema=True` (averages of rows are not kept), something
        that is not a Keras optimizer, or another `on_nonfinite`.

    Example:
    >>> import tf_ext
    >>> optimizer = tf_ext.optimizers.Optimizer("adam")
    >>> type(optimizer.inner_optimizer).__name__
    'Adam'
    """

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer that `get_config` describes."""
        config = dict(config)
        dense = config.pop("dense")
        if isinstance(dense, dict):
            dense = keras.optimizers.deserialize(dense, custom_objects)
        return cls(dense, **config)
