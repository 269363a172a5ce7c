# SPDX-License-Identifier: Apache-2.0
"""Values of small files, as others than tf_ext read them.

The values are those that pandas, csv or json find in the same file, converted
one by one.
"""

import dataclasses
import datetime
import json
import math
import typing

import numpy as np
import pandas
import pyarrow.parquet as parquet


@dataclasses.dataclass
class RealFile:
    """A file, and how it is read by `read` and by others.

    Attributes:
      name: string.
      data: bytes, or function from a path that writes it.
      fields: list of Field.
      format: as of `read`.
      header: bool, as of `read`.
      missing: list of strings, as of Schema.
      by_pandas: dict, arguments of `pandas.read_csv` for the same file.
    """

    name: str
    data: typing.Any
    fields: list
    format: typing.Any = "csv"
    header: bool = False
    missing: tuple = ("",)
    by_pandas: dict = dataclasses.field(default_factory=dict)

    def write(self, path):
        """Writes the file."""
        if callable(self.data):
            self.data(path)
            return
        data = self.data
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    def records(self, path):
        """What others read: a list of dicts."""
        if self.format == "jsonl":
            return [json.loads(line) for line in path.open() if line.strip()]
        if self.format == "parquet":
            return parquet.read_table(path).to_pylist()
        arguments = {
            "header": 0 if self.header else None,
            "dtype": str,
            "keep_default_na": False,
            **self.by_pandas,
        }
        frame = pandas.read_csv(path, **arguments)
        if not self.header:
            names = [field.name for field in self.fields]
            frame.columns = names[: len(frame.columns)]
        return frame.to_dict("records")

    def values(self, path):
        """The values of all fields: a dict of lists."""
        records = self.records(path)
        decimal = getattr(self.format, "decimal", ".")
        return {
            field.name: [
                self._value(field, _at(record, field.name), decimal)
                for record in records
            ]
            for field in self.fields
            if field.dtype != "unused"
        }

    def _value(self, field, value, decimal):
        is_nothing = value is None or value in self.missing
        is_nothing |= isinstance(value, float) and math.isnan(value)
        if field.bag:
            if is_nothing:
                return []
            if field.separator:
                value = value.removesuffix(field.separator)
                value = value.split(field.separator)
            if field.weight_separator:
                value = [v.rpartition(field.weight_separator)[0] for v in value]
            return [_converted(field, one, decimal) for one in value]
        if is_nothing:
            value = "" if field.default is None else field.default
            return value.encode() if field.dtype == "string" else value
        return _converted(field, value, decimal)


def _at(record, name):
    if name in record:
        return record[name]
    for step in name.split("."):
        record = None if record is None else record.get(step)
    return record


def _converted(field, value, decimal):
    """One value, by Python and pandas."""
    if field.values is not None:
        return field.values[value]
    if field.time is not None:
        return _seconds(value, field.time)
    if field.dtype == "string":
        if isinstance(value, bytes):
            return value
        return str(int(value) if isinstance(value, float) else value).encode()
    if isinstance(value, str) and decimal != ".":
        value = value.replace(decimal, ".")
    if field.dtype == "float32":
        return float(np.float32(value))
    if isinstance(value, str):
        value = value.strip()
        return int(value.split(".")[0])
    return int(value)


def _seconds(value, unit):
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        return pandas.to_datetime(value, utc=True).value // 10**9
    if isinstance(value, datetime.date):
        return pandas.to_datetime(value, utc=True).value // 10**9
    count = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return (
        math.floor(float(value)) // count
        if isinstance(value, float)
        else int(value) // count
    )
