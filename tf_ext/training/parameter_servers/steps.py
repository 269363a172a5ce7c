# SPDX-License-Identifier: Apache-2.0
"""The steps that workers run."""

import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext._compat.counters import make_metric_exact
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops.passes.bundle_ops import bundle_transfers
from tf_ext.regimes import regime_of_model
from tf_ext.regimes.step_context import (
    StepNumber,
    Updates,
    after,
    step_with,
)
from tf_ext.training.feeds import Batch, Logs, Sent, StepFeed, flat
from tf_ext.training.parameter_servers import step_numbers

STALENESS = "staleness"

# The most steps of a function without a loop: each adds to its graph, and to
# the time until it first runs.
MOST_UNROLLED = 16


class StepFunctions:
    """The traced steps of one compiled model.

    Args:
      model: keras.Model that was made under a ParameterServerStrategy.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._made: dict[tuple[typing.Any, ...], Step] = {}

    def get(self, kind: str, feed: StepFeed, overlaps: bool = False) -> "Step":
        """The step for the batches of a feed.

        Args:
          kind: "train", "test" or "predict".
          feed: StepFeed.
          overlaps: as of Step.

        Returns:
          Step.
        """
        key = (
            *(kind, type(feed).__name__, repr(feed.element_spec)),
            *(feed.steps_per_execution, overlaps),
        )
        if key not in self._made:
            self._made[key] = Step(self._model, kind, feed, overlaps)
        return self._made[key]


class Step:
    """Steps as a tf.function, and the decoder of its result.

    If the feed has several steps per execution, a function runs as many as it
    is sent batches for, one after the other, and returns the logs of the last:
    those of the others are not computed. There are two such functions. One has
    a loop; the other has each step in its graph, for whole executions of few
    steps. What is in a loop cannot be sent together, and each turn of a loop
    over several tasks takes messages of its own.

    Args:
      model: keras.Model.
      kind: "train", "test" or "predict".
      feed: StepFeed.
      overlaps: bool, whether a step of a whole execution computes while the
        updates of the one before it are made; for 2 to MOST_UNROLLED steps.

    Attributes:
      steps_per_execution: int, the most steps of a call of a function.
    """

    def __init__(
        self,
        model: keras.Model,
        kind: str,
        feed: StepFeed,
        overlaps: bool = False,
    ) -> None:
        self._call = getattr(model, f"{kind}_step")
        self._read = {
            "train": self._train,
            "test": self._logs,
            "predict": self._outputs,
        }[kind]
        self._optimizer = getattr(model, "optimizer", None)
        self._structure: typing.Any = None
        if IS_KERAS_3 and kind != "predict":
            for metric in model.metrics:
                make_metric_exact(metric)
        self._regime = regime_of_model(model)
        self._strategy: tf.distribute.Strategy = self._regime.strategy
        self._unpack = tf.autograph.experimental.do_not_convert(feed.unpack)
        self._steps_in = tf.autograph.experimental.do_not_convert(feed.steps_in)
        self.steps_per_execution = feed.steps_per_execution

        # Only training changes what a step that runs again would change twice.
        self.is_numbered = kind == "train"
        numbers = [step_numbers.SPEC] if self.is_numbered else []

        def function(run: Callable[..., list[tf.Tensor]]) -> typing.Any:
            return tf.function(
                feed.traced(run),
                input_signature=feed.signature
                and [tuple(feed.signature), *numbers],
                # As in the respective Keras.
                autograph=not IS_KERAS_3,
            )

        if self.steps_per_execution == 1:
            self._function = self._whole = function(self._run_one)
        else:
            self._function = function(self._run_several)
            self._whole = (
                function(self._run_overlapped if overlaps else self._run_whole)
                if self.steps_per_execution <= MOST_UNROLLED
                else self._function
            )

    def function_for(self, steps: int) -> typing.Any:
        """The tf.function for a number of steps."""
        is_whole = steps == self.steps_per_execution
        return self._whole if is_whole else self._function

    def _run_one(self, sent: Sent, *numbers: tf.Tensor) -> list[tf.Tensor]:
        bundle_transfers()
        return self._strategy.run(
            self._read, args=(self._unpack(sent), *numbers)
        )

    def _run_several(self, sent: Sent, numbers: tf.Tensor) -> list[tf.Tensor]:
        """Trains on the batches that were sent."""
        iterations = getattr(self._optimizer, "iterations", None)
        steps = self._steps_in(sent)
        if iterations is not None:
            before = tf.identity(iterations)
            with tf.control_dependencies([before]):
                steps = tf.identity(steps)

        def step(index: tf.Tensor) -> tuple[tf.Tensor]:
            batch = self._unpack(sent, index)
            self._strategy.run(
                self._call_numbered, args=(batch, numbers, index)
            )
            return (index + 1,)

        (last,) = tf.while_loop(
            lambda index: index < steps - 1,
            step,
            (tf.zeros([], tf.int64),),
            parallel_iterations=1,
        )
        logs = self._strategy.run(
            self._call_numbered,
            args=(self._unpack(sent, last), numbers, last),
        )
        if iterations is not None:
            after = tf.identity(iterations)
            logs = {**logs, STALENESS: self._staleness(before, after, steps)}
        return self._packed(logs)

    def _run_whole(self, sent: Sent, numbers: tf.Tensor) -> list[tf.Tensor]:
        """As `_run_several`, for as many batches as can be."""
        bundle_transfers()
        iterations = getattr(self._optimizer, "iterations", None)

        def completed() -> list[tf.Tensor]:
            return [] if iterations is None else [tf.identity(iterations)]

        before = completed()
        ends = [before, before]
        for index in range(self.steps_per_execution):
            # One batch is prepared ahead of its step, not all.
            with tf.control_dependencies(ends[-2]):
                batch = self._unpack(sent, tf.constant(index, tf.int64))
            logs = self._strategy.run(
                self._call_numbered, args=(batch, numbers, index)
            )
            ends.append(completed())
        if iterations is not None:
            staleness = self._staleness(
                before[0], ends[-1][0], self.steps_per_execution
            )
            logs = {**logs, STALENESS: staleness}
        return self._packed(logs)

    def _run_overlapped(
        self, sent: Sent, numbers: tf.Tensor
    ) -> list[tf.Tensor]:
        """As `_run_whole`; each step reads before the last one's update.

        Operations on the same rows or variables run in the order in which they
        are traced here: a step reads what the step before the last one wrote.
        """
        bundle_transfers()
        iterations = getattr(self._optimizer, "iterations", None)
        before = None if iterations is None else tf.identity(iterations)
        done: list[Updates] = []
        waiting: typing.Any = None
        for index in range(self.steps_per_execution):
            # Two batches are prepared ahead of their steps: the second one's
            # ids are sent together with the gradients for which they wait.
            with tf.control_dependencies(_gradients(done[:-2])):
                batch = self._unpack(sent, tf.constant(index, tf.int64))
            logs, updates = self._strategy.run(
                self._delayed,
                args=(batch, _gradients(done), numbers, index),
            )
            done.append(updates)
            if waiting is not None:
                self._strategy.run(self._update, args=waiting)
            waiting = updates, batch
        self._strategy.run(self._update, args=waiting)
        if before is not None:
            staleness = self._staleness(
                before, tf.identity(iterations), self.steps_per_execution
            )
            # All steps but the first one miss an update of their own worker.
            staleness += 1.0 - 1.0 / self.steps_per_execution
            logs = {**logs, STALENESS: staleness}
        return self._packed(logs)

    def _delayed(
        self,
        batch: Batch,
        before: list[tf.Tensor],
        numbers: tf.Tensor,
        index: int,
    ) -> tuple[Logs, Updates]:
        """A step's logs, and its updates, which have not been made.

        Args:
          batch: nested structure of tensors.
          before: list of tensors; the step computes when they are there.
          numbers: as of `_call_numbered`.
          index: as of `_call_numbered`.
        """
        updates = Updates()
        with step_with(updates=updates, rows_after=before):
            logs = self._call_numbered(batch, numbers, index)
        return logs, updates

    def _call_numbered(
        self, batch: Batch, numbers: tf.Tensor, index: int | tf.Tensor = 0
    ) -> Logs:
        """A step's logs; servers know the step by its number.

        Args:
          batch: nested structure of tensors.
          numbers: int64 `[2]`, as of `Begun`.
          index: int64 scalar, which of the steps that it numbers.
        """
        number = numbers
        if not (isinstance(index, int) and index == 0):
            number += tf.stack([tf.cast(index, tf.int64), 0])
        with step_with(number=StepNumber(number)):
            return self._call(batch)

    @staticmethod
    def _update(updates: Updates, batch: Batch) -> None:
        with after(batch):
            updates.make()

    @staticmethod
    def _staleness(
        before: tf.Tensor, after: tf.Tensor, steps: int | tf.Tensor
    ) -> tf.Tensor:
        """Steps of others from an execution's begin to its end, a step."""
        others = tf.cast(after - before, tf.float64) - tf.cast(
            steps, tf.float64
        )
        return tf.maximum(others, 0.0) / tf.cast(steps, tf.float64)

    def result(self, tensors: Sequence[tf.Tensor]) -> typing.Any:
        """What the step returned, from the tensors of its function."""
        return tf.nest.pack_sequence_as(
            self._structure, tensors, expand_composites=True
        )

    def logs(self, tensors: Sequence[tf.Tensor]) -> Logs:
        """The dict that a train or test step returned, of floats."""
        scalars, *others = tensors
        names, other_names = self._structure
        logs = dict(zip(names, map(float, scalars), strict=True))
        logs.update(zip(other_names, others, strict=True))
        return logs

    def _train(self, batch: Batch, numbers: tf.Tensor) -> list[tf.Tensor]:
        iterations = getattr(self._optimizer, "iterations", None)
        if iterations is None:
            return self._packed(self._call_numbered(batch, numbers))
        before = tf.identity(iterations)
        # Otherwise it might be read after the updates of other steps.
        with tf.control_dependencies([before]):
            batch = tf.nest.map_structure(
                tf.identity, batch, expand_composites=True
            )
        logs = self._call_numbered(batch, numbers)
        others = tf.identity(iterations) - before - 1
        return self._packed({**logs, STALENESS: tf.maximum(others, 0)})

    def _logs(self, batch: Batch) -> list[tf.Tensor]:
        return self._packed(self._call(batch))

    def _packed(self, logs: Logs) -> list[tf.Tensor]:
        # One tensor takes one message.
        logs = {k: tf.convert_to_tensor(v) for k, v in flat(logs).items()}
        scalars = [k for k in logs if logs[k].shape.rank == 0]
        others = [k for k in logs if k not in scalars]
        self._structure = scalars, others
        packed = [tf.cast(logs[k], tf.float64) for k in scalars]
        packed = tf.stack(packed) if packed else tf.zeros([0], tf.float64)
        return [packed, *(logs[k] for k in others)]

    def _outputs(self, batch: Batch) -> list[tf.Tensor]:
        outputs = self._call(batch)
        flat = tf.nest.flatten(outputs, expand_composites=True)
        self._structure = tf.nest.map_structure(
            tf.type_spec_from_value, outputs
        )
        return [tf.identity(tensor) for tensor in flat]


def _gradients(steps: Sequence[Updates]) -> list[tf.Tensor]:
    """Those of the last one of some steps, if there is one."""
    return steps[-1].gradients if steps else []
