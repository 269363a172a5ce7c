# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` in Keras 3 on synchronous workers.

Every worker runs this loop on its part of the data. Metrics are those of all
workers.
"""

import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from tf_ext._compat.models import build_for, layers_of
from tf_ext._keras import keras
from tf_ext.distribute.bundles import Bundle
from tf_ext.regimes import (
    Carried,
    ReplicaWeight,
    SynchronousRegime,
    Updates,
    step_with,
)
from tf_ext.training.building import build_optimizer, example_of
from tf_ext.training.callback_protocols import Resuming, resuming_among
from tf_ext.training.feeds import Arguments, Batch, Logs, Sent, Spec, flat
from tf_ext.training.fit_arguments import FitOptions
from tf_ext.training.loop import TrainingLoop
from tf_ext.training.optional_batches import from_optional
from tf_ext.training.synchronous.ahead import AheadOfStep
from tf_ext.training.synchronous.checks import check_layers
from tf_ext.training.synchronous.feed import (
    TOLD,
    SynchronousFeed,
    worker_dataset,
)
from tf_ext.training.synchronous.programs import program_of

# In the names of folders of backups that nothing reads but a later `fit`.
_BACKUP = "tf_ext_backup_"
# Whose steps compute their logs of outputs and losses.
_PACKAGES = ("keras", "tensorflow_recommenders", "tf_ext")


class SynchronousLoop(TrainingLoop[SynchronousFeed]):
    """The loop of one compiled model; it keeps the traced steps.

    Args:
      model: keras.Model of Keras 3 that was made under a
        MultiWorkerMirroredStrategy of several workers.
    """

    _regime: SynchronousRegime

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._functions: dict[tuple[str, str], tuple[typing.Any, ...]] = {}
        self._resuming: Resuming | None = None

    def _training_feed(self, arguments: Arguments) -> SynchronousFeed:
        self._regime.processes.check_same(
            "fit", lambda: program_of(self._model, arguments)
        )
        return self._feed({**arguments, "steps": arguments["steps_per_epoch"]})

    def _feed(self, arguments: Arguments) -> SynchronousFeed:
        dataset, is_shared = worker_dataset(arguments, self._regime)
        return SynchronousFeed(
            dataset, arguments["steps"], self._regime, is_shared
        )

    def _build(self, feed: SynchronousFeed) -> None:
        model = self._model
        check_layers(model)
        example = example_of(feed.element_spec)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(example)
        if y is not None:
            build_for(model, example)
        elif not all(layer.built for layer in layers_of(model)):
            # Keras would also build metrics, which takes labels.
            with self._regime.scope():
                model(x)
        with self._regime.scope():
            build_optimizer(model)

    def _begin_training(self, callbacks: keras.callbacks.CallbackList) -> None:
        callbacks.on_train_begin()
        self._resuming = resuming_among(callbacks)
        if self._regime.processes.rank != 0:
            _detach_backups(callbacks)

    def _verbose(self, verbose: str | int) -> str | int:
        return verbose if self._regime.processes.rank == 0 else 0

    def _train_steps(
        self,
        feed: SynchronousFeed,
        batches: Iterable[Sent],
        options: FitOptions,
    ) -> Iterator[tuple[int, Logs]]:
        del options
        for logs in self._steps("train", feed, batches):
            yield 1, logs

    def _test_steps(
        self, feed: SynchronousFeed, batches: Iterable[Sent]
    ) -> Iterator[Logs | None]:
        return self._steps("test", feed, batches)

    def _predict_steps(
        self, feed: SynchronousFeed, batches: Iterable[Sent]
    ) -> Iterator[typing.Any]:
        return self._steps("predict", feed, batches)

    def _steps(
        self, kind: str, feed: SynchronousFeed, batches: Iterable[Sent]
    ) -> Iterator[typing.Any]:
        key = (kind, repr(feed.element_spec))
        if key not in self._functions:
            self._functions[key] = self._make_step(kind, feed.element_spec)
        function, send_first = self._functions[key]
        state = None
        if kind == "train" and self._resuming is not None:
            feed.while_waiting = self._resuming.end_if_preempted
        for batch, weight in batches:
            mine = [*feed.read_ahead(), self._is_preempted()]
            mine = tf.constant(mine, tf.int64)
            if send_first is None:
                result, told = function(batch, weight, mine)
            else:
                state = send_first(batch) if state is None else state
                result, told, state = function(
                    batch, weight, mine, state, feed.following()
                )
            told = told.numpy()
            feed.take(told[:, :TOLD])
            if feed.comes_later:
                state = None  # It was that of an empty batch.
            if kind == "train" and self._resuming is not None:
                self._resuming.tell_sigterm(bool(told[:, TOLD].any()))
            yield result

    def _is_preempted(self) -> bool:
        return self._resuming is not None and self._resuming.sigterm_received

    def _make_step(
        self, kind: str, element_spec: Spec
    ) -> tuple[Callable[..., typing.Any], Callable[..., typing.Any] | None]:
        """The function of a step, and what makes its first state, if any."""
        call = getattr(self._model, f"{kind}_step")
        at_once = kind == "train" and logs_precede_update(self._model)
        ahead = None
        if at_once:
            ahead = AheadOfStep(self._model, self._regime, element_spec) or None

        def replica_step(
            sent: tf.Tensor,
            weight: tf.Tensor,
            mine: tf.Tensor,
            *states: tf.Tensor,
        ) -> typing.Any:
            batch = from_optional(sent, element_spec)
            with step_with(weight=ReplicaWeight(weight)):
                if ahead is not None:
                    with ahead.step(*states) as following:
                        result = self._train_at_once(
                            call, batch, weight, mine, following.carried
                        )
                    last = self._last_of_step(kind, result)
                    return *result, following.state(last)
                if at_once:
                    return self._train_at_once(call, batch, weight, mine)
                result = call(batch)
            if kind == "predict":
                result = _gather(result)
            with tf.control_dependencies(self._last_of_step(kind, result)):
                mine = tf.identity(mine)
            if kind == "predict":
                return result, self._regime.processes.gather(mine)
            bundle = self._bundle(result, weight, mine)
            return self._global_logs(result, bundle, self._gathered(bundle))

        signature = [
            tf.TensorSpec([], tf.variant),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([TOLD + 1], tf.int64),
        ]
        if ahead is not None:
            signature += [tf.TensorSpec([], tf.variant)] * 2
        function = tf.function(
            lambda *args: self._regime.strategy.run(replica_step, args=args),
            input_signature=signature,
            autograph=False,  # As in Keras.
        )
        return function, ahead and ahead.first()

    def _train_at_once(
        self,
        call: Callable[..., Logs],
        batch: Batch,
        weight: tf.Tensor,
        mine: tf.Tensor,
        carried: Sequence[Carried] = (),
    ) -> tuple[Logs, tf.Tensor]:
        """Trains; the gradients take along what workers tell each other.

        So it is sent before the update, which uses the sums of gradients.
        """
        updates = Updates()
        with step_with(updates=updates):
            logs = call(batch)
        bundle = self._bundle(logs, weight, mine)
        told = Carried(bundle.words)
        updates.make([*carried, told] if bundle.is_whole else carried)
        gathered = told.gathered
        if gathered is None:
            with tf.control_dependencies(self._last_of_step("train", logs)):
                gathered = self._gathered(bundle)
        return self._global_logs(logs, bundle, gathered)

    def _gathered(self, bundle: Bundle) -> tf.Tensor:
        return self._regime.processes.workers.gather_words(
            tf.identity(bundle.words)
        )

    def _last_of_step(self, kind: str, result: typing.Any) -> list[tf.Tensor]:
        """What a step computes last, after everything that may raise.

        An error would leave a collective that has begun in the other workers,
        whose next one with the same key fails.
        """
        last = tf.nest.flatten(result)
        if kind == "train" and self._model.optimizer is not None:
            iterations = self._model.optimizer.iterations
            last.append(tf.convert_to_tensor(iterations))
        return last

    def _bundle(self, logs: Logs, weight: tf.Tensor, mine: tf.Tensor) -> Bundle:
        """What `_global_logs` sums, and `mine`."""
        states = [tf.convert_to_tensor(v) for v in self._metric_variables()]
        means = [
            # That of an empty share may be NaN.
            tf.math.multiply_no_nan(tf.cast(logs[name], tf.float32), weight)
            / self._regime.processes.count
            for name in self._means(logs)
        ]
        return self._regime.processes.workers.bundle([*states, *means], mine)

    def _metric_variables(self) -> list[typing.Any]:
        return [v for m in self._model.metrics for v in m.variables]

    def _means(self, logs: Logs) -> list[str]:
        """The names of logs that are no metrics."""
        own = set(self._model.get_metrics_result())
        return [name for name in logs if name not in own]

    def _global_logs(
        self, logs: Logs, bundle: Bundle, gathered: tf.Tensor
    ) -> tuple[Logs, tf.Tensor]:
        """What a step returned, over all workers, and `mine` of each.

        Metrics are computed from the sums of their variables; anything else
        is the mean over all samples.

        Args:
          logs: dict that the step returned.
          bundle: Bundle that `_bundle` returned.
          gathered: int32 `[workers, n]`, its words of all workers.
        """
        model, variables = self._model, self._metric_variables()
        sums, told = self._regime.processes.workers.unbundle(bundle, gathered)
        with keras.StatelessScope(state_mapping=list(zip(variables, sums))):
            metrics = model.get_metrics_result()
        means = zip(self._means(logs), sums[len(variables) :])
        values = {**metrics, **dict(means)}
        return flat({name: values[name] for name in logs}), told


def logs_precede_update(model: keras.Model) -> bool:
    """Whether the logs of a training step are the same before its update.

    They are in the steps of Keras and TensorFlow Recommenders, which compute
    them of outputs and losses.

    Args:
      model: keras.Model.
    """
    return all(
        base.__module__.partition(".")[0] in _PACKAGES
        for base in type(model).__mro__
        for name in ("train_step", "compute_metrics")
        if name in vars(base)
    )


def _gather(outputs: typing.Any) -> typing.Any:
    context = tf.distribute.get_replica_context()

    def gather(value: typing.Any) -> tf.Tensor:
        if not isinstance(value, tf.Tensor):
            raise ValueError(
                "The outputs of a model must be dense tensors for predict "
                f"under MultiWorkerMirroredStrategy. Received: {value!r}"
            )
        # TensorFlow cannot gather an output that is an input of the model,
        # which has no device.
        return context.all_gather(tf.identity(value), axis=0)

    return tf.nest.map_structure(gather, outputs)


def _detach_backups(callbacks: keras.callbacks.CallbackList) -> None:
    """Keeps all workers but the first from writing into one backup.

    They have restored from it, and continue to take part in saving. A later
    `fit` restores what they have saved with the first worker.
    """
    for callback in callbacks.callbacks:
        if isinstance(
            callback, keras.callbacks.BackupAndRestore
        ) and _BACKUP not in str(callback.backup_dir):
            model, params = callback.model, callback.params
            keras.callbacks.BackupAndRestore.__init__(
                callback,
                tempfile.mkdtemp(prefix=_BACKUP),
                save_freq=callback.save_freq,
                double_checkpoint=callback.double_checkpoint,
                delete_checkpoint=callback.delete_checkpoint,
            )
            callback.set_model(model)
            callback.set_params(params)
