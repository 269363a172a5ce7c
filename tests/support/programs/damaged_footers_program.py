# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files whose footer has another byte: FOLDER [all].

With `all`, that byte may be any, else one that says what levels a column has.
Prints how many were read and how many were refused, by file, as JSON.
"""

import json
import pathlib
import re
import sys

import pyarrow as pa
import pyarrow.parquet as parquet

import tf_ext
from tf_ext.data import formats

_ROWS = 20
_CHANGES = [*(1 << bit for bit in range(8)), 3, 0x11, 0xFF]
# A column's repetition, before its name.
_LEVELS = re.compile(rb"\x25[\x00\x02\x04]\x18")


def _tables():
    """`{name: (table, fields, options)}`."""
    field = tf_ext.data.Field
    tags = [[f"tag {i % 3}"] * (i % 4) for i in range(_ROWS)]
    numbers = [list(range(i % 5)) for i in range(_ROWS)]
    texts = [f"text {i % 3}" for i in range(_ROWS)]
    lists = {"numbers": numbers, "tags": pa.array(tags)}
    nested = [{"geo": {"at": t}, "tags": s} for t, s in zip(texts, tags)]
    of_lists = [field("numbers", "int64", bag=True), field("tags", bag=True)]
    return {
        "texts": ({"texts": texts}, [field("texts")], {}),
        "lists": (lists, of_lists, {}),
        "groups": (lists, of_lists, {"row_group_size": 6}),
        "nested": (
            {"user": nested},
            [field("user.geo.at"), field("user.tags", bag=True)],
            {},
        ),
    }


def _read(path, fields):
    """Whether a file can be read."""
    reader = formats.reader_of(tf_ext.data.Schema(fields), "parquet", False, 1)
    try:
        for parse in reader.blocks(str(path)):
            parse()
    except tf_ext.data.DamagedFileError:
        return False
    return True


def main(folder, every=None):
    counts = {}
    for name, (columns, fields, options) in _tables().items():
        path = pathlib.Path(folder) / name
        parquet.write_table(pa.table(columns), path, **options)
        whole = path.read_bytes()
        assert _read(path, fields)
        begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        places = range(begin, len(whole))
        if not every:
            found = _LEVELS.finditer(whole, begin)
            places = [one.start() + i for one in found for i in (0, 1)]
        read = []
        for place in places:
            for change in _CHANGES:
                data = bytearray(whole)
                data[place] ^= change
                path.write_bytes(data)
                read.append(_read(path, fields))
        counts[name] = {"read": sum(read), "refused": len(read) - sum(read)}
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
