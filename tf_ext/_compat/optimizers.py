# SPDX-License-Identifier: Apache-2.0
"""What Keras's optimizers do not make public."""

import contextlib


def key_of(optimizer, variable):
    """A key that identifies a variable in an optimizer.

    Keras 3's variables have no `ref()`, and a distributed variable is a
    different object in each replica.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return optimizer._var_key(variable)


def counter_of(optimizer):
    """The variable that counts what an optimizer is called for.

    With `gradient_accumulation_steps`, Keras 3 counts batches, of which its
    `iterations` makes steps.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return optimizer._iterations


def excludes_from_decay(optimizer):
    """Whether `exclude_from_weight_decay` was called; it is no configuration.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    names = ("", "_names", "_pattern")
    return any(
        getattr(optimizer, f"_exclude_from_weight_decay{name}", None)
        for name in names
    )


def rate_variable(optimizer):
    """The variable of the learning rate, or None of a schedule or function.

    The property `learning_rate` is a variable for schedules in tf_keras, and a
    tensor in Keras 3.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    rate = given_rate(optimizer)
    return rate if hasattr(rate, "assign") else None


def given_rate(optimizer):
    """The learning rate as it was given: a variable, schedule or function.

    The configuration holds the schedule serialized, and a class that is not
    registered cannot be deserialized.

    Seen in: Keras 3.15, tf_keras 2.18 to 2.21.
    """
    return optimizer._learning_rate


@contextlib.contextmanager
def with_rate(optimizer, rate):
    """A scope in which a Keras 3 optimizer has a tensor for its rate.

    Its counter is that of its own steps, for Adam's bias correction too, while
    a schedule may be that of others.

    Seen in: Keras 3.15.
    """
    before = optimizer._learning_rate
    optimizer._learning_rate = lambda: rate
    try:
        yield
    finally:
        optimizer._learning_rate = before


def refresh_rate(optimizer):
    """Brings a tf_keras optimizer's rate by a schedule up to date.

    The property `learning_rate` is that of the previous step until
    `apply_gradients` is called.

    Seen in: tf_keras 2.18 to 2.21.
    """
    optimizer._compute_current_learning_rate()


def loss_scale_variables(optimizer):
    """The state of a tf_keras LossScaleOptimizer whose scale is dynamic.

    It is not among its `variables`, as in Keras 3.

    Seen in: tf_keras 2.18 to 2.21.

    Returns:
      Dict of variables by name; empty for other optimizers.
    """
    state = getattr(optimizer, "_loss_scale", None)
    if not hasattr(state, "current_loss_scale"):
        return {}
    return {"scale": state.current_loss_scale, "good_steps": state.counter}


def without_replica_sum(optimizer):
    """Keeps a Keras 3 optimizer from summing gradients over replicas.

    Keras sums by a `tf.custom_gradient`, and TensorFlow keeps the graph that
    contains it, and so the tables that the graph uses, until the process ends.
    In tf_keras an argument of `apply_gradients` does it.

    Seen in: Keras 3.15, TensorFlow 2.18 to 2.21.

    Args:
      optimizer: the optimizer; one without the hook is left as it is. Its
        gradients have to be summed already.
    """
    if hasattr(optimizer, "_all_reduce_sum_gradients"):
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: (
            grads_and_vars
        )


def parts_of(optimizer, variables):
    """The optimizers that an optimizer is composed of, and their variables.

    TensorFlow Recommenders' CompositeOptimizer makes its optimizers public,
    but not which variables they train.

    Seen in: tensorflow-recommenders 0.7.7.

    Args:
      optimizer: an optimizer, composed or not.
      variables: list of the variables that it trains as a whole.

    Returns:
      List of (optimizer, list of variables).
    """
    composed = getattr(optimizer, "_optimizers_and_vars", None)
    if composed is None:
        return [(optimizer, variables)]
    return [(part, list(trained())) for part, trained in composed]


# Lists of a Keras optimizer as long as its trained variables that are no slots.
_NO_SLOTS = frozenset(
    {
        "_accumulated_gradients",
        "_model_variables_moving_average",
        "_trainable_variables",
        "_variables",
    }
)


def slots_of(optimizer):
    """The slots of an optimizer that has been built.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.

    Args:
      optimizer: keras.optimizers.Optimizer.

    Returns:
      Dict of lists by the name of the slot, such as "momentums": a variable for
      each that is trained, in the order of `index_of`.
    """
    count = len(_indices(optimizer))
    return {
        name.lstrip("_"): list(value)
        for name, value in vars(optimizer).items()
        if isinstance(value, list)
        and name not in _NO_SLOTS
        and not name.startswith("_self_")
        and len(value) == count > 0
    }


def index_of(optimizer, variable):
    """The place of a variable in each list of `slots_of`; None if it has none.

    Seen in: Keras 3.15, tf_keras 2.19 to 2.21.

    Args:
      optimizer: keras.optimizers.Optimizer that has been built.
      variable: a variable.
    """
    return _indices(optimizer).get(key_of(optimizer, variable))


def _indices(optimizer):
    """Places of variables by key; of an optimizer that is not built, {}."""
    for name in ("_trainable_variables_indices", "_index_dict"):
        found = getattr(optimizer, name, None)
        if found is not None:
            return found
    return {}
