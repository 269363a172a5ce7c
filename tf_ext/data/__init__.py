# SPDX-License-Identifier: Apache-2.0
"""Datasets: records of files, hashing, files of days, shares of workers."""

from tf_ext.data.day_files import list_files
from tf_ext.data.dialect import Csv
from tf_ext.data.errors import (
    DamagedFileError,
    ReadErrors,
    TooManyErrorsError,
)
from tf_ext.data.field import Field
from tf_ext.data.hashed_datasets import hash_columns
from tf_ext.data.reading import read
from tf_ext.data.schema import Schema
from tf_ext.data.worker_batches import variable_batch_size, worker_share

__all__ = [
    "Csv",
    "DamagedFileError",
    "Field",
    "ReadErrors",
    "Schema",
    "TooManyErrorsError",
    "hash_columns",
    "list_files",
    "read",
    "variable_batch_size",
    "worker_share",
]


def __dir__() -> list[str]:
    return sorted(__all__)
