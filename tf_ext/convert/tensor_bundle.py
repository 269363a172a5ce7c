# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's checkpoints, tensor by tensor, in parts of bounded size.

`tf.train.load_checkpoint` reads a tensor as a whole. Here the index of a
checkpoint (a sorted table of LevelDB's format, whose values are the protocol
buffers `BundleHeaderProto` and `BundleEntryProto`) says where a tensor is, and
a `StoredArray` reads it part by part. What the index claims is checked before
it is used.
"""

import math
import struct
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_ext import _core
from tf_ext.convert.stored_array import (
    StoredArray,
    damaged,
    file_size,
    unmasked,
)

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# Of the index, which has some hundred bytes for each tensor.
_MAX_INDEX_BYTES = 1 << 30
_MAX_SHARDS = 1 << 20
_MAX_RANK = 254
_UNCOMPRESSED = 0
_LITTLE_ENDIAN = 0
# The wire types of protocol buffers.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_index(prefix: str) -> dict[str, StoredArray]:
    """The tensors of a checkpoint by their names.

    Args:
      prefix: string, the path of the checkpoint without `.index`.

    Raises:
      DamagedFilesError: the index is not as TensorFlow writes it.
      OSError: it cannot be read.
    """
    path = f"{prefix}.index"
    size = file_size(path)
    if size > _MAX_INDEX_BYTES:
        damaged(path, 0, f"{size} bytes are too many for an index")
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read(size)
    index = _Index(path, data)
    entries = dict(index.entries())
    try:
        shards = _header(entries.pop(b""))
    except KeyError:
        damaged(path, 0, "there is no header")
    except ValueError as error:
        damaged(path, 0, f"the header {error}")
    found = {}
    sizes: dict[str, int] = {}
    for key, value in entries.items():
        name = key.decode(errors="backslashreplace")
        try:
            array = _entry(prefix, name, value, shards)
        except ValueError as error:
            damaged(path, 0, f"the entry of tensor {name!r} {error}")
        if array is None:
            continue
        if array.path not in sizes:
            sizes[array.path] = file_size(array.path)
        if array.offset + array.size > sizes[array.path]:
            damaged(
                array.path,
                sizes[array.path],
                f"tensor {name!r} ends at byte {array.offset + array.size}, "
                f"but the file has {sizes[array.path]}",
            )
        found[name] = array
    return found


class _Index:
    """A sorted table in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields `(key, value)` of the whole table."""
        data = self._data
        if len(data) < _FOOTER_BYTES:
            damaged(self._path, len(data), "the file has no footer")
        at = len(data) - _FOOTER_BYTES
        if struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
            damaged(self._path, len(data) - 8, "the file has no footer")
        footer = _Cursor(data, at, len(data) - 8)
        try:
            footer.varint(), footer.varint()  # The block of filters.
            handle = footer.varint(), footer.varint()
            for _, place in self._block(*handle):
                cursor = _Cursor(place, 0, len(place))
                yield from self._block(cursor.varint(), cursor.varint())
        except _MalformedError as error:
            damaged(self._path, at, str(error))

    def _block(self, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        end = offset + size
        if end + 5 > len(self._data) - _FOOTER_BYTES:
            raise _MalformedError(f"a block would end at byte {end}")
        [crc] = struct.unpack_from("<I", self._data, end + 1)
        if _core.crc32c(self._data[offset : end + 1]) != unmasked(crc):
            raise _MalformedError(f"the checksum of byte {offset} is wrong")
        if self._data[end] != _UNCOMPRESSED:
            raise _MalformedError(f"the block at byte {offset} is compressed")
        if size < 4:
            raise _MalformedError(f"the block at byte {offset} is too short")
        [restarts] = struct.unpack_from("<I", self._data, end - 4)
        if 4 * restarts + 4 > size:
            raise _MalformedError(f"the block at byte {offset} is too short")
        cursor = _Cursor(self._data, offset, end - 4 - 4 * restarts)
        key = b""
        while not cursor.at_end:
            shared, rest, value = (cursor.varint() for _ in range(3))
            if shared > len(key):
                raise _MalformedError(f"a key at byte {cursor.at} is too short")
            key = key[:shared] + cursor.take(rest)
            yield key, cursor.take(value)


class _MalformedError(ValueError):
    pass


class _Cursor:
    """A place in bytes, from which is read up to an end."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end

    @property
    def at_end(self) -> bool:
        return self.at >= self._end

    def take(self, size: int) -> bytes:
        if size > self._end - self.at:
            raise _MalformedError(f"has {size} bytes too many at {self.at}")
        self.at += size
        return self._data[self.at - size : self.at]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            [byte] = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise _MalformedError(f"has a number too long at {self.at}")
        if value >= 1 << 64:
            raise _MalformedError(f"has a number too large at {self.at}")
        return value


def _fields(data: bytes) -> Iterator[tuple[int, typing.Any]]:
    """The `(number, value)` of each field of a protocol buffer."""
    cursor = _Cursor(data, 0, len(data))
    while not cursor.at_end:
        tag = cursor.varint()
        kind = tag & 7
        if kind == _VARINT:
            yield tag >> 3, cursor.varint()
        elif kind == _BYTES:
            yield tag >> 3, cursor.take(cursor.varint())
        elif kind == _FIXED32:
            yield tag >> 3, struct.unpack("<I", cursor.take(4))[0]
        elif kind == _FIXED64:
            yield tag >> 3, struct.unpack("<Q", cursor.take(8))[0]
        else:
            raise _MalformedError(f"has a field of wire type {kind}")


def _header(data: bytes) -> int:
    """The number of a checkpoint's data files."""
    fields = dict(_fields(data))
    shards = fields.get(1, 0)
    if fields.get(2, _LITTLE_ENDIAN) != _LITTLE_ENDIAN:
        raise ValueError("says that numbers are big-endian")
    if not 1 <= shards <= _MAX_SHARDS:
        raise ValueError(f"says that there are {shards} files")
    return int(shards)


def _entry(
    prefix: str, name: str, data: bytes, shards: int
) -> StoredArray | None:
    """A tensor of the index; None if it is stored in slices."""
    fields: dict[int, typing.Any] = {4: 0, 3: 0, 5: 0, 6: 0, 2: b""}
    for number, value in _fields(data):
        if number == 7:
            return None
        fields[number] = value
    try:
        dtype = tf.as_dtype(fields[1])
    except (KeyError, TypeError):
        raise ValueError(f"has the type {fields.get(1)}") from None
    shape = tuple(_sizes(fields[2]))
    shard, offset, size = fields[3], fields[4], fields[5]
    if shard >= shards:
        raise ValueError(f"is in file {shard} of {shards}")
    if max(offset, size) >= 1 << 63:
        raise ValueError(f"has offset {offset} and {size} bytes")
    count = math.prod(shape)
    is_text = dtype in (tf.string, tf.variant, tf.resource)
    wanted = count if is_text else count * dtype.size
    if size < wanted or (size != wanted and not is_text):
        raise ValueError(f"has {size} bytes for shape {shape}")
    return StoredArray(
        path=f"{prefix}.data-{shard:05d}-of-{shards:05d}",
        name=name,
        offset=offset,
        size=size,
        dtype=dtype,
        shape=shape,
        crc=unmasked(fields[6]),
    )


def _sizes(shape: bytes) -> Iterator[int]:
    """The dimensions of a TensorShapeProto."""
    rank = 0
    for number, value in _fields(shape):
        if number == 3 and value:
            raise ValueError("has no known rank")
        if number != 2:
            continue
        size = dict(_fields(value)).get(1, 0)
        rank += 1
        if size >= 1 << 63 or rank > _MAX_RANK:
            raise ValueError("has no possible shape")
        yield size
