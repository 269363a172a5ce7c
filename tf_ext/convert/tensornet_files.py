# SPDX-License-Identifier: Apache-2.0
"""The dictionary files of TensorNet.

Each process of a training, a rank, saves its rows in eight files, compressed by
gzip, in text or in binary form:

    sparse_table/<name>/rank_<r>/block_<b>.gz

where the name is that of the layer, or its number. Older files begin with
`sparse_block_`, and some have `_txt` or `_bin` before the ending. A sign is in
the rank `sign % ranks` and in the block that is bits 32 to 34 of it.

A text begins with the lines `opt_name:<optimizer>` and `dim:<dim>`. The other
lines are rows, separated by tabs. A binary file begins with the dim, an int32,
and rows follow without a mark of the optimizer. Both end in a line break. Which
numbers a row has depends on the optimizer and on TensorNet's version, so all
forms are tried, and signs tell which are right. Adam's and Ftrl's are alike.
"""

import gzip
import re
import struct
import typing
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.convert.stored_array import DamagedFilesError, damaged

_BLOCKS = 8
_READ_BYTES = 1 << 20
# Of a number in a line; longer ones are damage.
_MAX_TEXT = 64
_FOLDER = "sparse_table"
_FILE = re.compile(
    r"(?P<prefix>(?:sparse_)?block_)(?P<block>\d)(?P<rest>.*)\.gz"
)
_RANK = re.compile(r"rank_(\d+)")
_TEXT = b"opt_name:"

_Fields: typing.TypeAlias = list[typing.Any]
Rows: typing.TypeAlias = npt.NDArray[typing.Any]
"""A structured array `[n]`, with a field "sign" and those of a Form."""


class Form(typing.NamedTuple):
    """What a row consists of.

    Attributes:
      optimizer: string, TensorNet's name.
      is_text: bool.
      dtype: of a row, with its fields in the order of the file.
    """

    optimizer: str
    is_text: bool
    dtype: np.dtype[typing.Any]

    def field(self, rows: Rows, name: str) -> npt.NDArray[np.float32] | None:
        """A field `[n, count]` of rows; None if they have none."""
        names = self.dtype.names or ()
        if name in names:
            return rows[name].reshape(len(rows), self.dtype[name].itemsize // 4)
        if "each" in names and name in (rows["each"].dtype.names or ()):
            return typing.cast(npt.NDArray[np.float32], rows["each"][name])
        return None

    def holds(self, rows: Rows, dim: int) -> bool:
        """Whether numbers are such as a row of this form has."""
        for name in ("dim", "version", "days"):
            if name not in (self.dtype.names or ()):
                continue
            whole = rows[name]
            if name == "dim" and not np.all(whole == dim):
                return False
            if not np.all(whole == np.floor(whole)):
                return False
        return True


def _forms(dim: int, is_text: bool) -> list[Form]:
    """All forms of rows; of those that fit, the first is right."""
    weights: _Fields = [("weights", "<f4", (dim,))]
    sums: _Fields = [("accumulator", "<f4")]
    show: _Fields = [("show", "<f4")]
    click: _Fields = [("click", "<f4")]
    # Text has no types, and floats tell which numbers are whole.
    days: _Fields = [("days", "<f4" if is_text else "<i4")]
    version: _Fields = [("version", "<f4")]
    width: _Fields = [("dim", "<f4")]
    shortest = weights + sums + show
    ada_grad = [shortest + days + click, shortest + days, shortest]
    if is_text:
        ada_grad = [
            *(width + fields for fields in ada_grad),
            width + weights + sums + version + show,
            shortest + days,
            shortest,
        ]
    found = [("AdaGrad", fields) for fields in ada_grad]
    for optimizer, *slots in (
        ("Adam", "m", "v"),
        ("Ftrl", "linear", "accumulator"),
    ):
        names = ["weights", *slots]
        fields: _Fields = [(name, "<f4", (dim,)) for name in names]
        if is_text:  # Weight by weight.
            fields = [("each", [(name, "<f4") for name in names], (dim,))]
        found.append((optimizer, fields + show))
    sign: _Fields = [("sign", "<u8")]
    return [
        Form(optimizer, is_text, np.dtype(sign + fields))
        for optimizer, fields in found
    ]


class Block(typing.NamedTuple):
    """A file.

    Attributes:
      path: string.
      rank: int.
      number: int.
      ranks: int, how many there are.
    """

    path: str
    rank: int
    number: int
    ranks: int

    def scan(self, dim: int, forms: list[Form] | None) -> list[Form]:
        """Reads all of it.

        Args:
          dim: int, that of its rows.
          forms: list of those that other files have; None for any.

        Returns:
          Those of `forms` that the file may have, in their order.

        Raises:
          DamagedFilesError: it has none of them.
        """
        reader = self._open(dim)
        if forms is None:
            forms = _forms(dim, reader.is_text)
        left: dict[int, tuple[Form, Callable[[bytes], Rows | None]]] = {
            i: (form, reader.parser(form))
            for i, form in enumerate(forms)
            if form.is_text == reader.is_text
            and reader.optimizer in ("", form.optimizer)
        }
        bad: dict[int, int] = {}
        for data in reader.parts():
            for i, (form, parse) in list(left.items()):
                rows = parse(data)
                if (
                    rows is None
                    or not self._placed(rows["sign"])
                    or not form.holds(rows, dim)
                ):
                    del left[i]
                    continue
                sign = _not_finite(form, rows)
                if sign is not None:
                    bad.setdefault(i, sign)
        fitting = [
            i for i, (_, parse) in left.items() if parse(b"") is not None
        ]
        if not fitting:
            raise DamagedFilesError(
                f"{self.path} is damaged, or of an optimizer or version of "
                f"TensorNet that is not known: no form of a row of dim {dim} "
                f"fits, with signs of rank {self.rank} of {self.ranks} and of "
                f"block {self.number}."
            )
        if fitting[0] in bad:
            raise DamagedFilesError(
                f"{self.path} has a number that is NaN or infinite in the row "
                f"of sign {bad[fitting[0]]}."
            )
        return [forms[i] for i in fitting]

    def rows(self, form: Form, dim: int) -> Iterator[Rows]:
        """Yields the rows of a file that has been scanned, in parts."""
        reader = self._open(dim)
        parse = reader.parser(form)
        for data in reader.parts():
            rows = parse(data)
            if rows is None or not self._placed(rows["sign"]):
                raise DamagedFilesError(f"{self.path} has changed meanwhile.")
            if len(rows):
                yield rows

    def _placed(self, signs: npt.NDArray[np.uint64]) -> bool:
        ranks = signs % np.uint64(self.ranks)
        blocks = signs >> np.uint64(32) & np.uint64(_BLOCKS - 1)
        return bool(
            np.all(ranks == self.rank) and np.all(blocks == self.number)
        )

    def _open(self, dim: int) -> "_Reader":
        reader = _Reader(self.path)
        if reader.dim != dim:
            raise ValueError(
                f"{self.path} has rows of dim {reader.dim}. The table has dim "
                f"{dim}."
            )
        return reader


def _not_finite(form: Form, rows: Rows) -> int | None:
    """The sign of a row with a number that is none."""
    for name in ("weights", "m", "v", "linear", "accumulator", "show", "click"):
        field = form.field(rows, name)
        if field is None:
            continue
        finite = np.isfinite(field).all(axis=1)
        if not finite.all():
            return int(rows["sign"][np.argmin(finite)])
    return None


class _Reader:
    """A file without what precedes its rows.

    Attributes:
      is_text: bool.
      optimizer: string; "" for a binary file, which does not say it.
      dim: int.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._parts = _decompressed(path)
        self._first = next(self._parts, b"")
        self.is_text = self._first.startswith(_TEXT)
        self.optimizer = ""
        if not self.is_text:
            if len(self._first) < 4:
                damaged(path, 0, "it has no dim")
            [self.dim] = struct.unpack_from("<i", self._first)
            self._first = self._first[4:]
            return
        lines = self._first.split(b"\n", 2)
        try:
            name, width, self._first = lines
            self.optimizer = name.removeprefix(_TEXT).decode()
            self.dim = int(width.removeprefix(b"dim:"))
        except ValueError:
            damaged(path, 0, "it does not begin with optimizer and dim")

    def parts(self) -> Iterator[bytes]:
        """Yields the bytes of rows."""
        yield self._first
        yield from self._parts

    def parser(self, form: Form) -> Callable[[bytes], Rows | None]:
        """A function that makes rows of the parts of a file.

        It returns None for what are no rows, and at last, given nothing, if
        there is a part of a row left.
        """
        return _Lines(form) if self.is_text else _Records(form)


def _decompressed(path: str) -> Iterator[bytes]:
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            with gzip.GzipFile(fileobj=file) as unzipped:
                while data := unzipped.read(_READ_BYTES):
                    yield data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            damaged(path, file.tell(), f"it cannot be decompressed ({error})")


class _Records:
    """Makes rows of bytes."""

    def __init__(self, form: Form) -> None:
        self._dtype = form.dtype
        self._rest = b""

    def __call__(self, data: bytes) -> Rows | None:
        if not data:
            none = np.empty(0, self._dtype)
            return none if self._rest in (b"", b"\n") else None
        data = self._rest + data
        count = len(data) // self._dtype.itemsize
        self._rest = data[count * self._dtype.itemsize :]
        return np.frombuffer(data, self._dtype, count)


class _Lines:
    """Makes rows of text."""

    def __init__(self, form: Form) -> None:
        self._dtype = form.dtype
        self._rest = b""
        self._longest = _MAX_TEXT * (4 + form.dtype.itemsize // 4)

    def __call__(self, data: bytes) -> Rows | None:
        none = np.empty(0, self._dtype)
        if not data:
            return none if not self._rest else None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            return None
        # Before 2024 a row did not end in a tab.
        lines = [line for line in map(bytes.rstrip, lines) if line]
        if not lines:
            return none
        try:
            return np.loadtxt(
                lines, self._dtype, delimiter="\t", comments=None, ndmin=1
            )
        except ValueError:
            return None


def blocks_of(directory: str, name: str) -> list[Block]:
    """The files of a table.

    Args:
      directory: string, of a day's model, or its `sparse_table`.
      name: string, the name of the table's folder.

    Raises:
      DamagedFilesError: some are missing.
      ValueError: there is no such table; the sentence has those that are there.
    """
    join = tf.io.gfile.join
    inner = join(directory, _FOLDER)
    folder = inner if tf.io.gfile.isdir(inner) else directory
    names = _names(folder)
    if name not in names:
        raise ValueError(
            "Argument `tables` of from_tensornet must name tables of "
            f"{folder}: {', '.join(map(repr, names)) or 'it has none'}. "
            f"Received: {name!r}"
        )
    folder = join(folder, name)
    ranks = {
        int(match[1]): one
        for one in _names(folder)
        if (match := _RANK.fullmatch(one))
    }
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        raise DamagedFilesError(
            f"{folder} must have folders rank_0, rank_1 and so on. It has "
            f"{', '.join(ranks[i] for i in sorted(ranks)) or 'none'}."
        )
    return [
        Block(path, rank, number, len(ranks))
        for rank, one in sorted(ranks.items())
        for number, path in enumerate(_files(join(folder, one)))
    ]


def _files(folder: str) -> Sequence[str]:
    """The paths of the files of a rank, by the number of the block."""
    found: dict[str, dict[int, str]] = {}
    for one in _names(folder):
        match = _FILE.fullmatch(one)
        if match:
            kind = f"{match['prefix']}?{match['rest']}.gz"
            found.setdefault(kind, {})[int(match["block"])] = one
    if len(found) > 1:
        raise DamagedFilesError(
            f"{folder} has files of several saves: {', '.join(sorted(found))}. "
            "Remove the older ones."
        )
    numbers = found.popitem()[1] if found else {}
    if sorted(numbers) != list(range(_BLOCKS)):
        raise DamagedFilesError(
            f"{folder} must have {_BLOCKS} files, block_0.gz to block_7.gz. It "
            f"has {', '.join(numbers[i] for i in sorted(numbers)) or 'none'}."
        )
    return [tf.io.gfile.join(folder, numbers[i]) for i in range(_BLOCKS)]


def _names(folder: str) -> list[str]:
    if not tf.io.gfile.isdir(folder):
        raise FileNotFoundError(f"{folder} is not a directory")
    return sorted(one.rstrip("/") for one in tf.io.gfile.listdir(folder))
