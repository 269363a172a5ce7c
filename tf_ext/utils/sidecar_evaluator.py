# SPDX-License-Identifier: Apache-2.0
"""The evaluator of a training run, in a process of its own."""

import logging
import os
import time
import typing
from collections.abc import Sequence

from tf_ext._checks import check_count, is_finite, refuse
from tf_ext._compat.models import is_compiled
from tf_ext._keras import keras
from tf_ext.distribute import process_1
from tf_ext.serving.following import UNUSABLE, Follower, check_model
from tf_ext.snapshot.storage import normalised

_LOG = logging.getLogger("tf_ext")
_NAME = "SidecarEvaluator"  # As errors call it.

# Errors after which the next attempt can succeed: of points, and of an update
# of which a part was applied.
_TRANSIENT = (*UNUSABLE, RuntimeError)


class SidecarEvaluator:
    """Evaluates a model at each new recovery point of a training run.

    The counterpart of tf_keras's `keras.utils.SidecarEvaluator`, for both
    versions of Keras. It runs in a process that is not part of the training
    cluster: `"evaluator"` in `TF_CONFIG`. The training program writes recovery
    points with `tf_ext.callbacks.TableSnapshot`, under any strategy.

    `start` waits for a point, brings the model to it as
    `tf_ext.serving.follow` does, and calls `model.evaluate`; the result is that
    of `evaluate` in the training program at that step. Then it continues with
    the newest point. If points are written faster than they can be evaluated,
    some are skipped. Points that are being written are ignored until they are
    complete. A point that is damaged, or is removed while it is read, is not
    evaluated: the reason is logged, and the newest readable point is used.

    Args:
      model: a built and compiled Keras model with the same variables and tables
        as the one that is trained, made without a strategy. Tables created
        inside `tf_ext.serving.weights_only` take at most half of the memory.
      data: what `model.evaluate` takes as `x`, such as a tf.data.Dataset; it is
        read again for each point.
      checkpoint_dir: string or path-like, the directory of the points.
      steps: int or None, the number of batches of an evaluation. None: until
        the data end.
      max_evaluations: int or None, after how many evaluations `start` returns.
      callbacks: list of `keras.callbacks.Callback` for `model.evaluate`. The
        model's `optimizer.iterations` is the step of the point, so that
        `keras.callbacks.TensorBoard` writes metrics at that step.
      every: float, how often to look for a new point, in seconds.
      timeout_seconds: float or None, `start` returns if there has been no new
        point for so long, and raises an error if there has been none at all.
        None: it waits for as long as it takes.

    Example:
    >>> import tempfile
    >>> def build():
    ...     inputs = {"user": keras.Input((), dtype="int64", name="user")}
    ...     table = tf_ext.SparseTable("user", dim=1)
    ...     user = tf_ext.feature_column.category_column("user")
    ...     layer = tf_ext.layers.EmbeddingFeatures([user], table)
    ...     model = tf_ext.Model(inputs, layer(inputs))
    ...     model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    ...     return model
    >>> data = tf.data.Dataset.from_tensor_slices(
    ...     ({"user": np.arange(8)}, np.ones([8, 1]))).batch(4)
    >>> with tempfile.TemporaryDirectory() as points:
    ...     trained = build()
    ...     _ = trained.fit(data, epochs=3, verbose=0,
    ...         callbacks=[tf_ext.callbacks.TableSnapshot(points)])
    ...     evaluator = tf_ext.utils.SidecarEvaluator(
    ...         build(), data, points, max_evaluations=1)
    ...     logs = evaluator.start()
    >>> list(logs)
    [6]
    >>> logs[6] == trained.evaluate(data, verbose=0, return_dict=True)
    True
    """

    def __init__(
        self,
        model: keras.Model,
        data: typing.Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        every: float = 10.0,
        timeout_seconds: float | None = None,
    ) -> None:
        check_model(_NAME, model)
        if not (model.built and is_compiled(model)):
            refuse(_NAME, "model", "a built and compiled model", model)
        for name, count in (
            ("steps", steps),
            ("max_evaluations", max_evaluations),
        ):
            if count is not None:
                check_count(_NAME, name, count, least=1)
        if not is_finite(every) or every <= 0:
            allowed = "a positive finite number of seconds"
            refuse(_NAME, "every", allowed, every)
        if timeout_seconds is not None and not (
            is_finite(timeout_seconds) and timeout_seconds >= 0
        ):
            allowed = "a finite number of seconds of at least 0, or None"
            refuse(_NAME, "timeout_seconds", allowed, timeout_seconds)
        self.model = model
        self.data = data
        self.checkpoint_dir = normalised(checkpoint_dir)
        self.steps = steps
        self.max_evaluations = max_evaluations
        self.callbacks = list(callbacks or ())
        self.every = every
        self.timeout_seconds = timeout_seconds
        self._follower: Follower | None = None
        self._error: Exception | None = None

    def start(self) -> dict[int, dict[str, typing.Any]]:
        """Evaluates points until one of the limits is reached.

        Returns:
          `{step: logs}` of the points that were evaluated, in their order, with
          logs as of `model.evaluate(..., return_dict=True)`.

        Raises:
          TimeoutError: no point could be read within `timeout_seconds`.
          ValueError: the points are those of another model.
        """
        process_1.end_on_sigterm()
        results: dict[int, dict[str, typing.Any]] = {}
        evaluations = 0
        idle_since = time.monotonic()
        while self.max_evaluations is None or (
            evaluations < self.max_evaluations
        ):
            step = self._next_step()
            if step is not None:
                results[step] = self._evaluate(step)
                evaluations += 1
                idle_since = time.monotonic()
                continue
            left = self._seconds_left(idle_since)
            if left <= 0:
                break
            time.sleep(min(self.every, left))
        if self._follower is None:
            raise TimeoutError(
                "There has been no recovery point to evaluate in "
                f"{self.checkpoint_dir} for {self.timeout_seconds} s. Train "
                "with tf_ext.callbacks.TableSnapshot of that directory."
            ) from self._error
        return results

    def _seconds_left(self, idle_since: float) -> float:
        if self.timeout_seconds is None:
            return self.every
        return idle_since + self.timeout_seconds - time.monotonic()

    def _next_step(self) -> int | None:
        """Moves the model to a newer point; returns its step, or None."""
        try:
            if self._follower is None:
                self._follower = Follower(
                    self.model, self.checkpoint_dir, every=None
                )
            elif not self._follower.update():
                return None
        except FileNotFoundError:
            return None  # There is no point yet.
        except _TRANSIENT as error:
            # An error is raised again until there is another point.
            if str(error) != str(self._error):
                _LOG.warning(
                    "A recovery point cannot be evaluated: %s", str(error)
                )
            self._error = error
            return None
        return self._follower.step

    def _evaluate(self, step: int) -> dict[str, typing.Any]:
        optimizer = self.model.optimizer
        if hasattr(optimizer, "iterations"):
            optimizer.iterations.assign(step)
        logs = self.model.evaluate(
            self.data,
            steps=self.steps,
            callbacks=self.callbacks,
            verbose=0,
            return_dict=True,
        )
        _LOG.info(
            "Evaluation of step %d: %s",
            step,
            ", ".join(f"{name}={value}" for name, value in logs.items()),
        )
        return logs
