"""`fit`, `evaluate` and `predict` where Keras's own do not work.

What is the same under all strategies: arguments, epochs, callbacks, logs. How
batches get to workers and results come back is a subclass's business.
"""

import abc

import numpy as np
import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute.cluster import strategy_name
from tf_ext.models.feed import make_dataset, split_arrays
from tf_ext.models.resume import restored_point

# What callbacks set to end each kind of steps.
_STOP = {
    "train": "stop_training",
    "test": "stop_evaluating",
    "predict": "stop_predicting",
}


class Loop(abc.ABC):
    """The loop of one compiled model.

    Args:
      model: keras.Model that was made under the scope of a strategy.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = model.distribute_strategy

    def run(self, method, *arguments):
        """Calls `fit`, `evaluate` or `predict`."""
        self._check_is_compiled(method)
        return getattr(self, method)(*arguments)

    def fit(self, arguments, limit=None):
        """Trains the model.

        Args:
          arguments: dict of all arguments of `keras.Model.fit`.
          limit: int or None, how many steps may be under way.

        Returns:
          keras.callbacks.History.
        """
        model = self._model
        arguments = split_arrays(arguments)
        feed = self._training_feed(arguments)
        self._build(feed)
        callbacks = self._callbacks(
            arguments, feed, epochs=arguments["epochs"], history=True
        )
        point = restored_point(model, callbacks)
        model.stop_training = False
        self._begin_training(callbacks)
        epoch, first_step = self._start(arguments["initial_epoch"], feed)
        if point is not None:
            epoch, first_step = feed.go_on(point.epoch, point.step_in_epoch)
        logs = None
        while epoch < arguments["epochs"] and not model.stop_training:
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(feed, callbacks, first_step, limit)
            logs.update(self._validate(arguments, callbacks, epoch))
            callbacks.on_epoch_end(epoch, logs)
            epoch, first_step = epoch + 1, 0
        callbacks.on_train_end(logs)
        return model.history

    def _begun(self, kind, feed, callbacks, first_step=0):
        """Yields an epoch's batches until the model is told to stop."""
        begin = getattr(callbacks, f"on_{kind}_batch_begin")
        for index, batch in enumerate(feed.epoch(first_step), first_step):
            if getattr(self._model, _STOP[kind]):
                return
            begin(index)
            yield batch

    def _train_epoch(self, feed, callbacks, first_step, limit):
        logs = None
        batches = self._begun("train", feed, callbacks, first_step)
        steps = self._train_steps(feed, batches, limit)
        for index, logs in enumerate(steps, first_step):
            self._count("_train_counter")
            callbacks.on_train_batch_end(index, logs)
        if logs is None:
            raise _no_data("fit")
        return self._epoch_logs(logs)

    def _validate(self, arguments, callbacks, epoch):
        data = arguments["validation_data"]
        if data is None or not _is_due(epoch, arguments["validation_freq"]):
            return {}
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch_size = arguments["validation_batch_size"]
        logs = self._model.evaluate(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=None
            if y is None
            else batch_size or arguments["batch_size"],
            steps=arguments["validation_steps"],
            callbacks=callbacks,
            return_dict=True,
        )
        return {f"val_{name}": value for name, value in logs.items()}

    def evaluate(self, arguments):
        """Computes the metrics: as `keras.Model.evaluate` returns them.

        Args:
          arguments: dict of all arguments of `keras.Model.evaluate`.
        """
        model = self._model
        feed = self._feed(arguments)
        self._build(feed)
        callbacks = self._callbacks(arguments, feed)
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs = None
        batches = self._begun("test", feed, callbacks)
        for index, logs in enumerate(self._test_steps(feed, batches)):
            self._count("_test_counter")
            callbacks.on_test_batch_end(index, logs)
        if logs is None:
            raise _no_data("evaluate")
        logs = self._epoch_logs(logs)
        callbacks.on_test_end(logs)
        return logs if arguments["return_dict"] else _in_order(model, logs)

    def predict(self, arguments):
        """Computes outputs: as `keras.Model.predict` returns them.

        Args:
          arguments: dict of all arguments of `keras.Model.predict`.
        """
        model = self._model
        feed = self._feed(arguments)
        self._build(feed)
        callbacks = self._callbacks(arguments, feed)
        model.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        batches = self._begun("predict", feed, callbacks)
        for index, output in enumerate(self._predict_steps(feed, batches)):
            outputs.append(output)
            self._count("_predict_counter")
            callbacks.on_predict_batch_end(index, {"outputs": output})
        if not outputs:
            raise _no_data("predict")
        callbacks.on_predict_end()
        return tf.nest.map_structure(_concatenate, *outputs)

    @abc.abstractmethod
    def _training_feed(self, arguments):
        """What `fit` reads, from its arguments."""

    @abc.abstractmethod
    def _feed(self, arguments):
        """What `evaluate` and `predict` read, from their arguments."""

    @abc.abstractmethod
    def _build(self, feed):
        """Makes variables where Keras would in the first step."""

    @abc.abstractmethod
    def _train_steps(self, feed, batches, limit):
        """Yields the logs of training on each of an epoch's batches."""

    @abc.abstractmethod
    def _test_steps(self, feed, batches):
        """Yields the logs after each batch."""

    @abc.abstractmethod
    def _predict_steps(self, feed, batches):
        """Yields the outputs for each batch."""

    def _begin_training(self, callbacks):
        callbacks.on_train_begin()

    def _epoch_logs(self, logs):
        """The logs of an epoch, from those of its last step."""
        return {name: _number(value) for name, value in logs.items()}

    def _verbose(self, verbose):
        """What `verbose` means here."""
        return verbose

    def _callbacks(self, arguments, feed, epochs=1, history=not IS_KERAS_3):
        callbacks = arguments["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        verbose = self._verbose(arguments["verbose"])
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=history,
            add_progbar=verbose != 0,
            model=self._model,
            verbose=verbose,
            epochs=epochs,
            steps=feed.num_batches,
        )

    def _start(self, initial_epoch, feed):
        """The first epoch and step, after BackupAndRestore had its say."""
        model = self._model
        if IS_KERAS_3:
            return model._initial_epoch or initial_epoch, 0
        return model._maybe_load_initial_counters_from_ckpt(
            feed.num_batches, initial_epoch
        )

    def _count(self, name):
        # tf_keras's counters of batches, which its TensorBoard reads.
        counter = getattr(self._model, name, None)
        if counter is not None:
            counter.assign_add(1)

    def _check_is_compiled(self, method):
        """Raises if the model was not compiled, or to run eagerly."""
        model = self._model
        compiled = model.compiled if IS_KERAS_3 else model._is_compiled
        if not compiled and method != "predict":
            raise ValueError(
                f"The model must be compiled before `{method}`. Call "
                "`model.compile(tf_ext.optimizers.Optimizer(...), loss)` under "
                "the strategy's scope."
            )
        if compiled and model.run_eagerly:
            raise ValueError(
                "run_eagerly=True does not work under "
                f"{strategy_name(self._strategy)}: workers run graphs. Compile "
                "the model with run_eagerly=False."
            )


def dataset_of(arguments, **options):
    """The dataset of what `fit`, `evaluate` or `predict` is given.

    Args:
      arguments: dict of the method's arguments, `steps` among them.
      **options: of `make_dataset`, besides.
    """
    names = (
        *("x", "y", "sample_weight", "batch_size", "shuffle"),
        *("class_weight", "steps"),
    )
    given = {name: arguments.get(name) for name in names}
    return make_dataset(**given, **options)


def _is_due(epoch, frequency):
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency


def _no_data(method):
    return ValueError(
        f"The data given to `{method}` holds no batch. Received an empty "
        "dataset, or steps of 0."
    )


def _number(value):
    value = np.asarray(value)
    return float(value) if value.ndim == 0 else value


def _in_order(model, logs):
    """Metrics as a list, or the only one."""
    names = model.metrics_names
    if IS_KERAS_3:  # They are in there in one.
        names = [
            part.name
            for metric in model.metrics
            for part in getattr(metric, "metrics", [metric])
        ]
    names = [name for name in dict.fromkeys(names) if name in logs]
    names += sorted(set(logs) - set(names))
    values = [logs[name] for name in names]
    return values[0] if len(values) == 1 else values


def _concatenate(*batches):
    first = batches[0]
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, batches)
    if isinstance(first, tf.RaggedTensor):
        return tf.concat(batches, 0)
    if first.shape.rank == 0:
        return np.stack(batches)
    if len({tuple(batch.shape[1:]) for batch in batches}) == 1:
        return np.concatenate(batches)
    return tf.concat([tf.RaggedTensor.from_tensor(b) for b in batches], 0)
