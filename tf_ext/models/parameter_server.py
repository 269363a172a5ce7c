"""`fit`, `evaluate` and `predict` under ParameterServerStrategy.

One loop for both Kerases. The coordinator reads the data, schedules a step for
each batch on whichever worker is free, and has a limited number of steps under
way. Results are taken in the order of the batches, so that callbacks, logs and
predictions come in the order of one process.
"""

import numpy as np
import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute.cluster import cluster_of, is_parameter_server
from tf_ext.distribute.errors import naming_lost_server
from tf_ext.models.feed import (
    Feed,
    WorkerFeed,
    example_of,
    make_dataset,
    split_arrays,
)
from tf_ext.models.steps import STALENESS, InFlight, StepFunctions
from tf_ext.optimizers import Optimizer

_STEPS_PER_WORKER = 2
# What callbacks set to end each kind of steps.
_STOP = {
    "train": "stop_training",
    "test": "stop_evaluating",
    "predict": "stop_predicting",
}


def strategy_of(model):
    """The ParameterServerStrategy that a model was made under, or None."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if is_parameter_server(strategy) else None


def check_max_inflight_steps(value):
    """Raises ValueError unless it is None or a positive int."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            "Argument `max_inflight_steps` must be a positive int or None. "
            f"Received: max_inflight_steps={value!r}"
        )


def check_compiled(optimizer, steps_per_execution):
    """Raises ValueError for arguments of `compile` that the loop cannot follow.

    Args:
      optimizer: a tf_ext.optimizers.Optimizer, something around one, or None.
      steps_per_execution: int or "auto".
    """
    if steps_per_execution not in (1, "auto"):
        raise ValueError(
            f"steps_per_execution={steps_per_execution} does not work under "
            "ParameterServerStrategy: each step goes to whichever worker is "
            "free. Use 1; `max_inflight_steps` of fit() keeps workers busy."
        )
    if isinstance(optimizer, Optimizer):
        optimizer.check_for_servers()


class Loop:
    """The loop of one compiled model; it keeps the traced steps.

    Args:
      model: keras.Model that was made under a ParameterServerStrategy.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = strategy_of(model)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            self._strategy
        )
        self._functions = StepFunctions(model)

    def run(self, method, *arguments):
        """Calls `fit`, `evaluate` or `predict`.

        Raises:
          tf_ext.distribute.ServerLostError: a parameter server died.
        """
        _check_is_compiled(self._model, method)
        with naming_lost_server(self._strategy):
            return getattr(self, method)(*arguments)

    def fit(self, arguments, max_inflight_steps=None):
        """Trains the model.

        Args:
          arguments: dict of all arguments of `keras.Model.fit`.
          max_inflight_steps: int or None.

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
        _check_backups(callbacks.callbacks)
        model.stop_training = False
        callbacks.on_train_begin()
        epoch, first_step = self._start(arguments["initial_epoch"], feed)
        logs = None
        while epoch < arguments["epochs"] and not model.stop_training:
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(
                feed, callbacks, first_step, max_inflight_steps
            )
            logs.update(self._validate(arguments, callbacks, epoch))
            callbacks.on_epoch_end(epoch, logs)
            epoch, first_step = epoch + 1, 0
        callbacks.on_train_end(logs)
        return model.history

    def _batches(self, kind, feed, callbacks, first_step=0):
        """Yields an epoch's batches until the model is told to stop."""
        begin = getattr(callbacks, f"on_{kind}_batch_begin")
        for index, batch in enumerate(feed.epoch(first_step), first_step):
            if getattr(self._model, _STOP[kind]):
                return
            begin(index)
            yield batch

    def _train_epoch(self, feed, callbacks, first_step, limit):
        step = self._functions.get("train", feed)
        staleness = []
        logs = {}
        batches = self._batches("train", feed, callbacks, first_step)
        results = self._inflight(limit).run(step.function, batches)
        with feed.explaining_errors():
            for index, tensors in enumerate(results, first_step):
                if tensors is not None:
                    logs = step.logs(tensors)
                    staleness.append(logs.pop(STALENESS, 0.0))
                self._count("_train_counter")
                mean = float(np.mean(staleness or [0.0]))
                callbacks.on_train_batch_end(index, {**logs, STALENESS: mean})
        if not staleness:
            raise _no_data("fit")
        logs = self._whole(logs)
        return {**logs, STALENESS: float(np.mean(staleness))}

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
        steps = arguments["steps"]
        feed = Feed(_dataset(arguments, steps), steps)
        self._build(feed)
        callbacks = self._callbacks(arguments, feed)
        step = self._functions.get("test", feed)
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        logs = None
        batches = self._batches("test", feed, callbacks)
        results = self._inflight().run(step.function, batches)
        for index, tensors in enumerate(results):
            if tensors is not None:
                logs = step.logs(tensors)
            self._count("_test_counter")
            callbacks.on_test_batch_end(index, logs)
        if logs is None:
            raise _no_data("evaluate")
        logs = self._whole(logs)
        callbacks.on_test_end(logs)
        return logs if arguments["return_dict"] else _in_order(model, logs)

    def predict(self, arguments):
        """Computes outputs: as `keras.Model.predict` returns them.

        Args:
          arguments: dict of all arguments of `keras.Model.predict`.
        """
        model = self._model
        steps = arguments["steps"]
        feed = Feed(_dataset(arguments, steps), steps)
        self._build(feed)
        callbacks = self._callbacks(arguments, feed)
        step = self._functions.get("predict", feed)
        model.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        batches = self._batches("predict", feed, callbacks)
        results = self._inflight().run(step.function, batches, True)
        for index, tensors in enumerate(results):
            outputs.append(step.result(tensors))
            self._count("_predict_counter")
            callbacks.on_predict_batch_end(index, {"outputs": outputs[-1]})
        if not outputs:
            raise _no_data("predict")
        callbacks.on_predict_end()
        return tf.nest.map_structure(_concatenate, *outputs)

    def _training_feed(self, arguments):
        x, steps = arguments["x"], arguments["steps_per_epoch"]
        if callable(x) and not isinstance(x, tf.data.Dataset):
            return WorkerFeed(
                self._coordinator, x, steps, arguments["class_weight"]
            )
        return Feed(_dataset(arguments, steps), steps)

    def _inflight(self, limit=None):
        workers = len(cluster_of(self._strategy)["worker"])
        return InFlight(self._coordinator, limit or _STEPS_PER_WORKER * workers)

    def _callbacks(self, arguments, feed, epochs=1, history=not IS_KERAS_3):
        callbacks = arguments["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        verbose = arguments["verbose"]
        if verbose == "auto" and not IS_KERAS_3:
            verbose = 2  # As tf_keras has it under this strategy.
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

    def _build(self, feed):
        """Makes variables where Keras would in the first step."""
        model = self._model
        with self._strategy.scope():
            example = example_of(feed.element_spec)
            x, y, weights = keras.utils.unpack_x_y_sample_weight(example)
            unbuilt = [m for m in _compiled_parts(model) if not m.built]
            if unbuilt or not model.built:
                outputs = model(x)
                if IS_KERAS_3 and y is not None and unbuilt:
                    model.compute_loss(x, y, outputs, weights)
                    model.compute_metrics(x, y, outputs, weights)
                    model.reset_metrics()
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None:
                optimizer.build(model.trainable_variables)

    def _count(self, name):
        # tf_keras's counters of batches, which its TensorBoard reads.
        counter = getattr(self._model, name, None)
        if counter is not None:
            counter.assign_add(1)

    def _whole(self, logs):
        """The metrics of all steps; those of the last one can lack others."""
        metrics = self._model.get_metrics_result()
        if set(metrics) == set(logs):
            logs = metrics
        return {name: _number(value) for name, value in logs.items()}


def _check_is_compiled(model, method):
    """Raises if the model was not compiled, or to run eagerly."""
    compiled = model.compiled if IS_KERAS_3 else model._is_compiled
    if not compiled and method != "predict":
        raise ValueError(
            f"The model must be compiled before `{method}`. Call "
            "`model.compile(tf_ext.optimizers.Optimizer(...), loss)` under the "
            "strategy's scope."
        )
    if compiled and model.run_eagerly:
        raise ValueError(
            "run_eagerly=True does not work under ParameterServerStrategy: "
            "workers run graphs. Compile the model with run_eagerly=False."
        )


def _check_backups(callbacks):
    """Raises for backups inside epochs, which tf_keras leaves out here."""
    if IS_KERAS_3:
        return
    for callback in callbacks:
        frequency = getattr(callback, "save_freq", "epoch")
        if (
            isinstance(callback, keras.callbacks.BackupAndRestore)
            and frequency != "epoch"
        ):
            raise ValueError(
                f"BackupAndRestore(save_freq={frequency!r}) saves nothing "
                "under ParameterServerStrategy in tf_keras. Use "
                "save_freq='epoch', with shorter epochs by `steps_per_epoch`."
            )


def _compiled_parts(model):
    if not IS_KERAS_3:
        return []
    names = ("_compile_loss", "_compile_metrics")
    parts = [getattr(model, name, None) for name in names]
    return [part for part in parts if part is not None]


def _dataset(arguments, steps):
    names = ("x", "y", "sample_weight", "batch_size", "shuffle", "class_weight")
    given = {name: arguments.get(name) for name in names}
    return make_dataset(**given, steps=steps)


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
