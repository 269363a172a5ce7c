# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step between the workers of a synchronous strategy.

TensorFlow keeps the state of a collective for ever under its instance key, and
refuses the same key for another shape. So a key here stands for a kind and a
shape, and sizes that vary are rounded up to a few values: memory does not grow
with the number of steps. Every worker has to make the same calls in the same
order. Tokens keep this order among those with the same key; others do not wait
for each other, because each takes a round trip.

A worker whose step raises cancels the collectives that it has not finished, and
the others' next ones of these keys would fail. So an error that all workers
raise waits for the collectives before it, and those after it wait for it.
"""

import bisect
import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._compat.graphs import attached_to_graph
from tf_ext.distribute.bundles import Bundle
from tf_ext.distribute.cluster import worker_tasks
from tf_ext.ops.exchange import exchange_ops

# TensorFlow counts its own groups up from 1.
_GROUP_KEY = 0x7F5E0001
_MAX_SIZE = 1 << 40
# The upper half of an instance key.
_KINDS = {
    "all_to_all int64": 1,
    "all_to_all float32": 2,
    "gather int64": 3,
    "sum float32": 4,
    "sum float64": 5,
    "sum float16": 6,
    "sum bfloat16": 7,
    "sum int32": 8,
    "sum int64": 9,
    "gather int32": 10,
}
_ERROR_BYTES = 1024
_GATHERED_WORDS = 1 << 15

# Up to this size in all, workers add up what each receives from all others: a
# reduction by a ring sends less, but takes twice the rounds.
_GATHERED_SUM_BYTES = 1 << 20

_lock = threading.Lock()
_of_device: dict[str, "Collectives"] = {}


def _make_ladder(steps: int) -> list[int]:
    """Rising sizes, each at most `1 + 1 / steps` times the one before."""
    ladder = list(range(1, 2 * steps))
    unit = 2
    while ladder[-1] < _MAX_SIZE:
        ladder += [unit * n for n in range(steps, 2 * steps)]
        unit *= 2
    return ladder


# Sizes of variables do not change: padding costs more than further keys.
_FINE_LADDER = _make_ladder(64)


class Remembered:
    """A number that one use leaves to the next.

    Attributes:
      value: int64 scalar, what the previous use left.
    """

    def __init__(self, resource: tf.Tensor) -> None:
        self._resource = resource
        self.value = tf.raw_ops.ReadVariableOp(
            resource=resource, dtype=tf.int64
        )

    def keep(self, value: tf.Tensor) -> tf.Operation | None:
        """Leaves an int64 scalar to the next use; returns the operation."""
        return tf.raw_ops.AssignVariableOp(resource=self._resource, value=value)


class Collectives:
    """Collectives between all workers of a MultiWorkerMirroredStrategy.

    Attributes:
      size: int, the number of workers.
      rank: int, the rank of this worker.
      device: string, the device where they run.
    """

    def __init__(self, size: int, rank: int, device: str) -> None:
        self.size = size
        self.rank = rank
        self.device = device
        self._remembered: dict[Hashable, tf.Tensor] = {}
        self._tokens: dict[Hashable, tf.Tensor] = {}

    def _token(self, key: Hashable) -> tf.Tensor:
        """What the collectives take that have to run one after the other.

        Automatic control dependencies keep operations on one resource in the
        order of the program, in nested functions too.

        Args:
          key: hashable, of those collectives.
        """
        if key not in self._tokens:
            with tf.init_scope(), tf.device(self.device):
                self._tokens[key] = tf.raw_ops.VarHandleOp(
                    dtype=tf.float32,
                    shape=[],
                    shared_name=f"tf_ext_collectives_{key}",
                )
        return self._tokens[key]

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[list[tf.Tensor]]:
        """A context of a collective, after the errors that precede it.

        Yields:
          List for its result.
        """
        begun, checked = _order()
        with tf.device(self.device), tf.control_dependencies(checked):
            yield begun

    def all_to_all(
        self,
        pack: Callable[[tf.Tensor], tf.Tensor],
        dtype: tf.DType,
        wanted: tf.Tensor,
    ) -> tf.Tensor:
        """Sends a row to each worker, and receives a row from each.

        Args:
          pack: function of a width, int64 scalar, to a `[size, width]` tensor
            whose row p goes to worker p.
          dtype: tf.int64 or tf.float32, of that tensor.
          wanted: int64 scalar, the width needed; the same on all workers.

        Returns:
          `[size, width]`, row p from worker p.
        """
        width, index = exchange_ops.exchange_width(wanted)
        with tf.device(self.device):
            row = pack(width)
        with self._ordered() as begun:
            received = tf.raw_ops.CollectiveAllToAllV2(
                input=row,
                group_size=self.size,
                group_key=_GROUP_KEY,
                instance_key=_instance_key(f"all_to_all {dtype.name}", index),
                ordering_token=[self._token("all_to_all")],
            )
            begun.append(received)
        received.set_shape([self.size, None])
        return received

    def remembered(self, key: Hashable, first: int) -> Remembered:
        """A number that one use leaves to the next.

        It is the same on all workers if all make the same uses in the same
        order, whichever graphs these are in.

        Args:
          key: hashable, which number.
          first: int, the value that the first use finds.

        Returns:
          `Remembered`.
        """
        if key not in self._remembered:
            with tf.init_scope(), tf.device(self.device):
                resource = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64,
                    shape=[],
                    shared_name=f"tf_ext_remembered_{len(self._remembered)}",
                )
                tf.raw_ops.AssignVariableOp(
                    resource=resource, value=tf.constant(first, tf.int64)
                )
            self._remembered[key] = resource
        return Remembered(self._remembered[key])

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Values of all workers.

        Args:
          values: int64 `[n]`, n static and less than 2^16.

        Returns:
          int64 `[size, n]`, row p from worker p.
        """
        (length,) = values.shape
        return self._gather(values, _instance_key("gather int64", length))

    def _gather(
        self, values: tf.Tensor, instance_key: int | tf.Tensor
    ) -> tf.Tensor:
        """Values `[n]` of all workers, `[size, n]`."""
        with tf.device(self.device):
            row = tf.expand_dims(values, 0)
        with self._ordered() as begun:
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=row,
                group_size=self.size,
                group_key=_GROUP_KEY,
                instance_key=instance_key,
                ordering_token=[self._token(instance_key)],
            )
            begun.append(gathered)
        gathered.set_shape([self.size, *values.shape])
        return gathered

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums of tensors over all workers.

        Args:
          tensors: list of tensors of numbers, of static shapes.

        Returns:
          List of tensors like `tensors`, the same on all workers.
        """
        return self.sum_and_gather(tensors, tf.zeros([0], tf.int64))[0]

    def sum_and_gather(
        self, tensors: Sequence[tf.Tensor], values: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Sums tensors and gathers values, in one collective if all are small.

        Args:
          tensors: as of `sum`.
          values: int64 `[n]`, n static and less than 2^16.

        Returns:
          `(sums, gathered)`: a list of tensors like `tensors`, and int64
          `[size, n]`, row p from worker p.
        """
        bundle = self.bundle(tensors, values)
        return self.unbundle(bundle, self.gather_words(bundle.words))

    def bundle(self, tensors: Sequence[tf.Tensor], values: tf.Tensor) -> Bundle:
        """What `sum_and_gather` gathers, as one vector.

        For those who gather it themselves, beside other data.

        Args:
          tensors: as of `sum`.
          values: as of `sum_and_gather`.

        Returns:
          Bundle.
        """
        return Bundle(tensors, values, _GATHERED_SUM_BYTES // self.size)

    def unbundle(
        self, bundle: Bundle, gathered: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The results of `sum_and_gather`.

        Args:
          bundle: Bundle.
          gathered: int32 `[size, n]`, row p the `words` of worker p's bundle.
        """
        with tf.device(self.device):
            return bundle.unpack(gathered, self._reduce)

    def gather_words(self, words: tf.Tensor) -> tf.Tensor:
        """Words of all workers.

        Args:
          words: int32 `[n]`, n static.

        Returns:
          int32 `[size, n]`, row p from worker p.
        """
        (count,) = words.shape
        if not count:
            return tf.tile(words[tf.newaxis], [self.size, 1])
        index = bisect.bisect_left(_FINE_LADDER, count)
        key = _instance_key("gather int32", index)
        with tf.device(self.device):
            padded = tf.pad(words, [[0, _FINE_LADDER[index] - count]])
            return self._gather(padded, key)[:, :count]

    def _reduce(self, values: tf.Tensor) -> tf.Tensor:
        """The sums of values `[n]` over all workers."""
        count = values.shape[0]
        index = bisect.bisect_left(_FINE_LADDER, count)
        key = _instance_key(f"sum {values.dtype.name}", index)
        with tf.device(self.device):
            row = tf.pad(values, [[0, _FINE_LADDER[index] - count]])
        with self._ordered() as begun:
            reduced = tf.raw_ops.CollectiveReduceV2(
                input=row,
                group_size=self.size,
                group_key=_GROUP_KEY,
                instance_key=key,
                ordering_token=[self._token(key)],
                merge_op="Add",
                final_op="Id",
            )
            begun.append(reduced)
            return reduced[:count]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Gathers bytes of all workers, outside of graphs.

        Args:
          data: bytes.

        Returns:
          List of bytes, one per worker.
        """
        lengths = self.gather(tf.constant([len(data)], tf.int64)).numpy()[:, 0]
        # Each new length would be another instance.
        words = int(exchange_ops.exchange_width(-(-lengths.max() // 8)).width)
        parts = [b""] * self.size
        for begin in range(0, words, _GATHERED_WORDS):
            part = data[8 * begin : 8 * (begin + _GATHERED_WORDS)]
            count = min(words - begin, _GATHERED_WORDS)
            row = np.frombuffer(part.ljust(8 * count, b"\0"), np.int64)
            rows = self.gather(tf.constant(row)).numpy()
            parts = [p + row.tobytes() for p, row in zip(parts, rows)]
        return [part[:length] for part, length in zip(parts, lengths)]

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Makes all workers raise after the block if one of them did.

        It is for blocks outside of graphs.

        Args:
          what: string, what the block does, for the message.

        Raises:
          RuntimeError: another worker raised; it has that worker's message.
        """
        error = None
        try:
            yield
        except Exception as caught:
            error = caught
        first = self.first_error_caught(error)
        if error is not None:
            raise error
        if first:
            raise RuntimeError(f"{what} failed. {first}")

    def raise_error(self, error: tf.Tensor) -> tf.Tensor:
        """Raises an error that all workers have, of a step.

        Args:
          error: string scalar, the same on all workers; "" for none.

        Returns:
          Tensor that is there if there is no error.

        Raises:
          tf.errors.InvalidArgumentError: when it runs.
        """
        begun, checked = _order()
        with tf.control_dependencies(begun):
            checked.append(exchange_ops.raise_error(error))
        return checked[-1]

    def first_error_caught(self, error: Exception | None) -> str:
        """As `first_error`, outside of graphs.

        Args:
          error: Exception, None on workers without.
        """
        text = "" if error is None else f"{type(error).__name__}: {error}"
        # File names need not be UTF-8.
        data = text.encode(errors="backslashreplace")
        first = self.first_error(tf.constant(data)).numpy()
        # It may end within a character.
        return first.decode(errors="ignore")

    def first_error(self, error: tf.Tensor) -> tf.Tensor:
        """The error of the first worker that has one.

        Args:
          error: string scalar, "" on workers without.

        Returns:
          string scalar, the same on all workers: "Worker 1: ..." or "".
        """
        text = tf.strings.substr(error, 0, _ERROR_BYTES)
        codes = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int64)
        length = tf.size(codes)
        codes = tf.pad(codes, [[0, _ERROR_BYTES - length]])
        row = tf.concat([tf.cast(length, tf.int64)[tf.newaxis], codes], 0)
        row.set_shape([1 + _ERROR_BYTES])
        rows = self.gather(row)
        first = tf.argmax(rows[:, 0] > 0)
        length = rows[first, 0]
        characters = tf.constant([bytes([code]) for code in range(256)])
        text = tf.strings.reduce_join(
            tf.gather(characters, rows[first, 1 : 1 + length])
        )
        return tf.where(
            length > 0,
            tf.strings.join(
                ["Worker ", tf.strings.as_string(first), ": ", text]
            ),
            "",
        )


def _order() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """`(begun, checked)`: a graph's collectives and errors, in their order.

    Outside of graphs each has ended before the next one begins.
    """
    if tf.executing_eagerly():
        return [], []
    kept = attached_to_graph(tf.compat.v1.get_default_graph(), "collectives")
    return kept.setdefault("begun", []), kept.setdefault("checked", [])


def _instance_key(kind: str, index: int | tf.Tensor) -> int | tf.Tensor:
    return (_KINDS[kind] << 16) + index


def collectives_of(
    strategy: tf.distribute.Strategy | None,
) -> Collectives | None:
    """The collectives of a strategy's workers.

    Args:
      strategy: a tf.distribute strategy, or None.

    Returns:
      `Collectives`; None if it is not a MultiWorkerMirroredStrategy, or one of
      a single worker.

    Raises:
      NotImplementedError: workers with several replicas.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    tasks, rank = worker_tasks(strategy)
    size = max(1, len(tasks))
    if strategy.num_replicas_in_sync != size:
        raise NotImplementedError(
            "Tables need one replica per worker under "
            f"MultiWorkerMirroredStrategy. Received: a strategy with {size} "
            f"workers and {strategy.num_replicas_in_sync} replicas: hide GPUs "
            "from TensorFlow, or start a worker for each."
        )
    if size == 1:
        return None
    device = strategy.extended.worker_devices[0]
    with _lock:
        if device not in _of_device:
            _of_device[device] = Collectives(size, rank, device)
        return _of_device[device]
