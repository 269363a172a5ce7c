# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` under ParameterServerStrategy.

For both Kerases. The coordinator reads the data, schedules a step for each
batch on whichever worker is free, and has a limited number of steps in flight.
Results are taken in the order of the batches, so that callbacks, logs and
predictions come in the order of one process.
"""

import collections
import contextlib
import functools
import typing
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._compat.clusters import own_executor
from tf_ext._compat.models import steps_per_execution
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.progress import check_one_to_one
from tf_ext.data.worker_streams import TracedStreamError
from tf_ext.distribute import training_counts
from tf_ext.distribute.addresses import task_name
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import StepLostError
from tf_ext.recovery.pause import Pause
from tf_ext.training import recommenders
from tf_ext.training.building import (
    build_model,
    build_optimizer,
    example_of,
)
from tf_ext.training.callback_protocols import resuming_among
from tf_ext.training.feeds import Arguments, Logs, Lost, Sent, StepFeed, flat
from tf_ext.training.fit_arguments import (
    FitOptions,
    dataset_of,
    makes_dataset,
)
from tf_ext.training.loop import TrainingLoop
from tf_ext.training.parameter_servers.feed import Feed, WorkerFeed
from tf_ext.training.parameter_servers.inflight import InFlight
from tf_ext.training.parameter_servers.shares import ShareFeed
from tf_ext.training.parameter_servers.step_numbers import step_numbers
from tf_ext.training.parameter_servers.steps import (
    STALENESS,
    Step,
    StepFunctions,
)
from tf_ext.training.parameter_servers.stream_feed import StreamFeed

_EXECUTIONS_PER_WORKER = 2


class ParameterServerLoop(TrainingLoop[StepFeed]):
    """The loop of one compiled model; it keeps the traced steps.

    Args:
      model: keras.Model that was made under a ParameterServerStrategy.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            self._regime.strategy
        )
        self._functions = StepFunctions(model)
        self._inflight = InFlight(self._coordinator)
        # Of calls under way, which may be nested.
        self._feeds: list[StepFeed] = []
        self._pause = Pause()

    @contextlib.contextmanager
    def running(self, method: str) -> Iterator[None]:
        """The context of a call, after which its feeds are closed."""
        opened = len(self._feeds)
        with own_executor():
            try:
                with super().running(method):
                    yield
            finally:
                while len(self._feeds) > opened:
                    self._feeds.pop().close()

    def _begin_training(self, callbacks: keras.callbacks.CallbackList) -> None:
        _check_backups(callbacks.callbacks)
        self._pause = Pause()
        resuming = resuming_among(callbacks)
        if resuming is not None:
            resuming.take_pause(self._pause)
        callbacks.on_train_begin()

    def _train_steps(
        self,
        feed: StepFeed,
        batches: Iterable[Sent],
        options: FitOptions,
    ) -> Iterator[tuple[int, Logs]]:
        step = self._functions.get("train", feed, options.overlap_steps)
        limit = options.max_inflight_steps
        feed.lost = None if options.retry_steps else self._lost()
        staleness = []
        logs = {}
        with feed.explaining_errors():
            for steps, tensors in self._steps(
                "train", feed, step, batches, limit, self._pause
            ):
                if tensors is not None:
                    logs = step.logs(tensors)
                    staleness.append(logs.pop(STALENESS, 0.0))
                    training_counts.add_staleness(float(staleness[-1]))
                mean = float(np.mean(staleness or [0.0]))
                yield steps, {**logs, STALENESS: mean}

    def _test_steps(
        self, feed: StepFeed, batches: Iterable[Sent]
    ) -> Iterator[Logs | None]:
        step = self._functions.get("test", feed)
        logs = None
        for _, tensors in self._steps("test", feed, step, batches):
            if tensors is not None:
                logs = step.logs(tensors)
            yield logs

    def _predict_steps(
        self, feed: StepFeed, batches: Iterable[Sent]
    ) -> Iterator[typing.Any]:
        step = self._functions.get("predict", feed)
        for tensors in self._results(feed, step, batches, repeatable=True):
            yield step.result(tensors)

    def _training_feed(self, arguments: Arguments) -> StepFeed:
        feed = self._opened(self._unnumbered_feed(arguments))
        feed.number = step_numbers(self._regime.strategy).begin
        return feed

    def _unnumbered_feed(self, arguments: Arguments) -> StepFeed:
        x, steps = arguments["x"], arguments["steps_per_epoch"]
        execution = steps_per_execution(self._model)
        if not makes_dataset(x):
            dataset = dataset_of({**arguments, "steps": steps})
            check_one_to_one(dataset)
            return Feed(dataset, steps, execution)
        weights = arguments["class_weight"]
        try:
            if steps is None:
                return ShareFeed(self._coordinator, x, weights, execution)
            return WorkerFeed(self._coordinator, x, steps, weights, execution)
        except TracedStreamError:
            if execution > 1:
                refuse(
                    "compile",
                    "steps_per_execution",
                    "1 where workers read a stream",
                    execution,
                )
            return StreamFeed(self._coordinator, x, steps, weights)

    def _opened(self, feed: StepFeed) -> StepFeed:
        self._feeds.append(feed)
        return feed

    def _feed(self, arguments: Arguments) -> Feed:
        return Feed(dataset_of(arguments), arguments["steps"])

    def _test_feed(self, arguments: Arguments) -> StepFeed:
        if makes_dataset(arguments["x"]) and arguments["steps"] is None:
            return self._opened(ShareFeed(self._coordinator, arguments["x"]))
        return self._feed(arguments)

    def _steps(
        self,
        kind: str,
        feed: StepFeed,
        step: Step,
        batches: Iterable[Sent],
        limit: int | None = None,
        pause: Pause | None = None,
    ) -> Iterator[tuple[int, list[tf.Tensor] | None]]:
        """Yields the number of steps, and their results or None."""
        is_stopped = functools.partial(self._is_stopped, kind)
        wanted = _Wanted(feed, batches, is_stopped)
        for results in self._results(feed, step, wanted, limit, pause):
            steps, results = wanted.made(results)
            if steps:
                yield steps, results

    def _results(
        self,
        feed: StepFeed,
        step: Step,
        batches: Iterable[Sent],
        limit: int | None = None,
        pause: Pause | None = None,
        repeatable: bool = False,
    ) -> Iterator[typing.Any]:
        workers = len(cluster_of(self._regime.strategy)["worker"])
        if limit:
            limit = max(1, limit // step.steps_per_execution)
        limit = limit or _EXECUTIONS_PER_WORKER * workers
        start = feed.starter(self._coordinator, step.function_for)
        return self._inflight.run(
            *(start, batches, limit, repeatable),
            *(feed.ended, pause, feed.has_lost_steps),
        )

    def _lost(self) -> Lost:
        """The errors of lost steps, which threads of lost workers may keep."""
        addresses = cluster_of(self._regime.strategy)["worker"]
        return lambda worker: StepLostError(
            {task_name("worker", worker): addresses[worker]}
        )

    def _verbose(self, verbose: str | int) -> str | int:
        if verbose == "auto" and not IS_KERAS_3:
            return 2  # As in tf_keras under this strategy.
        return verbose

    def _build(self, feed: StepFeed) -> None:
        """Makes variables where Keras would in the first step."""
        model = self._model
        with self._regime.scope():
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

    def _epoch_logs(self, logs: Logs) -> Logs:
        # The last step's metrics can lack updates of other steps.
        metrics = flat(self._model.get_metrics_result())
        others = {STALENESS: logs[STALENESS]} if STALENESS in logs else {}
        if {*metrics, *others} == set(logs):
            logs = {**metrics, **others}
        else:
            logs = recommenders.with_metrics(self._model, logs, metrics)
        return super()._epoch_logs(logs)


class _Wanted:
    """What an epoch sends; once more what found no data where it was sent.

    So the begin of each step that callbacks are told of is followed by its
    end, unless the data of all workers end before, or a callback ends the
    steps: a stream may have no more data for hours. A step that was lost with
    its worker is made all the same, as servers may have a part of it.
    """

    def __init__(
        self,
        feed: StepFeed,
        batches: Iterable[Sent],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._feed = feed
        self._batches = iter(batches)
        self._is_stopped = is_stopped
        self._again: list[Sent] = []
        self._steps: collections.deque[int] = collections.deque()

    def __iter__(self) -> Iterator[Sent]:
        return self

    def __next__(self) -> Sent:
        if self._is_stopped():
            self._again.clear()
        if not self._again:
            try:
                self._again.append(next(self._batches))
            except StopIteration:
                if self._steps or not self._feed.has_lost_steps():
                    raise
                self._again.extend(self._feed.sent_again())
        sent = self._again.pop()
        self._steps.append(self._feed.steps_in(sent))
        return sent

    def made(
        self, results: list[tf.Tensor] | None
    ) -> tuple[int, list[tf.Tensor] | None]:
        """The steps that were made, and their results, of the next sent."""
        steps, results = self._feed.made(self._steps.popleft(), results)
        if not steps:
            self._again.extend(self._feed.sent_again())
        return steps, results


def _check_backups(callbacks: list[keras.callbacks.Callback]) -> None:
    """Raises for backups within epochs, which tf_keras does not write here."""
    if IS_KERAS_3:
        return
    for callback in callbacks:
        frequency = getattr(callback, "save_freq", "epoch")
        if (
            isinstance(callback, keras.callbacks.BackupAndRestore)
            and frequency != "epoch"
        ):
            raise ValueError(
                "Argument `save_freq` of BackupAndRestore must be 'epoch' "
                "under ParameterServerStrategy in tf_keras, which saves "
                f"nothing otherwise. Received: save_freq={frequency!r}. For "
                "more backups make epochs shorter by `steps_per_epoch`."
            )


def _compiled_parts(model: keras.Model) -> list[typing.Any]:
    if not IS_KERAS_3:
        return []
    names = ("_compile_loss", "_compile_metrics")
    parts = [getattr(model, name, None) for name in names]
    return [part for part in parts if part is not None]
