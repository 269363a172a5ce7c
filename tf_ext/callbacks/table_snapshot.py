# SPDX-License-Identifier: Apache-2.0
"""Writes recovery points during training, and continues from them."""

import contextlib
import logging
import math
import posixpath
import time
import typing
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._checks import (
    check_max_bytes_per_second,
    is_finite,
    is_int,
    refuse,
)
from tf_ext._keras import keras
from tf_ext.data.progress import StreamProgress, merged
from tf_ext.distribute import coordinators, training_counts
from tf_ext.recovery import beside, files, points, preemption
from tf_ext.recovery import warm_start as warm_starts
from tf_ext.recovery.pause import Pause
from tf_ext.recovery.points import Point
from tf_ext.regimes import regime_of_tables
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.manifest import DamagedSnapshotError, Manifest
from tf_ext.snapshot.point_names import end_directory
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.saving.snapshot_save import Save
from tf_ext.tables.sparse_table import SparseTable

_LOG = logging.getLogger("tf_ext")

# Number of deltas between full snapshots.
_MAX_DELTAS = 10


class TableSnapshot(keras.callbacks.Callback):
    """Saves the state of training, and continues from it after a kill.

    A recovery point holds the rows and slots of all tables, the dense
    weights, the optimizer's state, and the position in the data: the epoch and
    the step in it. When `tf_ext.Model.fit` begins in a new process with the
    same callback, the model is restored from the newest point, the batches that
    it has seen are skipped, and training continues. If the data come in the
    same order each time, the result is that of uninterrupted training. A
    damaged point is skipped with a warning, and the previous one is used.
    `fit` logs which point it continues from and at which epoch and step, and
    warns if that point leaves nothing to train.

    A point is written at the end of `fit`, and before it as `steps`, `seconds`
    and `epoch_end` say. It is of the step after which it begins: training waits
    while rows are copied to files, and continues while these are synced and the
    point is completed. An error of that is raised after a later step. `fit`
    calls the other callbacks first, so a point has what they change after its
    step, such as the rows that `Evict` removes, wherever it is in the list.

    With `warm_start`, the first `fit` into an empty directory begins with the
    rows and weights of another run, of a model that may have other tables,
    layers and dims: `tf_ext.callbacks.warm_start` with `missing="initial"`.

    The first `fit` of a callback object looks for a point; later ones continue
    with the model as it is. Where a program calls `fit` several times, let
    `initial_epoch` and `epochs` count on, or give each call an object and a
    directory of its own: epochs that begin at 0 again are taken for those of
    the first call. Streams of `tf_ext.data.stream` go on behind the records
    that the model has seen. Metrics of the epoch that was interrupted, and the
    state of other callbacks, start again: `EarlyStopping`, `ModelCheckpoint`
    and `ReduceLROnPlateau` do not know the best value until then. What
    callbacks set the learning rate to as an epoch begins is in the points
    within it, and is not changed once more. The position in generators and
    `keras.utils.Sequence` cannot be restored: their epoch starts again. Arrays
    that `fit` shuffles (`shuffle=True`, its default) have another order in a
    new process, which a warning tells of if training goes on within an epoch.
    An epoch within which a callback set `stop_training` has ended: a restart
    does not train on the rest of it, but on the epochs behind it.
    Under ParameterServerStrategy a point that is due waits for the steps in
    flight, and no further one begins before it is written. Under
    MultiWorkerMirroredStrategy each worker writes its own rows, and the first
    worker everything else.

    `evaluate` and `predict` refuse the callback: `tf_ext.callbacks.warm_start`
    loads a point for them.

    Only the process that last began to write points into a directory may write
    there. An earlier one, perhaps believed dead, raises
    `tf_ext.snapshot.SnapshotConflictError` at its next point.

    Args:
      directory: string or path-like, for points only; on any file system of
        TensorFlow that all parameter servers, or workers, share.
      steps: int or None, the number of steps between points. Training waits
        for a point that is not complete when the next one is due.
      seconds: float or None, the time between points, at least: the next one
        begins after the one before is complete.
      epoch_end: bool, a point at the end of each epoch. None: if neither
        `steps` nor `seconds` is given.
      keep: int, how many of the newest points are kept.
      incremental: bool, whether points hold only the rows that changed; after
        each 11th, all rows are written beside it while training continues.
        Points that others continue are kept as well.
      max_bytes_per_second: int or None, a limit for writing rows.
      on_sigterm: bool, whether SIGTERM during `fit` is a notice of preemption.
        The steps under way are finished, a point is written, and `fit` raises
        `SystemExit` with status 143. A signal in the last step of an epoch of
        known length, or during validation, takes effect at the end of the
        epoch. Under MultiWorkerMirroredStrategy the workers agree in each step:
        if one of them gets the signal, all stop after the same step.
      warm_start: what training begins with if `directory` has no point: the
        `source` of `tf_ext.callbacks.warm_start`, or None.

    Example:
    >>> import tf_ext
    >>> snapshot = tf_ext.callbacks.TableSnapshot(
    ...     "/tmp/training", steps=1000, keep=2, incremental=True)
    >>> snapshot.keep
    2
    """

    def __init__(
        self,
        directory: str,
        steps: int | None = None,
        seconds: float | None = None,
        epoch_end: bool | None = None,
        keep: int = 3,
        incremental: bool = False,
        max_bytes_per_second: int | None = None,
        on_sigterm: bool = False,
        warm_start: warm_starts.Source | None = None,
    ) -> None:
        super().__init__()
        value: typing.Any
        for name, value, kind in (
            ("steps", steps, "integer"),
            ("seconds", seconds, "finite number"),
            ("keep", keep, "integer"),
        ):
            optional = name != "keep"
            if value is None and optional:
                continue
            is_kind = is_int if kind == "integer" else is_finite
            if not is_kind(value) or value <= 0:
                allowed = f"a positive {kind}{' or None' if optional else ''}"
                refuse("TableSnapshot", name, allowed, value)
        check_max_bytes_per_second("TableSnapshot", max_bytes_per_second)
        if epoch_end is None:
            epoch_end = steps is None and seconds is None
        self.directory = normalised(directory, "TableSnapshot", "directory")
        self.steps = steps
        self.seconds = seconds
        self.epoch_end = epoch_end
        self.keep = keep
        self.incremental = incremental
        self.max_bytes_per_second = max_bytes_per_second
        self.on_sigterm = on_sigterm
        self.warm_start = warm_start
        self._notice = preemption.Notice()
        self._streams: list[StreamProgress] = []
        self._shares: points.SharePositions | None = None
        # What a loop told of it last, or None.
        self._told_sigterm: bool | None = None
        self._pause = Pause()
        # Whether `fit` is tf_ext's, and whether it has found no point or
        # continued from one.
        self._asked = self._resumed = self._fits = False
        self._claimed = False
        self._claim: Claim | None = None  # of the first worker
        self._point = Point(0, 0, 0, "")
        # Of the last step.
        self._logs: dict[str, typing.Any] = {}
        self._saved = self._point  # The last one; without a path: none.
        self._saved_time = time.monotonic()
        self._at_epoch_end = False
        # `(epoch, its learning rate)` of a point within an epoch, until that
        # begins.
        self._restored_rate: tuple[int, typing.Any] | None = None
        # The point that is being written beside training, or None.
        self._beside: beside.Beside | None = None

    @contextlib.contextmanager
    def during_fit(self) -> Iterator[None]:
        """The context of `fit`, in which SIGTERM is a notice if asked for."""
        self._notice = preemption.Notice()
        awaited = self._notice.awaited()
        with awaited if self.on_sigterm else contextlib.nullcontext():
            try:
                yield
            finally:
                self._fits = False
                # An epoch that was interrupted begins again.
                self._move(step_in_epoch=0)
                # `fit` waits for a point, unless it was interrupted.
                unfinished, self._beside = self._beside, None
                if unfinished is not None:
                    unfinished.abandon()

    @property
    def sigterm_received(self) -> bool:
        """Whether SIGTERM has come to this process, if that is a notice."""
        return self.on_sigterm and self._notice.received

    def tell_sigterm(self, anywhere: bool) -> None:
        """Tells whether SIGTERM had come to any worker as a step began.

        A loop that tells it with each step saves the callback from asking.
        """
        self._told_sigterm = anywhere

    def take_streams(
        self,
        streams: Sequence[StreamProgress],
        shares: points.SharePositions | None = None,
    ) -> None:
        """Told what is trained on, whose positions it saves."""
        self._streams = list(streams)
        self._shares = shares

    def take_pause(self, pause: Pause) -> None:
        """Told what steps that are under way at once wait by."""
        self._pause = pause

    def can_resume(self) -> bool:
        """Whether `fit`, which asks, should begin with `resume`.

        Not after a first time, unless that was interrupted.
        """
        self._asked = True
        if not self._resumed and self.warm_start is None:
            self._resumed = not files.list_points(self.directory)
        return not self._resumed

    def resume(self, model: keras.Model, epochs: int) -> Point | None:
        """Restores a model from the newest complete point.

        A point behind the epochs of this `fit` is of a later one in the same
        program, which restores it, too.

        Args:
          model: a built `tf_ext.Model`.
          epochs: int, argument of `fit`.

        Returns:
          The Point; None after a warm start, as there was none.

        Raises:
          DamagedSnapshotError: no point can be read.
        """
        # Claim first, so that a process believed dead cannot remove what is
        # read.
        self._claim_directory(model)
        failure: typing.Any = None
        passed_over = []
        found = files.list_points(self.directory)
        if not found and self.warm_start is not None:
            warm_starts.warm_start(model, self.warm_start, missing="initial")
            self._resumed = True
            return None
        for path in reversed(found):
            try:
                with files.naming(path):
                    point = points.read(path, model, self._load_table)
            except DamagedSnapshotError as error:
                _LOG.warning("A recovery point cannot be used: %s", error)
                failure = error
                passed_over.append(path)
                continue
            points.pass_over(passed_over, self._claim)
            self._resumed = (point.epoch, point.step_in_epoch) <= (epochs, 0)
            # A later `fit` may read others.
            if self._resumed:
                self._restore_streams(point)
            self._point = self._saved = point
            self._restored_rate = None
            rate = _rate_variable(model)
            if point.step_in_epoch and rate is not None:
                restored = np.asarray(tf.convert_to_tensor(rate))
                self._restored_rate = point.epoch, restored
            return point
        raise failure

    def _restore_streams(self, point: Point) -> None:
        if len(point.streams) != len(self._streams):
            raise ValueError(
                f"The data have {len(self._streams)} streams, but "
                f"{len(point.streams)} when {point.path} was written: where "
                "the others begin is not known. Train on the same streams, or "
                "begin with another directory, with `warm_start`."
            )
        for stream, state in zip(self._streams, point.streams, strict=True):
            stream.restore(state)
        if self._shares is not None and point.shares is not None:
            self._shares.restore(point.shares)

    def _stream_states(self) -> tuple[dict[str, typing.Any], ...]:
        """Where the streams are, of which workers may read parts."""
        if not self._streams:
            return ()
        processes = regime_of_tables(self.model.tables).processes
        own = [stream.own_state() for stream in self._streams]
        states = processes.gather_json(own)
        return tuple(merged(of_one) for of_one in zip(*states, strict=True))

    def _load_table(self, table: SparseTable, path: str) -> Manifest:
        return table.load(path, incremental=self.incremental)

    def on_train_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        if not self._asked:
            raise ValueError(
                "The model of TableSnapshot must be a tf_ext.Model: the `fit` "
                "of others would not continue from a recovery point. "
                f"Received: {self.model!r}"
            )
        self._saved_time = time.monotonic()
        self._fits = True

    def on_test_begin(self, logs: dict[str, typing.Any] | None = None) -> None:
        if not self._fits:  # It does not belong to `fit`.
            self._refuse("evaluate")

    def on_predict_begin(
        self, logs: dict[str, typing.Any] | None = None
    ) -> None:
        if not self._fits:
            self._refuse("predict")

    def _refuse(self, method: str) -> None:
        raise ValueError(
            "TableSnapshot restores a point in `fit` alone; with the callback, "
            f"`{method}` would use the weights that the model has. Call "
            f"tf_ext.callbacks.warm_start(model, {self.directory!r}) before "
            f"`{method}`, and leave the callback out."
        )

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        self._at_epoch_end = False
        # A point within an epoch has the learning rate of that epoch. A
        # `LearningRateScheduler` of a function of epoch and rate, which comes
        # before this callback, has just changed it once more.
        restored, self._restored_rate = self._restored_rate, None
        if restored is not None and restored[0] == epoch:
            _rate_variable(self.model).assign(restored[1])
        if epoch != self._point.epoch:
            self._move(epoch=epoch, step_in_epoch=0)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        done = batch + 1
        self._logs = logs or {}
        self._go_on()
        self._move(
            step=self._point.step + done - self._point.step_in_epoch,
            step_in_epoch=done,
        )
        if done >= (self._param("steps") or math.inf):
            # At the end of an epoch what belongs to it comes first.
            self._at_epoch_end = self._at_epoch_end or self._is_due()
            self._pause.then = None
        elif not self._pause.under_way:
            self._save_or_end()
        elif self._is_due() or self.sigterm_received:
            # The point would have some of their updates, not their position.
            self._pause.then = self._save_or_end

    def _save_or_end(self) -> None:
        """Writes a point if it is due; ends the program if that is."""
        if self._is_due():
            self._save()
        self.end_if_preempted()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, typing.Any] | None = None
    ) -> None:
        self._told_sigterm = None  # It may have come since.
        self._move(epoch=epoch + 1, step_in_epoch=0)
        is_due = self.epoch_end or self._at_epoch_end or self._is_last(epoch)
        if is_due or self._has_point_of_last_step():
            self._save()
        self.end_if_preempted()

    def _has_point_of_last_step(self) -> bool:
        """Whether the end of an epoch changes what its last step's point has.

        In data of unknown length, a step is not known to be the last one.
        """
        saved = self._saved
        at_end = saved.step_in_epoch > 0 and not self._point.step_in_epoch
        return at_end and self._point.step == saved.step

    def _is_last(self, epoch: int) -> bool:
        """Whether training ends with an epoch.

        The point of its end comes before what callbacks restore then.
        """
        return self.model.stop_training or epoch + 1 == self._param("epochs")

    def _param(self, name: str) -> int | None:
        """What `fit` has told all callbacks; None if it has not."""
        params = getattr(self, "params", None) or {}
        return params.get(name)

    def on_train_end(self, logs: dict[str, typing.Any] | None = None) -> None:
        if self._point.step > self._saved.step:
            self._save()
        self._go_on(wait=True)
        self.end_if_preempted()
        self._release_directory()

    def end_if_preempted(self) -> None:
        """Ends the program after a point, if SIGTERM has come."""
        if not (self.on_sigterm and self._is_preempted()):
            return
        self._save()
        self._go_on(wait=True)
        self._release_directory()
        _LOG.warning(
            "On SIGTERM, training ends after step %d, to resume from %s.",
            self._point.step,
            self._point.path,
        )
        # Other tasks of the cluster may have ended.
        coordinators.keep(regime_of_tables(self.model.tables).strategy)
        raise SystemExit(preemption.STATUS)

    def _is_preempted(self) -> bool:
        """Whether SIGTERM has come to any of the processes that train."""
        told, self._told_sigterm = self._told_sigterm, None
        if told is not None:
            return told
        regime = regime_of_tables(self.model.tables)
        if regime.processes.count > 1:
            mine = tf.constant([int(self._notice.received)], tf.int64)
            return bool(tf.reduce_any(regime.processes.gather(mine) > 0))
        return self._notice.received

    def _release_directory(self) -> None:
        claim, self._claimed, self._claim = self._claim, False, None
        if claim is not None:
            claim.release()

    def _claim_directory(self, model: keras.Model) -> None:
        if not self._claimed:
            self._claim = points.claim(self.directory, model)
            self._claimed = True

    def _move(self, **changes: typing.Any) -> None:
        self._point = Point(**(vars(self._point) | changes))

    def _is_due(self) -> bool:
        steps = self._point.step - self._saved.step
        due = self.steps is not None and steps >= self.steps
        # What is under way may take longer than this, and steps go on.
        if self.seconds is None or self._beside is not None:
            return due
        # The clock of the first worker decides for all.
        milliseconds = regime_of_tables(
            self.model.tables
        ).processes.int_of_first(
            int(1000 * (time.monotonic() - self._saved_time))
        )
        return due or milliseconds >= 1000 * self.seconds

    def _save(self) -> None:
        step = self._point.step
        path = files.path_of(self.directory, step)
        if self._has_point_of_last_step():
            path = end_directory(path)
        elif self._saved.path and step == self._saved.step:
            return  # Nothing was trained since then.
        begin = time.monotonic()
        self._go_on(wait=True)
        self._claim_directory(self.model)
        changes = {
            "path": path,
            "streams": self._stream_states(),
            "shares": self._shares and self._shares.state(),
            "logs": _numbers(self._logs) if self._point.step_in_epoch else {},
        }
        point = Point(**(vars(self._point) | changes))
        self._beside = beside.Beside(
            self._parts(point),
            regime_of_tables(self.model.tables).processes,
            f"Saving the recovery point {path}",
        )
        self._point = self._saved = point
        self._saved_time = time.monotonic()
        training_counts.add_point_pause(self._saved_time - begin)

    def _go_on(self, wait: bool = False) -> None:
        """Goes on with the point that is being written, if there is one."""
        if self._beside is not None and self._beside.go_on(wait):
            self._beside = None

    def _parts(self, point: Point) -> beside.Parts:
        """Writes a point, and then what bounds the length of its chain."""
        begin = time.monotonic()
        yield from points.write(point, self.model, self._save_of, self._claim)
        seconds = time.monotonic() - begin
        training_counts.add_point(point.step, seconds)
        yield lambda: points.prune(self.directory, self.keep, self._claim)
        whole = self._whole_of(point) if self.incremental else []
        if whole:
            yield from points.write_whole(whole)

    def _options(self, step: int) -> dict[str, typing.Any]:
        return {"step": step, "max_bytes_per_second": self.max_bytes_per_second}

    def _save_of(self, index: int, table: SparseTable, path: str) -> Save:
        options = self._options(self._point.step)
        if not self.incremental:
            return Save(table.rows, path, **options)
        chain = table.rows.chain.links
        last = chain[-1][0] if chain else ""
        ours = posixpath.dirname(files.point_of(last)) == self.directory
        if ours and last != path:
            return Save(table.rows, path, base=last, **options)
        if ours:
            table.end_incremental()
        return Save(table.rows, path, incremental=True, **options)

    def _whole_of(self, point: Point) -> list[Save]:
        """What bounds the chains of tables that have become long."""
        saves = []
        for index, table in enumerate(self.model.tables):
            links = table.rows.chain.links
            if len(links) > 1 + _MAX_DELTAS:
                path = files.base_path(point.path, index)
                saves.append(
                    Save(
                        table.rows,
                        path,
                        id=links[-1][1],
                        **self._options(point.step),
                    )
                )
        return saves


def _rate_variable(model: keras.Model) -> typing.Any:
    """The learning rate; None unless it can be assigned."""
    rate: typing.Any = getattr(model.optimizer, "learning_rate", None)
    return rate if hasattr(rate, "assign") else None


def _numbers(logs: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """The logs that are numbers, or arrays of them, as JSON holds them."""
    numbers = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = np.asarray(value, np.float64).tolist()
    return numbers
