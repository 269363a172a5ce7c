"""Recovery points while training, and training that goes on from them."""

import logging
import posixpath
import time

import tensorflow as tf

from tf_ext._checks import check_max_bytes_per_second, is_finite, is_int
from tf_ext._keras import keras
from tf_ext._snapshot_manifest import DamagedSnapshotError
from tf_ext.callbacks import recovery_points
from tf_ext.callbacks.recovery_points import Point
from tf_ext.snapshot.storage import normalised

_LOG = logging.getLogger("tf_ext")

# Deltas after which a full snapshot is written again.
_MAX_DELTAS = 10


class TableSnapshot(keras.callbacks.Callback):
    """Saves all that training needs to go on after a kill, and goes on.

    A recovery point holds the rows and slots of all tables, the dense
    weights, the optimizer's state, and where in the data training was: the
    epoch and the steps into it. When `tf_ext.Model.fit` begins in a new
    process with the same callback, the model is restored from the newest
    point, the batches that it has seen are skipped, and training goes on.
    With data that come in the same order each time, the result is that of
    training without a break. A point that is damaged is passed over for the
    one before, with a warning.

    The first `fit` of a callback object looks for a point; later ones go on
    with the model as it is. Metrics of the epoch that was interrupted, and the
    states of other callbacks, begin anew. The position in generators and
    `keras.utils.Sequence` cannot be restored: their epoch begins anew.
    Under ParameterServerStrategy steps that were under way may count twice.
    Under MultiWorkerMirroredStrategy each worker writes its own rows, and the
    first worker all else.

    The process that began to write points into a directory last is the one
    that may. Another one, which was thought dead perhaps, raises
    `tf_ext.snapshot.SnapshotConflictError` at its next point.

    Args:
      directory: string or path-like, for the points alone; on any file system
        of TensorFlow, one that all
        parameter servers, or workers, share.
      steps: int or None, a point each so many steps.
      seconds: float or None, a point as soon as so much time has passed.
      epoch_end: bool, a point at the end of each epoch. None: if neither
        `steps` nor `seconds` is given.
      keep: int, how many of the newest points stay.
      incremental: bool, whether only rows that changed are written, most of
        the time; each 11th point holds all rows. Points that others continue
        stay, too.
      max_bytes_per_second: int or None, a limit for writing rows.

    Example:
    >>> import tf_ext
    >>> snapshot = tf_ext.callbacks.TableSnapshot(
    ...     "/tmp/training", steps=1000, keep=2, incremental=True)
    >>> snapshot.keep
    2
    """

    def __init__(
        self,
        directory,
        steps=None,
        seconds=None,
        epoch_end=None,
        keep=3,
        incremental=False,
        max_bytes_per_second=None,
    ):
        super().__init__()
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
                raise ValueError(
                    f"Argument `{name}` of TableSnapshot must be a positive "
                    f"{kind}{' or None' if optional else ''}. Received: "
                    f"{name}={value!r}"
                )
        check_max_bytes_per_second(max_bytes_per_second)
        if epoch_end is None:
            epoch_end = steps is None and seconds is None
        self.directory = normalised(directory)
        self.steps = steps
        self.seconds = seconds
        self.epoch_end = epoch_end
        self.keep = keep
        self.incremental = incremental
        self.max_bytes_per_second = max_bytes_per_second
        self._resumed = False
        self._claimed = False
        self._claim = None  # of the first worker
        self._point = Point(0, 0, 0, "")
        self._saved_step = 0
        self._saved_time = time.monotonic()
        self._at_epoch_end = False

    def can_resume(self):
        """Whether `fit` should begin with `resume`: asked once, by `fit`."""
        first, self._resumed = not self._resumed, True
        return first and bool(recovery_points.list_points(self.directory))

    def resume(self, model):
        """Restores a model from the newest point that is whole.

        Args:
          model: a built `tf_ext.Model`.

        Returns:
          The Point.

        Raises:
          DamagedSnapshotError: no point can be read.
        """
        # Before a process that was thought dead removes what is read here.
        self._claim_directory(model)
        failure = None
        for path in reversed(recovery_points.list_points(self.directory)):
            try:
                with recovery_points.naming(path):
                    point = recovery_points.read(path, model, self._load_table)
            except DamagedSnapshotError as error:
                _LOG.warning("A recovery point cannot be used: %s", error)
                failure = error
                continue
            _LOG.info(
                "Training goes on from %s: epoch %d, step %d of it.",
                path,
                point.epoch,
                point.step_in_epoch,
            )
            self._point = point
            self._saved_step = point.step
            return point
        raise failure

    def _load_table(self, table, path):
        return table.load(path, incremental=self.incremental)

    def on_train_begin(self, logs=None):
        if not self._resumed:
            raise ValueError(
                "TableSnapshot needs the `fit` of a tf_ext.Model: another one "
                "would not go on from a recovery point. Received: "
                f"{self.model!r}"
            )
        self._saved_time = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        self._at_epoch_end = False
        if epoch != self._point.epoch:
            self._move(epoch=epoch, step_in_epoch=0)

    def on_train_batch_end(self, batch, logs=None):
        done = batch + 1
        self._move(
            step=self._point.step + done - self._point.step_in_epoch,
            step_in_epoch=done,
        )
        if not self._is_due():
            return
        # At the end of an epoch what belongs to it comes first.
        if self.params.get("steps") == done:
            self._at_epoch_end = True
        else:
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        self._move(epoch=epoch + 1, step_in_epoch=0)
        if self.epoch_end or self._at_epoch_end:
            self._save()

    def on_train_end(self, logs=None):
        if self._claim is not None:
            self._claim.release()
        self._claimed, self._claim = False, None

    def _claim_directory(self, model):
        if not self._claimed:
            self._claim = recovery_points.claim(self.directory, model)
            self._claimed = True

    def _move(self, **changes):
        self._point = Point(**(vars(self._point) | changes))

    def _is_due(self):
        steps = self._point.step - self._saved_step
        seconds = time.monotonic() - self._saved_time
        collectives = recovery_points.collectives_of_tables(self.model)
        if self.seconds is not None and collectives is not None:
            # The clock of the first worker counts for all.
            mine = tf.constant([int(seconds * 1000)], tf.int64)
            seconds = int(collectives.gather(mine)[0, 0]) / 1000
        return (self.steps is not None and steps >= self.steps) or (
            self.seconds is not None and seconds >= self.seconds
        )

    def _save(self):
        step = self._point.step
        path = recovery_points.path_of(self.directory, step)
        if self._point.path == path:
            return  # Nothing was trained since.
        self._move(path=path)
        self._claim_directory(self.model)
        recovery_points.write(
            self._point, self.model, self._save_table, self._claim
        )
        recovery_points.prune(self.directory, self.keep, self._claim)
        self._saved_step = step
        self._saved_time = time.monotonic()

    def _save_table(self, index, table, path):
        options = {
            "step": self._point.step,
            "max_bytes_per_second": self.max_bytes_per_second,
        }
        if not self.incremental:
            return table.save(path, **options)
        chain = table.rows.snapshot_chain
        ours = (
            chain
            and posixpath.dirname(posixpath.dirname(chain[-1][0]))
            == self.directory
        )
        if ours and (len(chain) > _MAX_DELTAS or chain[-1][0] == path):
            table.end_incremental()
            ours = False
        if ours:
            return table.save(path, base=chain[-1][0], **options)
        return table.save(path, incremental=True, **options)
