# SPDX-License-Identifier: Apache-2.0
"""Where TensorFlow Recommenders Addons keeps the rows of its variables.

A variable, and each slot of an optimizer, is one hash table or several: arrays
of keys and of values in the same order. `save_to_file_system` writes them bare,
in two files for each table:

    NAME_mht_<i>of<n>_rank<r>_size<s>-keys      and -values

without the last two parts if a single table has been saved; "/" in NAME is "_".
In a checkpoint they are tensors, with NAME escaped as in all checkpoints:

    PATH/tables_of_NAME/<i - 1>/.ATTRIBUTES/table-keys    and -values
    NAME_mht_<i>of<n>-keys    and -values, of tf.compat.v1.train.Saver

A slot has the name of its variable, then sometimes that of the lookup, and then
its own, joined by "/".
"""

import re
import typing
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ext.convert.stored_array import (
    DamagedFilesError,
    StoredArray,
    file_size,
)
from tf_ext.convert.tensor_bundle import read_index

# A field of rows -> what optimizers call it.
SLOTS = {
    "accumulator": ("accumulator",),
    "average_gradient": ("average_gradient", "mg"),
    "linear": ("linear",),
    "m": ("m",),
    "momentum": ("momentum", "m"),
    "v": ("v",),
    "velocity": ("velocity", "rms"),
}
_SLOT_NAMES = frozenset(name for names in SLOTS.values() for name in names)
_FOLDER = "TFRADynamicEmbedding"
_PART = re.compile(
    r"(?P<name>.+)_mht_(?P<shard>\d+)of(?P<shards>\d+)"
    r"(_rank(?P<rank>\d+)_size(?P<ranks>\d+))?"
)
_TRACKED = re.compile(
    r"(?:.*/)?tables_of_(?P<name>[^/]+)/(?P<shard>\d+)/\.ATTRIBUTES/table"
)
# In the names of tensors: of "." and "/".
_ESCAPED = re.compile(r"\.[.S]")
_ITERATIONS = re.compile(
    r"(?:.*/)?(?:_?iterations|iter)/\.ATTRIBUTES/VARIABLE_VALUE"
)
_KEYS = {tf.int64: "int64", tf.int32: "int32", tf.string: "string"}
KEY_TYPES = ("int64", "int32")
VALUE_TYPES = ("float32", "float16", "bfloat16", "float64")


class HashTable(typing.NamedTuple):
    """A part of a variable.

    Attributes:
      keys: StoredArray `[n]`.
      values: StoredArray `[n, dim]`.
    """

    keys: StoredArray
    values: StoredArray


class Variables:
    """The variables and slots that a path has.

    Attributes:
      names: list of strings.
      separator: string, what joins the parts of a name.
    """

    names: list[str]
    separator: str

    def __init__(self, path: str) -> None:
        self._path = path

    def tables(self, name: str, dim: int) -> list[HashTable]:
        """The parts of a variable, checked against each other.

        Args:
          name: string, of `names`.
          dim: int, that of its rows.

        Raises:
          DamagedFilesError: some are missing, or not of one size.
          ValueError: they have other types, or another dim.
        """
        raise NotImplementedError

    def step(self) -> int | None:
        """How many steps the optimizer has made; None if that is not known."""
        return None

    def canonical(self, name: str) -> str:
        """A name as in `names`."""
        return name.replace("/", self.separator)

    def owner(self, name: str) -> str:
        """The variable of which this is a slot, by its name; "" if it is none.

        It is the one with the longest name that this one begins with.
        """
        found = [
            one for one in self.names if name.startswith(one + self.separator)
        ]
        return max(found, key=len, default="")

    def slot_of(self, name: str, field: str) -> list[str]:
        """The names of what may be a slot of a variable."""
        return [
            one
            for one in self.names
            if self.owner(one) == name
            and one.endswith(
                tuple(self.separator + slot for slot in SLOTS[field])
            )
        ]

    def variables(self) -> list[str]:
        """The names of what is no slot."""
        endings = tuple(self.separator + slot for slot in _SLOT_NAMES)
        return [
            one
            for one in self.names
            if not (self.owner(one) and one.endswith(endings))
        ]


class SavedFiles(Variables):
    """The files of a directory.

    Args:
      path: string, the directory.
      files: list of strings, the names in it.
      key_dtype: string, of KEY_TYPES.
      value_dtype: string, of VALUE_TYPES.
    """

    separator = "_"

    def __init__(
        self,
        path: str,
        files: Iterable[str],
        key_dtype: str,
        value_dtype: str,
    ) -> None:
        super().__init__(path)
        self._key_dtype = tf.as_dtype(key_dtype)
        self._value_dtype = tf.as_dtype(value_dtype)
        # The bases of pairs of files, by name.
        self._bases: dict[str, list[str]] = {}
        for base in sorted(_pairs(path, files)):
            match = _PART.fullmatch(base)
            name = match["name"] if match else base
            self._bases.setdefault(name, []).append(base)
        self.names = sorted(self._bases)

    def tables(self, name: str, dim: int) -> list[HashTable]:
        bases = self._bases[name]
        _check_parts(self._path, name, bases)
        return [self._table(base, dim) for base in bases]

    def _table(self, base: str, dim: int) -> HashTable:
        keys, values = (
            tf.io.gfile.join(self._path, f"{base}-{kind}")
            for kind in ("keys", "values")
        )
        key_bytes, value_bytes = file_size(keys), file_size(values)
        width = self._value_dtype.size * dim
        rows = key_bytes // self._key_dtype.size
        if (
            key_bytes != rows * self._key_dtype.size
            or value_bytes != rows * width
        ):
            raise DamagedFilesError(
                f"{keys} has {key_bytes} bytes, and {values} {value_bytes}. "
                f"Rows of {dim} {self._value_dtype.name} for keys of "
                f"{self._key_dtype.name} would have {self._key_dtype.size} and "
                f"{width} each: either a file is cut off, or `key_dtype`, "
                "`value_dtype` or the dim is another."
                + _of_strings(key_bytes, value_bytes, width)
            )
        return HashTable(
            StoredArray(keys, "", 0, key_bytes, self._key_dtype, (rows,), None),
            StoredArray(
                values, "", 0, value_bytes, self._value_dtype, (rows, dim), None
            ),
        )


def _of_strings(key_bytes: int, value_bytes: int, width: int) -> str:
    """What there is to say of keys that may be strings; else ""."""
    if not key_bytes or key_bytes * width != value_bytes * 24:
        return ""
    return (
        " It looks like keys of strings: save_to_file_system writes their "
        "addresses instead of them. Save a checkpoint."
    )


def _pairs(path: str, files: Iterable[str]) -> set[str]:
    """The names of files with keys and values, without the endings."""
    found: dict[str, set[str]] = {"keys": set(), "values": set()}
    for file in files:
        base, _, kind = file.rpartition("-")
        if kind in found:
            found[kind].add(base)
    alone = found["keys"] ^ found["values"]
    if alone:
        base = min(alone)
        kinds = "keys", "values"
        has, lacks = kinds if base in found["keys"] else kinds[::-1]
        raise DamagedFilesError(
            f"{path} has a file {base}-{has}, but no {base}-{lacks}."
        )
    return found["keys"]


def _check_parts(path: str, name: str, bases: Sequence[str]) -> None:
    """Raises DamagedFilesError unless the parts of a variable are all there."""
    numbers = []
    for base in bases:
        match = _PART.fullmatch(base)
        if match is None:
            continue  # A single table with a name of the user's.
        numbers.append(
            (
                (int(match["shards"]), int(match["ranks"] or 1)),
                (int(match["shard"]), int(match["rank"] or 0)),
            )
        )
    counts = {of for of, _ in numbers}
    if len(counts) > 1:
        kinds = ", ".join(f"{n} of {ranks} processes" for n, ranks in counts)
        raise DamagedFilesError(
            f"{path} has tables of several saves of {name!r}: {kinds}. Remove "
            "the files of the older ones."
        )
    for shards, ranks in counts:
        present = {which for _, which in numbers}
        if len(present) == shards * ranks:
            continue
        for rank in range(ranks):
            for shard in range(1, shards + 1):
                if (shard, rank) not in present:
                    raise DamagedFilesError(
                        f"{path} lacks files of {name!r}: those of table "
                        f"{shard} of {shards} of rank {rank} of {ranks}."
                    )


class Checkpoint(Variables):
    """The tensors of a checkpoint.

    Args:
      prefix: string, its path.
    """

    separator = "/"

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        tracked = False
        self._tensors = read_index(prefix)
        self._parts: dict[str, dict[int, str]] = {}
        for tensor in self._tensors:
            base, _, kind = tensor.rpartition("-")
            if kind != "keys" or f"{base}-values" not in self._tensors:
                continue
            match = _TRACKED.fullmatch(base)
            if match:
                tracked = True
                name = _ESCAPED.sub(_unescaped, match["name"])
                shard = int(match["shard"])
            else:
                match = _PART.fullmatch(base)
                name = match["name"] if match else base
                shard = int(match["shard"]) - 1 if match else 0
            self._parts.setdefault(name, {})[shard] = base
        self.names = sorted(self._parts)
        if not tracked:
            self.separator = "_"

    def tables(self, name: str, dim: int) -> list[HashTable]:
        parts = self._parts[name]
        if sorted(parts) != list(range(len(parts))):
            raise DamagedFilesError(
                f"{self._path} lacks tables of {name!r}: it has those of number"
                f" {sorted(parts)}."
            )
        return [self._table(name, base, dim) for base in parts.values()]

    def _table(self, name: str, base: str, dim: int) -> HashTable:
        keys = self._tensors[f"{base}-keys"]
        values = self._tensors[f"{base}-values"]
        if keys.dtype not in _KEYS or values.dtype.name not in VALUE_TYPES:
            raise ValueError(
                f"{self._path} has keys of {keys.dtype.name} and values of "
                f"{values.dtype.name} for {name!r}. Rows have keys of "
                f"{', '.join(_KEYS.values())} and values of "
                f"{', '.join(VALUE_TYPES)}."
            )
        rows = keys.shape[:1]
        if len(keys.shape) != 1 or values.shape != (*rows, dim):
            raise ValueError(
                f"{self._path} has keys of shape {keys.shape} and values of "
                f"shape {values.shape} for {name!r}. The table has dim {dim}."
            )
        return HashTable(keys, values)

    def step(self) -> int | None:
        found = {
            int(array.scalar())
            for tensor, array in self._tensors.items()
            if _ITERATIONS.fullmatch(tensor)
            and array.shape == ()
            and array.dtype == tf.int64
        }
        return found.pop() if len(found) == 1 else None


def _unescaped(match: re.Match[str]) -> str:
    return "." if match[0] == ".." else "/"


def open_variables(
    path: str, key_dtype: str | None, value_dtype: str | None
) -> Variables:
    """What a path has.

    Args:
      path: string, a directory with files, or a checkpoint.
      key_dtype: string; None for that of `de.get_variable`, like the next.
      value_dtype: string.

    Raises:
      DamagedFilesError: it is not as TFRA writes it.
      FileNotFoundError: there is nothing.
      ValueError: a type is given for a checkpoint.
    """
    files: list[str] = []
    if tf.io.gfile.isdir(path):
        files = [one.rstrip("/") for one in tf.io.gfile.listdir(path)]
        if any(one.endswith("-keys") for one in files):
            return SavedFiles(
                path, files, key_dtype or "int64", value_dtype or "float32"
            )
    # Some file systems take the prefix of a path for a directory.
    is_prefix = not files or tf.io.gfile.exists(f"{path}.index")
    prefix = path if is_prefix else tf.train.latest_checkpoint(path)
    if prefix and tf.io.gfile.exists(f"{prefix}.index"):
        types: Mapping[str, str | None] = {
            "key_dtype": key_dtype,
            "value_dtype": value_dtype,
        }
        for argument, given in types.items():
            if given is not None:
                raise ValueError(
                    f"Argument `{argument}` of from_tfra must be None for a "
                    "checkpoint, which knows its types. Received: "
                    f"{argument}={given!r}"
                )
        found = Checkpoint(prefix)
        if found.names:
            return found
        path = prefix
    folder = tf.io.gfile.join(path.rpartition("/")[0], _FOLDER)
    advice = f" Pass {folder}." if tf.io.gfile.isdir(folder) else ""
    raise FileNotFoundError(
        f"{path} has no rows of TFRA: it must be a directory with files of "
        "save_to_file_system, or a checkpoint, as its path without `.index`, "
        f"that has tables.{advice}"
    )
