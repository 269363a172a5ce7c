# SPDX-License-Identifier: Apache-2.0
"""Indices of TensorFlow's checkpoints, written by hand."""

import pathlib
import struct
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_ext import _core
from tf_ext.convert import stored_array, tensor_bundle

_MAGIC = 0xDB4775248B80FB57


def _varint(value):
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def _proto(*fields):
    """A protocol buffer of `(number, int, bytes, or 4 or 8 raw bytes)`."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        elif isinstance(value, _Fixed):
            kind = {4: 5, 8: 1}[len(value)]
            data += _varint(number << 3 | kind) + value
        else:
            data += _varint(number << 3 | 2) + _varint(len(value)) + value
    return data


class _Fixed(bytes):
    """The bytes of a field of fixed size."""


def _block(entries, restarts=1, kind=0, crc=0):
    """A block of a table, whose keys share what they begin with."""
    data, before = b"", b""
    for key, value in entries:
        shared = 0
        while key[: shared + 1] == before[: shared + 1] and shared < len(
            before
        ):
            shared += 1
        rest = key[shared:]
        data += b"".join(map(_varint, (shared, len(rest), len(value))))
        data += rest + value
        before = key
    data += b"\0\0\0\0" * restarts + struct.pack("<I", restarts)
    return _sealed(data, kind, crc)


def _sealed(data, kind=0, crc=0):
    found = _core.crc32c(data + bytes([kind])) ^ crc
    masked = ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return data + bytes([kind]) + struct.pack("<I", masked)


def _index(*blocks, handles=None):
    """The file of an index of several blocks."""
    data, places = b"", []
    for block in blocks:
        places.append((b"~", _varint(len(data)) + _varint(len(block) - 5)))
        data += block
    top = _block(handles or places)
    footer = _varint(0) * 2 + _varint(len(data)) + _varint(len(top) - 5)
    return data + top + footer.ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


_HEADER = _proto((1, 1))
# A float32 matrix `[2, 3]`.
_SHAPE = _proto((2, _proto((1, 2))), (2, _proto((1, 3))))


def _tensor(*more, dtype=1, shape=_SHAPE, offset=0, size=24, shard=0):
    return _proto(
        *((1, dtype), (2, shape), (3, shard), (4, offset), (5, size)), *more
    )


class BundleTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_bundle_")
        self.prefix = f"{self.enterContext(folder)}/model"
        self._write("data-00000-of-00001", bytes(range(48)))

    def _write(self, name, data):
        pathlib.Path(f"{self.prefix}.{name}").write_bytes(data)

    def read(self, *entries, header=_HEADER):
        self._write("index", _index(_block([(b"", header), *entries])))
        return tensor_bundle.read_index(self.prefix)

    def assert_damaged(self, text, index=None):
        if index is not None:
            self._write("index", index)
        with self.assertRaisesRegex(stored_array.DamagedFilesError, text):
            tensor_bundle.read_index(self.prefix)

    def test_what_tensorflow_writes(self):
        values = {
            "w": np.arange(6, dtype=np.float64).reshape(2, 3),
            "word": np.array([b"a", b"bc"]),
            "n": np.int32(7),
            "none": np.zeros([0, 3], np.float32),
        }
        variables = {n: tf.Variable(v) for n, v in values.items()}
        prefix = tf.train.Checkpoint(**variables).write(self.prefix + "2")
        found = tensor_bundle.read_index(prefix)
        for name, value in values.items():
            array = found[f"{name}/.ATTRIBUTES/VARIABLE_VALUE"]
            self.assertEqual(array.shape, value.shape)
            if not value.size:
                self.assertEqual([*array.chunks(1)], [])
            elif value.ndim:
                self.assertAllEqual(np.concatenate([*array.chunks(1)]), value)
            else:
                self.assertEqual(array.scalar(), value)

    def test_entries(self):
        found = self.read(
            (b"ab", _tensor((6, _Fixed(b"\1\2\3\4")), offset=24)),
            (b"abc", _tensor(dtype=3, shape=b"", size=4)),
            (b"slices", _tensor((7, b""))),
            (b"text", _tensor(dtype=7, shape=_proto((2, b"")), size=5)),
            # Of a later version: fields that are not known.
            (
                b"x",
                _tensor(
                    (
                        20,
                        _Fixed(b"8 bytes."),
                    ),
                    (21, 5),
                    (22, b"?"),
                ),
            ),
        )
        self.assertEqual([*found], ["ab", "abc", "text", "x"])
        first = found["ab"]
        self.assertEqual(first.path, f"{self.prefix}.data-00000-of-00001")
        self.assertEqual(first[1:6], ("ab", 24, 24, tf.float32, (2, 3)))
        self.assertEqual(first.crc, stored_array.unmasked(0x04030201))
        self.assertEqual(found["abc"][4:6], (tf.int32, ()))
        self.assertEqual(found["text"].shape, (0,))

    def test_blocks_and_data_files(self):
        header = _proto((1, 2), (2, 0), (3, b"\1"))
        self._write("data-00000-of-00002", bytes(24))
        self._write("data-00001-of-00002", bytes(24))
        self._write(
            "index",
            _index(
                _block([(b"", header), (b"a", _tensor())], restarts=2),
                _block([(b"b", _tensor(shard=1))]),
            ),
        )
        found = tensor_bundle.read_index(self.prefix)
        self.assertEqual([*found], ["a", "b"])
        self.assertRegex(found["b"].path, "data-00001-of-00002$")

    @parameterized.parameters(
        (_proto(), "says that there are 0 files"),
        (_proto((1, 1 << 20 | 1)), "says that there are 1048577 files"),
        (_proto((1, 1), (2, 1)), "says that numbers are big-endian"),
        (b"\x0b", "has a field of wire type 3"),
        (b"\x08", "has 1 bytes too many at 1"),
    )
    def test_headers(self, header, text):
        with self.assertRaisesRegex(
            stored_array.DamagedFilesError,
            rf"index is damaged at byte 0: the header {text}\.",
        ):
            self.read(header=header)

    @parameterized.parameters(
        (_tensor(dtype=99), "has the type 99"),
        (_proto((2, _SHAPE), (5, 24)), "has the type None"),
        (_tensor(shard=1), "is in file 1 of 1"),
        (_tensor(offset=1 << 63), f"has offset {1 << 63} and 24 bytes"),
        (_tensor(size=1 << 63), f"has offset 0 and {1 << 63} bytes"),
        (_tensor(size=23), r"has 23 bytes for shape \(2, 3\)"),
        (_tensor(size=25), r"has 25 bytes for shape \(2, 3\)"),
        (_tensor(dtype=7, size=5), r"has 5 bytes for shape \(2, 3\)"),
        (_tensor(shape=_proto((3, 1))), "has no known rank"),
        (_tensor(shape=_proto((2, _proto((1, 1 << 63))))), "has no possible"),
        (_tensor(shape=_proto((2, b"")) * 255), "has no possible shape"),
        (_tensor(shape=b"\x12\x05"), "has 5 bytes too many at 2"),
        (b"\x08" + b"\xff" * 10, "has a number too long at 11"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "has a number too large at 11"),
        (b"\x0d\0\0", "has 4 bytes too many at 1"),
        (b"\x09\0\0", "has 8 bytes too many at 1"),
    )
    def test_tensors(self, entry, text):
        with self.assertRaisesRegex(
            stored_array.DamagedFilesError,
            f"at byte 0: the entry of tensor 'a' {text}",
        ):
            self.read((b"a", entry))

    def test_the_largest_numbers(self):
        shape = _proto((2, _proto((1, 0)))) + _proto((2, b"")) * 253
        found = self.read((b"a", _tensor(shape=shape, size=0)))
        self.assertEqual(found["a"].shape, (0,) * 254)
        with self.assertRaisesRegex(
            stored_array.DamagedFilesError,
            r"data-00000-of-00001 is damaged at byte 48: tensor 'a' ends at "
            "byte 49, but the file has 48",
        ):
            self.read((b"a", _tensor(offset=25)))
        self.assertEqual([*self.read((b"a", _tensor(offset=24)))], ["a"])

    def test_tables(self):
        block = _block([(b"", _HEADER)])
        good = _index(block)
        self.assert_damaged("at byte 47: the file has no footer", good[-47:])
        self.assert_damaged("the file has no footer", good[:-1] + b"\0")
        top = len(good) - 48
        for index, text in (
            (_index(_block([(b"a", _tensor())])), "byte 0: there is no header"),
            (_index(_block([(b"", _HEADER)], crc=1)), "checksum of byte 0 is"),
            (_index(_block([(b"", _HEADER)], kind=1)), "byte 0 is compressed"),
            (_index(_sealed(b"\0\0\0")), "block at byte 0 is too short"),
            (_index(_sealed(struct.pack("<I", 1))), "byte 0 is too short"),
            (
                _index(_sealed(b"\1\0\0" + bytes(8))),
                "a key at byte 3 is too sh",
            ),
            (_index(_sealed(b"\0\4\0" + bytes(4))), "has 4 bytes too many"),
        ):
            at = "" if "header" in text else f"at byte {len(index) - 48}: .*"
            self.assert_damaged(at + text, index)
        handle = _varint(0) + _varint(top)
        self.assert_damaged(
            f"a block would end at byte {top}",
            _index(block, handles=[(b"~", handle)]),
        )
        self._write("index", _index(_sealed(bytes(4))))
        self.assert_damaged("there is no header")

    def test_files_that_are_not_there(self):
        with self.assertRaisesRegex(FileNotFoundError, "model.index does not"):
            tensor_bundle.read_index(self.prefix)
        header = _proto((1, 2))
        with self.assertRaisesRegex(FileNotFoundError, "data-00000-of-00002"):
            self.read((b"a", _tensor()), header=header)


if __name__ == "__main__":
    tf.test.main()
