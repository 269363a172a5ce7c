"""Which loop runs a model's `fit`, `evaluate` and `predict`."""

from tf_ext._keras import IS_KERAS_3
from tf_ext.distribute.cluster import is_parameter_server, strategy_name
from tf_ext.distribute.collectives import collectives_of
from tf_ext.models import multi_worker, parameter_server


def needed(model):
    """Whether Keras's own `fit` does not do under the model's strategy."""
    return _loop_of(model) is not None


def make(model):
    """The loop of a compiled model for which one is needed: a `Loop`."""
    return _loop_of(model)(model)


def _loop_of(model):
    strategy = getattr(model, "distribute_strategy", None)
    if is_parameter_server(strategy):
        return parameter_server.ParameterServerLoop
    if IS_KERAS_3 and collectives_of(strategy) is not None:
        return multi_worker.MultiWorkerLoop
    return None


def check_compiled(model, optimizer, options, steps_per_execution):
    """Raises ValueError for what the model's strategy cannot follow.

    Args:
      model: keras.Model.
      optimizer: a tf_ext.optimizers.Optimizer, something around one, or None.
      options: dict of the arguments of `compile`.
      steps_per_execution: int or "auto".
    """
    strategy = getattr(model, "distribute_strategy", None)
    if is_parameter_server(strategy):
        parameter_server.check_compiled(optimizer, steps_per_execution)
    elif collectives_of(strategy) is not None:
        multi_worker.check_losses(options.get("loss"))
        multi_worker.check_optimizer(optimizer)


def check_max_inflight_steps(value):
    """Raises ValueError unless it is None or a positive int."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            "Argument `max_inflight_steps` must be a positive int or None. "
            f"Received: max_inflight_steps={value!r}"
        )


def refuse_batches(model, method):
    """Raises ValueError where a single batch cannot be shared out.

    Args:
      model: keras.Model.
      method: string, what was called.
    """
    if needed(model):
        raise ValueError(
            f"{method} does not work under "
            f"{strategy_name(model.distribute_strategy)}. Use fit, evaluate or "
            "predict with a dataset of one batch, or a training loop with "
            "strategy.run."
        )
