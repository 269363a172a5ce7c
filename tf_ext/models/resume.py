"""`fit` that goes on from a recovery point of `TableSnapshot`.

Keras can begin with a later epoch but not inside one. So the rest of the
interrupted epoch is a call of Keras's `fit` on the data that are left, and the
other epochs are a second one; callbacks see one training.
"""

import logging

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.callbacks.table_snapshot import TableSnapshot
from tf_ext.models.building import build_model, build_optimizer
from tf_ext.models.feed import make_dataset, split_arrays

_LOG = logging.getLogger("tf_ext")


def find_snapshot(callbacks):
    """The TableSnapshot among the callbacks of `fit`, or None.

    Raises:
      ValueError: there are several.
    """
    callbacks = getattr(callbacks, "callbacks", callbacks)
    found = [
        callback
        for callback in tf.nest.flatten(callbacks)
        if isinstance(callback, TableSnapshot)
    ]
    if len(found) > 1:
        raise ValueError(
            "Argument `callbacks` holds several TableSnapshot; training can go "
            f"on from one. Received: callbacks={callbacks!r}"
        )
    return found[0] if found else None


def restored_point(model, callbacks):
    """Restores a built model from the newest point of its TableSnapshot.

    Returns:
      The Point, or None: there is no callback, or no point, or it has been
      asked before.
    """
    snapshot = find_snapshot(callbacks)
    if snapshot is None or not snapshot.can_resume():
        return None
    return snapshot.resume(model)


def fit(model, keras_fit, given):
    """Calls Keras's `fit`, from a recovery point if there is one.

    Args:
      model: tf_ext.Model.
      keras_fit: the method `fit` of its Keras class.
      given: inspect.BoundArguments of it.
    """
    snapshot = find_snapshot(given.arguments.get("callbacks"))
    if snapshot is None or not snapshot.can_resume():
        return keras_fit(*given.args, **given.kwargs)
    given.apply_defaults()
    arguments = split_arrays(given.arguments)
    _build(model, arguments)
    point = snapshot.resume(model)
    arguments = {**arguments, "initial_epoch": point.epoch}
    steps = arguments["steps_per_epoch"]
    # Where the data go on from epoch to epoch, they do so here, too.
    passed = point.step_in_epoch + (steps or 0) * point.epoch
    dataset = _dataset(arguments) if passed else None
    if passed and dataset is None:
        _LOG.warning(
            "The position in data that are no dataset and no arrays cannot be "
            "restored: epoch %d begins anew.",
            point.epoch,
        )
    if dataset is None:
        return keras_fit(**arguments)
    arguments |= {"y": None, "sample_weight": None, "batch_size": None}
    if not point.step_in_epoch:
        return keras_fit(**{**arguments, "x": dataset.skip(passed)})
    return _fit_in_two(model, keras_fit, arguments, point, dataset, passed)


def _fit_in_two(model, keras_fit, arguments, point, dataset, passed):
    steps = arguments["steps_per_epoch"]
    callbacks = _OneTraining(model, arguments, point.step_in_epoch, dataset)
    rest = dataset.skip(passed)
    first_whole = point.epoch + 1
    if next(iter(rest.take(1)), None) is not None:
        keras_fit(
            **{
                **arguments,
                "x": rest,
                "epochs": min(first_whole, arguments["epochs"]),
                "steps_per_epoch": steps and steps - point.step_in_epoch,
                "callbacks": callbacks,
            }
        )
    callbacks.begin_whole_epochs()
    if first_whole < arguments["epochs"] and not callbacks.stopped:
        if steps:
            dataset = dataset.skip(first_whole * steps)
        keras_fit(
            **{
                **arguments,
                "x": dataset,
                "initial_epoch": first_whole,
                "callbacks": callbacks,
            }
        )
    callbacks.end()
    return model.history


class _OneTraining(keras.callbacks.CallbackList):
    """Callbacks for which two calls of `fit` are one training."""

    def __init__(self, model, arguments, first_step, dataset):
        verbose = arguments["verbose"]
        verbose = 1 if verbose == "auto" else verbose
        length = int(dataset.cardinality())
        super().__init__(
            arguments["callbacks"],
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=arguments["epochs"],
            steps=arguments["steps_per_epoch"]
            or (length if length >= 0 else None),
        )
        self._first_step = first_step
        self._begun = False
        self._logs = None
        self.stopped = False

    def begin_whole_epochs(self):
        """The first call of `fit` is over, or not needed."""
        self._first_step = 0
        self.stopped = self._begun and self.model.stop_training

    def end(self):
        """The second one is over, too."""
        if self._begun:
            super().on_train_end(self._logs)

    def on_train_begin(self, logs=None):
        if not self._begun:
            super().on_train_begin(logs)
        self._begun = True

    def on_train_end(self, logs=None):
        self._logs = logs

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch + self._first_step, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self._first_step, logs)


def _dataset(arguments):
    """The batches of an epoch as a dataset, or None if they cannot be one."""
    x = arguments["x"]
    if isinstance(x, tf.data.Dataset):
        return x
    leaves = tf.nest.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        return None
    return make_dataset(
        x,
        arguments["y"],
        arguments["sample_weight"],
        arguments["batch_size"],
        arguments["shuffle"],
        steps=arguments["steps_per_epoch"],
    )


def _build(model, arguments):
    """Makes the variables that a point is restored into."""
    with model.distribute_strategy.scope():
        _build_model(model, arguments)
        build_optimizer(model)


def _build_model(model, arguments):
    if model.built:
        return
    dataset = _dataset(arguments)
    if dataset is None:
        raise ValueError(
            "A model that goes on from a recovery point must be built before "
            "`fit` where its data are no dataset and no arrays. Call it on a "
            "batch first."
        )
    build_model(model, next(iter(dataset)))
