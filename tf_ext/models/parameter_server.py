"""`fit`, `evaluate` and `predict` under ParameterServerStrategy.

For both Kerases. The coordinator reads the data, schedules a step for each
batch on whichever worker is free, and has a limited number of steps under way.
Results are taken in the order of the batches, so that callbacks, logs and
predictions come in the order of one process.
"""

import numpy as np
import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import naming_lost_server
from tf_ext.models.building import (
    build_model,
    build_optimizer,
    wrapped_optimizers,
)
from tf_ext.models.feed import Feed, WorkerFeed, example_of, makes_dataset
from tf_ext.models.inflight import InFlight
from tf_ext.models.loop import Loop, dataset_of
from tf_ext.models.steps import STALENESS, StepFunctions

_STEPS_PER_WORKER = 2


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
    for one in wrapped_optimizers(optimizer):
        one.check_for_servers()


class ParameterServerLoop(Loop):
    """The loop of one compiled model; it keeps the traced steps.

    Args:
      model: keras.Model that was made under a ParameterServerStrategy.
    """

    def __init__(self, model):
        super().__init__(model)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            self._strategy
        )
        self._functions = StepFunctions(model)
        self._inflight = InFlight(self._coordinator)

    def run(self, method, *arguments):
        """Calls `fit`, `evaluate` or `predict`.

        Raises:
          tf_ext.distribute.ServerLostError: a parameter server died.
        """
        with naming_lost_server(self._strategy):
            return super().run(method, *arguments)

    def _begin_training(self, callbacks):
        _check_backups(callbacks.callbacks)
        callbacks.on_train_begin()

    def _train_steps(self, feed, batches, limit):
        step = self._functions.get("train", feed)
        staleness = []
        logs = {}
        with feed.explaining_errors():
            for tensors in self._results(step, batches, limit):
                if tensors is not None:
                    logs = step.logs(tensors)
                    staleness.append(logs.pop(STALENESS, 0.0))
                mean = float(np.mean(staleness or [0.0]))
                yield {**logs, STALENESS: mean}

    def _test_steps(self, feed, batches):
        step = self._functions.get("test", feed)
        logs = None
        for tensors in self._results(step, batches):
            if tensors is not None:
                logs = step.logs(tensors)
            yield logs

    def _predict_steps(self, feed, batches):
        step = self._functions.get("predict", feed)
        for tensors in self._results(step, batches, repeatable=True):
            yield step.result(tensors)

    def _training_feed(self, arguments):
        x, steps = arguments["x"], arguments["steps_per_epoch"]
        if makes_dataset(x):
            return WorkerFeed(
                self._coordinator, x, steps, arguments["class_weight"]
            )
        return Feed(dataset_of({**arguments, "steps": steps}), steps)

    def _feed(self, arguments):
        return Feed(dataset_of(arguments), arguments["steps"])

    def _results(self, step, batches, limit=None, repeatable=False):
        workers = len(cluster_of(self._strategy)["worker"])
        limit = limit or _STEPS_PER_WORKER * workers
        return self._inflight.run(step.function, batches, limit, repeatable)

    def _verbose(self, verbose):
        if verbose == "auto" and not IS_KERAS_3:
            return 2  # As tf_keras has it under this strategy.
        return verbose

    def _build(self, feed):
        """Makes variables where Keras would in the first step."""
        model = self._model
        with self._strategy.scope():
            example = example_of(feed.element_spec)
            unbuilt = [m for m in _compiled_parts(model) if not m.built]
            if unbuilt:
                x, y, weights = keras.utils.unpack_x_y_sample_weight(example)
                outputs = model(x)
                if y is not None:
                    model.compute_loss(x, y, outputs, weights)
                    model.compute_metrics(x, y, outputs, weights)
                    model.reset_metrics()
            build_model(model, example)
            build_optimizer(model)

    def _epoch_logs(self, logs):
        # The last step's metrics can lack those of others.
        metrics = self._model.get_metrics_result()
        others = {STALENESS: logs[STALENESS]} if STALENESS in logs else {}
        if {*metrics, *others} == set(logs):
            logs = {**metrics, **others}
        return super()._epoch_logs(logs)


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
