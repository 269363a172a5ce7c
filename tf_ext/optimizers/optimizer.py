# SPDX-License-Identifier: Apache-2.0
"""The optimizer a model with tables is compiled with."""

import typing

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import dense as dense_lib

if IS_KERAS_3:
    from tf_ext.optimizers.keras3 import Keras3Optimizer as _Base
else:
    from tf_ext.optimizers.tf_keras import TfKerasOptimizer as _Base


@keras.utils.register_keras_serializable(package="tf_ext")
class Optimizer(_Base):
    """Wraps a Keras optimizer: it updates variables, tables update rows.

    Each step the gradients of a table from all layers, calls and replicas are
    summed by sign and pushed once, to be applied by the table's own rule; all
    other gradients go to the wrapped optimizer. Gradient clipping, loss
    scaling and gradient accumulation of the wrapped optimizer act on both:
    `global_clipnorm` is one norm over variables and tables, `clipnorm` treats a
    table as one variable, accumulation sums micro-steps by sign and pushes
    once, and a step with a non-finite scaled gradient is skipped as a whole.

    A table that has a learning rate of its own follows changes of the wrapped
    optimizer's rate as a factor, so that Keras's `ReduceLROnPlateau` and
    `LearningRateScheduler` reach it: where that rate was r0 when this optimizer
    was made and has been assigned r, a table with the rate t trains with
    `t * r / r0`. It does not matter what assigns it, nor when; r0 is kept in
    saved configurations, so that a loaded model continues in the same way.
    There is no factor if r0 is 0, if the wrapped optimizer has a schedule, or
    for tables that have a schedule; tables without a rate use that of the
    wrapped optimizer.

    Args:
      dense: a `keras.optimizers.Optimizer` or the name of one, for everything
        but tables. It belongs to this optimizer from then on. Under Keras 3 it
        may be a `LossScaleOptimizer`; a `mixed_float16` policy adds dynamic
        loss scaling.
      name: string, the name of the optimizer.
      on_nonfinite: what to do with a step whose gradients are not all finite:
        "raise" an error before a table, or a variable whose gradient is not
        finite, is changed; or "skip" it as a whole, without counting it. With
        dynamic loss scaling it is always skipped. Under
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
    def from_config(
        cls,
        config: dict[str, typing.Any],
        custom_objects: dict[str, typing.Any] | None = None,
    ) -> typing.Self:
        """The optimizer that `get_config` describes."""
        config = dict(config)
        dense = config.pop("dense")
        if isinstance(dense, dict):
            dense = dense_lib.deserialize(dense, custom_objects)
        # Older configurations lack it: their rate then is the initial one.
        initial = config.pop("initial_learning_rate", None)
        dense_lib.check_initial_learning_rate(initial)
        optimizer = cls(dense, **config)
        if initial is not None:
            optimizer._initial_learning_rate = float(initial)
        return optimizer
