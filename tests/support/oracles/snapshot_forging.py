# SPDX-License-Identifier: Apache-2.0
"""Snapshots with valid checksums and invalid contents."""

import json
import os
import random
import struct

import numpy as np

from tf_ext import _core

MANIFEST = "manifest.json"
_TIMES = (1, 1, 1, 2, 3)

_NUMBERS = (
    *(0, -1, 1, 2, 7, 8, 31, 32, 33, 4096, 2**20, 2**20 + 1, 2**24 + 1),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**60, 2**61, 2**62),
    *(2**63 - 33, 2**63 - 32, 2**63 - 9, 2**63 - 8, 2**63 - 1, 2**63),
    *(2**64 - 1, 2**64, 10**30, -(2**31), -(2**63), -(2**63) - 1),
)
_OTHERS = (
    *(None, True, False, 0.0, 1.5, -1e300, float("nan"), float("inf")),
    *("", "x", "0", "1", ".", "..", "/", "../0", "../x", "/etc/passwd", "\0"),
    *("a" * 300, "a" * 5000, "a/" * 3000, "\ud800", "\n", "\u2028", "=", "dim"),
    *("0" * 8, "0" * 16, "f" * 32, "-1", "0x1", "file:///etc", "no://where"),
    *("delta", "full", "int64", "float32", "string", "\x1b[31m", "dim=2\n"),
    *("float16", "bfloat16", "int32", "dim=2\ndtype=float16\n"),
    *([], [[]], [None], [0], {}, {"path": ".", "id": "0" * 32}, {"": {}}),
)
_NO_MANIFESTS = (
    *(b"", b"\0", b"{", b"[", b"null", b"1", b'"x"', b"\xff\xfe{", b"\xef\xbb"),
    *(b"[" * 100_000, b'{"a":' * 100_000, b'{"format": 1', b'{"format": "1"'),
    *(
        b'{"format": 3',
        b'{"format": 2',
        b'{"format": 1' + b"0" * 5000,
        b'{"format": -1',
    ),
    *(b'{"format": NaN', b'{"format": 1, "format": 1', b'{"format": 1,'),
    '{"a": 1'.encode("utf-16"),
)

# What comes of a change of something that an earlier change has removed.
_GONE = (
    *(AttributeError, KeyError, IndexError, TypeError, ValueError),
    struct.error,
)


def seal(body):
    """A file of these bytes that ends with its CRC32C."""
    return body + f',\n  "crc32c": "{_core.crc32c(body):08x}"\n}}\n'.encode()


def reseal(file, change):
    """Changes the members of a sealed file.

    Args:
      file: path.
      change: function of the dict of its members, without the CRC32C.
    """
    with open(file, "rb") as opened:
        members = json.load(opened)
    del members["crc32c"]
    change(members)
    with open(file, "wb") as opened:
        opened.write(seal(_body_of(members)))


def _body_of(members):
    """The bytes of a sealed file, to which `seal` adds the end."""
    return json.dumps(members, indent=2).removesuffix("\n}").encode()


def read_files(root):
    """The regular files below a directory: `{path in it: bytes}`."""
    files = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, root)] = file.read()
    return files


def forge(files, seed, root):
    """Writes a copy of snapshots with random changes.

    Args:
      files: what `read_files` gave of snapshots in the directories 0, 1, ...
      seed: int.
      root: string, a directory that is empty.

    Returns:
      List of strings, what was done.
    """
    forger = _Forger(files, random.Random(seed))
    if forger.random.randrange(20):
        for _ in range(forger.random.choice(_TIMES)):
            forger.change()
    forger.write(root)
    return forger.done


class _Forger:
    """Snapshots in memory, manifests as the values of JSON."""

    def __init__(self, files, generator):
        self.random = generator
        self.done = []
        self._chunks = {
            path: bytearray(data)
            for path, data in files.items()
            if path.endswith(".chunks")
        }
        self._manifests = {
            os.path.dirname(path): json.loads(data)
            for path, data in files.items()
            if os.path.basename(path) == MANIFEST
        }
        for members in self._manifests.values():
            del members["crc32c"]
        self._bodies = {}  # of manifests that are no JSON of such values
        self._special = {}  # `{path: function that makes it}`

    def change(self):
        """Makes one change."""
        change = self.random.choice(
            [
                *(self._set_member,) * 6,
                *(self._remove_member,) * 2,
                *(self._change_list,) * 2,
                *(self._change_chunk,) * 4,
                *(self._change_row,) * 2,
                *(self._change_counters,) * 2,
                self._repeat_member,
                self._change_base,
                self._change_kind_of_file,
                self._swap_files,
                self._change_length,
                self._change_text,
                self._change_state,
                self._claim_large_rows,
            ]
        )
        place = self.random.choice(sorted(self._manifests))
        try:
            detail = change(place)
        except _GONE:
            detail = "not possible any more"
        self.done.append(f"{change.__name__[1:]} in {place}: {detail}")

    def _members(self, place):
        """`(container, key)` of all members and elements."""
        found = []

        def walk(value):
            keys = (
                list(value)
                if isinstance(value, dict)
                else range(len(value))
                if isinstance(value, list)
                else ()
            )
            for key in keys:
                found.append((value, key))
                walk(value[key])

        walk(self._manifests[place])
        return found

    def _set_member(self, place):
        container, key = self.random.choice(self._members(place))
        old = container[key]
        if type(old) is int and self.random.randrange(3):
            new = self.random.choice(
                [*_NUMBERS, old + 1, old - 1, old + 8, -old, 2 * old]
            )
        elif self.random.randrange(3):
            new = self.random.choice([*_OTHERS, *_NUMBERS])
        else:
            other, its_key = self.random.choice(self._members(place))
            new = json.loads(json.dumps(other[its_key]))
        container[key] = new
        return f"{key}={str(new)[:60]!r}"

    def _remove_member(self, place):
        container, key = self.random.choice(self._members(place))
        del container[key]
        return key

    def _change_list(self, place):
        lists = [
            c[k] for c, k in self._members(place) if isinstance(c[k], list)
        ]
        chosen = self.random.choice(lists)
        if self.random.randrange(2):
            chosen.insert(0, json.loads(json.dumps(chosen[-1])))
            return "repeated an element"
        chosen.reverse()
        return "reversed"

    def _repeat_member(self, place):
        body = self._body(place).decode()
        lines = body.split("\n")
        index = self.random.randrange(1, len(lines))
        lines.insert(index, lines[index].rstrip(",") + ",")
        self._bodies[place] = "\n".join(lines).encode()
        return lines[index]

    def _change_base(self, place):
        places = sorted(self._manifests)
        target = self.random.choice(places)
        members = self._manifests[place]
        path = self.random.choice(
            [".", "", "../" + target, "loop", "pipe", "//", "file://../0"]
        )
        members["base"] = {"path": path, "id": self._manifests[target]["id"]}
        members["kind"] = "delta"
        members["sequence"] = self.random.randrange(3)
        self._special[f"{place}/loop"] = lambda p: os.symlink("loop", p)
        self._special[f"{place}/pipe/{MANIFEST}"] = os.mkfifo
        return path

    def _change_kind_of_file(self, place):
        path = self.random.choice(
            [*self._files_of(place), f"{place}/{MANIFEST}"]
        )
        data = bytes(self._chunks.get(path, b""))
        name, make = self.random.choice(
            [
                ("pipe", os.mkfifo),
                ("loop", lambda p: os.symlink(p, p)),
                ("device", lambda p: os.symlink("/dev/zero", p)),
                ("directory", os.makedirs),
                ("link", lambda p: _write_and_link(p, data)),
                ("nothing", lambda p: None),
            ]
        )
        self._special[path] = make
        return f"{path} is a {name}"

    def _swap_files(self, place):
        one, two = self.random.sample(sorted(self._chunks), 2)
        self._chunks[one], self._chunks[two] = (
            self._chunks[two],
            self._chunks[one],
        )
        if self.random.randrange(2):
            tags = self._entry(one)["tag"], self._entry(two)["tag"]
            self._entry(one)["tag"], self._entry(two)["tag"] = tags[::-1]
            self._describe(one)
            self._describe(two)
        return f"{one} and {two}"

    def _change_length(self, place):
        path = self.random.choice(self._files_of(place))
        data = self._chunks[path]
        if self.random.randrange(2):
            del data[self.random.randrange(len(data)) :]
        else:
            data.extend(bytes(self.random.choice([1, 8, 40, 5000])))
        self._describe(path, rows=self.random.randrange(2))
        return f"{path} has {len(data)} bytes"

    def _change_chunk(self, place):
        path = self.random.choice(self._files_of(place))
        data = self._chunks[path]
        at = self.random.choice([8, 16, 20, 24, 28])
        old = struct.unpack_from("<I", data, at)[0]
        new = self.random.choice([*_NUMBERS, old + 1, old - 1]) % 2**32
        struct.pack_into("<I", data, at, new)
        self._describe(path, rows=self.random.randrange(2))
        return f"{path} has {new} at byte {at}"

    def _change_row(self, place):
        path = self.random.choice(self._files_of(place))
        data = self._chunks[path]
        at = self.random.randrange(32, len(data) - 8)
        new = self.random.choice(_NUMBERS) % 2**64
        struct.pack_into("<Q", data, at, new)
        self._describe(path)
        return f"{path} has {new} at byte {at}"

    def _change_counters(self, place):
        """Counters that are likely, but must not be there."""
        paths = [p for p in self._files_of(place) if "/counters-" in p]
        path = self.random.choice(paths)
        data = self._chunks[path]
        counters = [
            bytes(data[at : at + _core.COUNTER_BYTES])
            for at in range(32, len(data), _core.COUNTER_BYTES)
        ]
        index = self.random.randrange(len(counters))
        kind = self.random.randrange(5)
        if kind == 0:
            counters.insert(index, counters[index])
        elif kind == 1:
            counters.append(counters.pop(index))
        elif kind == 2:
            del counters[index]  # as if it had not been counted
        elif kind == 3:
            other = self._chunks[self.random.choice(paths)]
            counters.append(bytes(other[32 : 32 + _core.COUNTER_BYTES]))
        else:
            count = self.random.choice([0, 1, -1, 2, -2, 3, -3, 255, 256, -256])
            counters[index] = counters[index][:8] + struct.pack("<i", count)
        data[32:] = b"".join(counters)
        struct.pack_into("<I", data, 24, len(counters))
        self._describe(path)
        return f"{path}: kind {kind} at {index}"

    def _change_text(self, place):
        self._bodies[place] = self.random.choice(_NO_MANIFESTS)
        return str(self._bodies[place][:40])

    def _change_state(self, place):
        state = json.loads(self._manifests[place]["state"]["optimizer"])
        members = [state, state["config"], state["first"]]
        container = self.random.choice(members)
        key = self.random.choice(sorted(container))
        container[key] = self.random.choice([*_OTHERS, *_NUMBERS])
        if not self.random.randrange(3):
            container["learning_rate"] = self.random.choice(_OTHERS)
        self._manifests[place]["state"]["optimizer"] = (
            json.dumps(state)
            if self.random.randrange(4)
            else str(self.random.choice(_OTHERS))
        )
        return f"{key}={container[key]!r}"[:60]

    def _claim_large_rows(self, place):
        """Numbers of a row that go together."""
        row = self._manifests[place]["row"]
        count = self.random.choice([65536, 2**20, 2**40, 2**61 - 3, 2**61 - 2])
        row["fields"][-1]["count"] = count
        size = 2 if row["fields"][-1]["dtype"] == "bfloat16" else 4
        row["bytes"] = row["fields"][-1]["offset"] + size * count
        self._manifests[place]["chunk_bytes"] = row["bytes"] + 32
        return f"row.bytes={row['bytes']}"

    def _files_of(self, place):
        return [
            path
            for path in sorted(self._chunks)
            if os.path.dirname(path) == place
        ]

    def _entry(self, path):
        place, name = os.path.split(path)
        members = self._manifests[place]
        for file in [*members["files"], *members["counters"]["files"]]:
            if file["name"] == name:
                return file
        raise KeyError(name)

    def _describe(self, path, rows=True):
        """Makes checksums right, and counts if `rows`."""
        data = self._chunks[path]
        entry = self._entry(path)
        counted = os.path.basename(path).startswith("counters-")
        row_bytes = (
            _core.COUNTER_BYTES
            if counted
            else self._manifests[os.path.dirname(path)]["row"]["bytes"]
        )
        if len(data) >= 32:
            before, count, after = struct.unpack_from("<III", data, 20)
            end = 32 + 8 * (before + after) + row_bytes * count
            end = end if end <= len(data) else len(data)
            struct.pack_into("<I", data, 0, _core.crc32c(bytes(data[4:end])))
            if rows and counted:
                entry["counters"] = count
            elif rows:
                members = self._manifests[os.path.dirname(path)]
                members["rows"] += count - entry["rows"]
                members["erased"] += before + after - entry["erased"]
                entry["rows"], entry["erased"] = count, before + after
        entry["bytes"] = len(data)
        entry["crc32c"] = f"{_core.crc32c(bytes(data)):08x}"

    def _body(self, place):
        return _body_of(self._manifests[place])

    def write(self, root):
        """Writes all files."""
        files = dict(self._chunks)
        for place in self._manifests:
            body = self._bodies.get(place) or self._body(place)
            files[f"{place}/{MANIFEST}"] = seal(body)
        for path, data in files.items():
            path_there = os.path.join(root, path)
            os.makedirs(os.path.dirname(path_there), exist_ok=True)
            if path not in self._special:
                with open(path_there, "wb") as file:
                    file.write(data)
        for path, make in self._special.items():
            path_there = os.path.join(root, path)
            os.makedirs(os.path.dirname(path_there), exist_ok=True)
            make(path_there)


def _write_and_link(path, data):
    with open(path + ".away", "wb") as file:
        file.write(data)
    os.symlink(path + ".away", path)


def same(one, two):
    """Whether two `{field: {sign: values}}` have the same bits."""
    return one.keys() == two.keys() and all(
        one[field].keys() == two[field].keys()
        and all(
            np.asarray(values).tobytes()
            == np.asarray(two[field][sign]).tobytes()
            for sign, values in one[field].items()
        )
        for field in one
    )
