# SPDX-License-Identifier: Apache-2.0
"""The data of synchronous workers: a share of every global batch.

Before each step they agree whether any worker has data left, and on the total
number of samples: a worker without data continues with empty batches. A batch
is read before the step on the one before it, which takes along what the workers
tell each other of it.
"""

import itertools
import typing
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._compat.op_errors import in_own_words
from tf_ext.data import worker_batches
from tf_ext.data.epochs import tell_epoch
from tf_ext.data.errors import naming_read_errors, reading_error
from tf_ext.data.progress import (
    can_be_awaited,
    check_one_to_one,
    streams_of,
)
from tf_ext.distribute.addresses import task_name
from tf_ext.distribute.cluster import worker_tasks
from tf_ext.regimes import SynchronousRegime
from tf_ext.training.feeds import EpochFeed, Sent
from tf_ext.training.fit_arguments import dataset_of, makes_dataset
from tf_ext.training.optional_batches import as_optional, with_sizes
from tf_ext.training.positions import batches_of, place_of
from tf_ext.training.stream_steps import (
    ENDED,
    FAILED,
    HAS_BATCH,
    LATER,
    ROUND_SECONDS,
    agree,
    until,
    wait_for,
)
from tf_ext.training.synchronous.programs import SHARED

# The numbers that a worker tells of a batch: whether it has one, and its
# samples.
TOLD = 2
_Policy = tf.data.experimental.AutoShardPolicy


class SynchronousFeed(EpochFeed):
    """A worker's batches, until no worker has any left.

    Args:
      dataset: tf.data.Dataset, or another iterable with an `element_spec`, of
        this worker's batches.
      steps: int, the steps of an epoch; None to read the dataset to its end.
      regime: SynchronousRegime.
      is_shared: bool, whether the batches of the workers are parts of the same
        batches.
    """

    def __init__(
        self,
        dataset: typing.Any,
        steps: int | None,
        regime: SynchronousRegime,
        is_shared: bool,
    ) -> None:
        self.streams = streams_of(dataset)
        self._waits = can_be_awaited(dataset)
        # Batches that were read, but not trained on yet.
        self._in_hand = 0
        # What the workers do together while one waits for its batch.
        self.while_waiting: Callable[[], None] | None = None
        self.element_spec = worker_batches.relaxed_spec(dataset.element_spec)
        self._regime = regime
        self._is_shared = is_shared
        # Of `(scalar that holds a batch, its size)`.
        self._dataset: typing.Any
        if isinstance(dataset, tf.data.Dataset):
            self._dataset = with_sizes(dataset)
        else:
            self._dataset = _WithSizes(dataset)
        self._steps = steps
        self._iterator: typing.Any = None
        # Of an epoch that continues after a restart.
        self._next_step: tuple[tf.Tensor, tf.Tensor] | None = None
        # Whether a worker had no batch when it was to be read ahead.
        self.comes_later = False
        # The batch that was read last, its size and an error of reading it.
        self._read_batch: (
            tuple[tf.Tensor | None, int, Exception | None] | None
        ) = None
        # What all workers told of theirs; None until a step took it along.
        self._told: np.ndarray | None = None
        self._mine: list[int] = []
        self._empty: tf.Tensor | None = None
        self._is_last = False
        self._cardinality = getattr(dataset, "cardinality", None)
        self.num_batches = steps or self._most_batches()

    def _most_batches(self, most: int | None = None) -> int | None:
        """The most batches of a worker; None if they are not known.

        Args:
          most: int, see `batches_of`; None: they are not counted.
        """
        cardinality = self._cardinality
        count = int(cardinality()) if callable(cardinality) else -1
        if (
            most is not None
            and not self.streams
            and isinstance(self._dataset, tf.data.Dataset)
        ):
            count = batches_of(self._dataset, most)
        counts = self._regime.processes.gather(tf.constant([count], tf.int64))
        counts = counts.numpy().ravel()
        return int(counts.max()) if counts.min() >= 0 else None

    def steps_in(self, sent: Sent) -> int:
        del sent
        return 1

    def trained(self, steps: int) -> None:
        super().trained(steps)
        self._in_hand = max(0, self._in_hand - steps)

    def tell_epoch(self, number: int) -> None:
        # With `steps`, epochs are parts of one iteration.
        if self._steps is None:
            tell_epoch(self._dataset, number)

    def epoch(
        self, first_step: int = 0
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields `(batch, weight)` for each step of the next epoch.

        `batch` is what `as_optional` returns. `weight`, float32, is the weight
        of this worker's batch: the number of workers times its samples,
        divided by the samples of all. With `steps`, an epoch continues where
        the last one ended, and restarts when the data of all workers have
        ended.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        goes_on = self._steps is not None or self._next_step is not None
        goes_on = goes_on and self._iterator is not None
        if not goes_on:
            self._begin()
        steps = (
            itertools.count(first_step)
            if self._steps is None
            else range(first_step, self._steps)
        )
        self._told = None
        for number in steps:
            step, self._next_step = self._next_step or self._next(), None
            is_first = goes_on and number == first_step
            if step is None and is_first and not self.streams:
                self._begin()  # The epoch before has read all.
                step = self._next()
            if step is None:
                self._iterator = None
                return
            self._is_last = number + 1 == self._steps
            yield step

    def read_ahead(self) -> list[int]:
        """Reads the batch of the next step of the epoch.

        An error of reading it is raised when that step is asked for.

        Returns:
          What the workers have to tell each other about it, `TOLD` numbers,
          for `take`.
        """
        # The next epoch may never come, and the data may be waited for.
        return [ENDED, 0] if self._is_last else self._read(0.0)

    def following(self) -> tf.Tensor:
        """What `read_ahead` read; an empty batch if there is none."""
        if self._read_batch is None or self._read_batch[0] is None:
            return self._empty_batch()
        return self._read_batch[0]

    def take(self, told: np.ndarray) -> None:
        """Takes what all workers told.

        Args:
          told: int64 `[workers, TOLD]`, what `read_ahead` returned on each.
        """
        self._told = None if self._is_last else told
        self.comes_later = bool((told[:, 0] == LATER).any())

    def _begin(self) -> None:
        for stream in self.streams:
            stream.prepare()
        self._in_hand = 0
        self._iterator = iter(self._dataset)

    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        read = first_step
        if self._steps is not None:
            most = (epoch - initial_epoch + 1) * self._steps
            epoch, first_step, read = place_of(
                epoch,
                first_step,
                self._steps,
                self._most_batches(most),
                initial_epoch,
            )
        self._begin()
        # A stream begins where it was.
        for _ in range(0 if self.streams else read):
            next(self._iterator, None)
        if self._steps is None and first_step:
            self._next_step = self._next()
            if self._next_step is None:
                return epoch + 1, 0
        return epoch, first_step

    def _read(self, seconds: float) -> list[int]:
        """Reads a batch, if one comes within some time."""
        batch, size, error = None, 0, None
        try:
            if self._waits and not wait_for(
                self.streams, self._in_hand + 1, until(seconds)
            ):
                self._mine = [LATER, 0]
                return self._mine
        except Exception as caught:  # As below.
            self._read_batch = batch, size, caught
            self._mine = [FAILED, size]
            return self._mine
        try:
            with in_own_words(), naming_read_errors():
                batch, size = next(self._iterator, (None, 0))
        except Exception as caught:  # Raised when the other workers know it.
            error = caught
        size = int(size)
        state = ENDED if batch is None else HAS_BATCH
        self._in_hand += state
        self._read_batch = batch, size, error
        self._mine = [FAILED if error is not None else state, size]
        return self._mine

    def _next(self) -> tuple[tf.Tensor, tf.Tensor] | None:
        told, self._told = self._told, None

        def tell() -> list[int]:
            if self._read_batch is None:
                self._read(ROUND_SECONDS)
            return self._mine

        processes = self._regime.processes
        rows = agree(processes, tell, self.while_waiting, told)
        assert self._read_batch is not None
        (batch, size, error), self._read_batch = self._read_batch, None
        if rows[:, 0].max() == FAILED:
            self._raise(error)
        if rows[:, 0].max() == ENDED:
            return None
        if self._is_shared:
            self._check_parts(rows[:, 1])
        if batch is None:
            batch = self._empty_batch()
        total = rows[:, 1].sum()
        weight = len(rows) * size / total if total else 0.0
        return batch, tf.constant(weight, tf.float32)

    def _empty_batch(self) -> tf.Tensor:
        if self._empty is None:
            self._empty = as_optional(
                worker_batches.blank_batch(self.element_spec, 0)
            )
        return self._empty

    def _check_parts(self, sizes: np.ndarray) -> None:
        """Raises ValueError for sizes that are not of parts of one batch."""
        ends = sizes.sum() * np.arange(len(sizes) + 1) // len(sizes)
        if not np.array_equal(sizes, np.diff(ends)):
            tasks, _ = worker_tasks(self._regime.strategy)
            each = ", ".join(
                f"{size} on {task_name(*task)}"
                for task, size in zip(tasks, sizes, strict=True)
            )
            raise ValueError(
                "The synchronous workers read different batches. Each must "
                "read the same batch and take its part, but the numbers of "
                f"samples of these parts are {each}. Give all workers the "
                "same data in the same order and the same batch size; or use "
                "AutoShardPolicy.OFF, or a function as `x`, for data that "
                "differ."
            )

    def _raise(self, error: Exception | None) -> typing.NoReturn:
        found = self._regime.processes.workers.first_error_caught(error)
        before = (
            "The data of a worker cannot be read, so training ends on all "
            "workers. "
        )
        raise (
            reading_error(found, f"{before}{found.partition(': ')[0]}: ")
            or RuntimeError(before + found)
        ) from error


class _WithSizes:
    """As `with_sizes` of another iterable than a tf.data.Dataset.

    Args:
      batches: iterable.
    """

    def __init__(self, batches: Iterable[typing.Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[tf.Tensor, int]]:
        for batch in self._batches:
            yield as_optional(batch), worker_batches.known_batch_size(batch)


def worker_dataset(
    arguments: dict[str, typing.Any], regime: SynchronousRegime
) -> tuple[typing.Any, bool]:
    """The dataset of this worker's batches.

    Args:
      arguments: dict of the arguments of `fit` or a similar method, with
        `steps`.
      regime: SynchronousRegime.

    Returns:
      `(dataset, is_shared)`, as SynchronousFeed takes them.
    """
    workers, rank = regime.processes.count, regime.processes.rank
    x = arguments["x"]
    if isinstance(x, tf.distribute.DistributedDataset):
        return x, False
    if makes_dataset(x):
        context = tf.distribute.InputContext(workers, rank, workers)
        own = dataset_of(arguments, context=context)
        check_one_to_one(own)
        return worker_batches.variable_batch_size(own), False
    if streams_of(x):
        refuse_stream(x)
    dataset = dataset_of(arguments, seed=_common_seed(regime))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == _Policy.OFF:
        own = worker_batches.cut_batches(dataset, workers)
    elif policy in SHARED:
        own = worker_batches.worker_share(dataset, workers, rank)
    else:
        own = _batches_of_files(dataset, regime, policy)
    return own.prefetch(tf.data.AUTOTUNE), policy in SHARED


def refuse_stream(x: typing.Any) -> typing.NoReturn:
    """Raises the ValueError of a stream that workers cannot divide."""
    allowed = (
        "a function from the tf.distribute.InputContext, as `shard`, to a "
        "tf_ext.data.stream under MultiWorkerMirroredStrategy, so that each "
        "worker reads its own partitions"
    )
    refuse("fit", "x", allowed, x)


def _batches_of_files(
    dataset: tf.data.Dataset, regime: SynchronousRegime, policy: typing.Any
) -> tf.data.Dataset:
    """The batches of this worker's files, if there are enough for all."""
    workers = regime.processes.count
    own, error = None, ""
    try:
        own = worker_batches.shard_files(
            dataset, workers, regime.processes.rank
        )
    except tf.errors.OpError as caught:
        error = caught.message
    failed = tf.constant([own is None], tf.int64)
    if tf.reduce_max(regime.processes.gather(failed)) == 0:
        return worker_batches.cut_batches(own, workers)
    raise ValueError(
        f"The dataset's auto_shard_policy is {policy.name}, but it cannot be "
        f"shared by file over {workers} workers. {error} Use "
        "AutoShardPolicy.DATA, or more files."
    )


def _common_seed(regime: SynchronousRegime) -> int:
    """A random number that is the same on all workers."""
    mine = tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int64)
    return regime.processes.int_of_first(int(mine))
