# SPDX-License-Identifier: Apache-2.0
"""Arrays in files of other libraries, read in parts of bounded size."""

import math
import struct
import typing
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core

_READ_BYTES = 1 << 20
_CRC_DELTA = 0xA282EAD8
# Of a varint, and of the strings that a reader takes.
_MAX_VARINT_BYTES = 10
_MAX_TEXT_BYTES = 1 << 30


class DamagedFilesError(ValueError):
    """Files of another library that cannot be read: which, where and why."""


def damaged(path: str, at: int, why: str) -> typing.NoReturn:
    """Raises DamagedFilesError of a place in a file."""
    raise DamagedFilesError(f"{path} is damaged at byte {at}: {why}.")


def file_size(path: str) -> int:
    """The bytes of a file.

    Raises:
      FileNotFoundError: there is no such file.
    """
    try:
        return int(tf.io.gfile.stat(path).length)
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None


def unmasked(crc: int) -> int:
    """The checksum that TensorFlow stores masked."""
    rotated = (crc - _CRC_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


class StoredArray(typing.NamedTuple):
    """An array in a file, which has at least `offset + size` bytes.

    Attributes:
      path: string, the file.
      name: string, of the tensor; "" for a file with nothing else.
      offset: int, its first byte.
      size: int, its bytes.
      dtype: tf.DType: numbers are little-endian; strings are as in TensorFlow's
        checkpoints.
      shape: tuple of int.
      crc: int, the CRC32C of the bytes; None where there is none.
    """

    path: str
    name: str
    offset: int
    size: int
    dtype: tf.DType
    shape: tuple[int, ...]
    crc: int | None

    def chunks(self, rows: int) -> Iterator[npt.NDArray[typing.Any]]:
        """Yields its parts of at most `rows` along the first dimension.

        After the last one the checksum is compared.

        Raises:
          DamagedFilesError: the bytes are not those of such an array.
        """
        if self.dtype == tf.string:
            yield from self._texts(rows)
            return
        checksum = _Checksum()
        width = self.dtype.size * math.prod(self.shape[1:])
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(self.offset)
            for begin in range(0, self.shape[0], rows):
                count = min(rows, self.shape[0] - begin)
                data = self._read(file, count * width)
                checksum.add(data)
                flat = np.frombuffer(data, self.dtype.as_numpy_dtype)
                yield flat.reshape(count, *self.shape[1:])
        self._compare(checksum)

    def scalar(self) -> int | float:
        """Its only number."""
        checksum = _Checksum()
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(self.offset)
            data = self._read(file, self.size)
        checksum.add(data)
        self._compare(checksum)
        [value] = np.frombuffer(data, self.dtype.as_numpy_dtype).tolist()
        return value

    def _read(self, file: typing.Any, size: int) -> bytes:
        data: bytes = file.read(size) if size else b""
        if len(data) != size:
            damaged(self.path, file.tell(), f"{self._what} ends here")
        return data

    @property
    def _what(self) -> str:
        return f"tensor {self.name!r}" if self.name else "the file"

    def _compare(self, checksum: "_Checksum") -> None:
        if self.crc is not None and checksum.value != self.crc:
            damaged(
                self.path, self.offset, f"the checksum of {self._what} is wrong"
            )

    def _texts(self, rows: int) -> Iterator[npt.NDArray[np.object_]]:
        """The parts of strings: their lengths, a checksum, their bytes."""
        [count] = self.shape
        checksum = _Checksum()
        # The lengths are read twice: where the bytes begin depends on them.
        skipped = 0
        total = 0
        for lengths, taken in self._lengths(count):
            skipped += taken
            total += int(lengths.sum())
            checksum.add(lengths.astype("<u4").tobytes())
        if skipped + 4 + total != self.size:
            damaged(
                self.path,
                self.offset,
                f"{self._what} has {self.size} bytes instead of "
                f"{skipped + 4 + total}",
            )
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(self.offset + skipped)
            data = self._read(file, 4)
            if unmasked(struct.unpack("<I", data)[0]) != checksum.value:
                damaged(
                    self.path,
                    self.offset,
                    f"the checksum of the lengths of {self._what} is wrong",
                )
            checksum.add(data)
            for lengths in _regrouped(self._lengths(count), rows):
                data = self._read(file, int(lengths.sum()))
                checksum.add(data)
                ends = np.cumsum(lengths)
                texts = np.empty(len(lengths), object)
                for i, (begin, end) in enumerate(zip(ends - lengths, ends)):
                    texts[i] = data[begin:end]
                yield texts
        self._compare(checksum)

    def _lengths(
        self, count: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
        """Yields lengths of strings, and how many bytes these take."""
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(self.offset)
            left, rest = self.size, b""
            while count:
                data = self._read(file, min(_READ_BYTES, left))
                left -= len(data)
                if not data:
                    damaged(self.path, file.tell(), f"{self._what} ends here")
                lengths, taken = _varints(rest + data, count)
                rest = (rest + data)[taken:]
                if len(rest) > _MAX_VARINT_BYTES and len(lengths) < count:
                    damaged(
                        self.path, file.tell(), f"{self._what} has no lengths"
                    )
                if len(lengths) and int(lengths.max()) > _MAX_TEXT_BYTES:
                    damaged(
                        self.path,
                        file.tell(),
                        f"{self._what} has a string of {lengths.max()} bytes",
                    )
                count -= len(lengths)
                yield lengths, taken


class _Checksum:
    """The CRC32C of bytes that come in parts."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, data: bytes) -> None:
        crc = _core.crc32c(data)
        self.value = _core.combine_crc32c(self.value, crc, len(data))


def _varints(data: bytes, limit: int) -> tuple[npt.NDArray[np.int64], int]:
    """Up to `limit` numbers of 7 bits a byte, and the bytes that they take."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array < 0x80)[:limit] + 1
    if not len(ends):
        return np.empty(0, np.int64), 0
    starts = np.concatenate([[0], ends[:-1]])
    if int((ends - starts).max()) > _MAX_VARINT_BYTES - 1:
        return np.empty(0, np.int64), 0
    taken = int(ends[-1])
    places = np.arange(taken) - np.repeat(starts, ends - starts)
    bits = (array[:taken] & 0x7F).astype(np.int64) << (7 * places)
    return np.add.reduceat(bits, starts), taken


def _regrouped(
    parts: Iterator[tuple[npt.NDArray[np.int64], int]], rows: int
) -> Iterator[npt.NDArray[np.int64]]:
    """The same numbers, `rows` at a time, like the parts of numbers."""
    rest = np.empty(0, np.int64)
    for lengths, _ in parts:
        rest = np.concatenate([rest, lengths])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if len(rest):
        yield rest
