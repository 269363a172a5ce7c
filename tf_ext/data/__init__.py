# SPDX-License-Identifier: Apache-2.0
"""Datasets: records of files and queues, hashing, shares of workers."""

from tf_ext.data.avro_files import Avro
from tf_ext.data.day_files import list_files
from tf_ext.data.dialect import Csv
from tf_ext.data.directory_source import DirectorySource
from tf_ext.data.errors import (
    DamagedFileError,
    LostRecordsError,
    ReadErrors,
    SourceError,
    SourceUnavailableError,
    TooManyErrorsError,
)
from tf_ext.data.field import Field
from tf_ext.data.hashed_datasets import hash_columns
from tf_ext.data.join_source import JoinCounts, JoinSource
from tf_ext.data.kafka_source import KafkaSource
from tf_ext.data.progress import StreamProgress
from tf_ext.data.protobuf_messages import Protobuf
from tf_ext.data.reading import read
from tf_ext.data.redis_source import RedisSource
from tf_ext.data.schema import Schema
from tf_ext.data.source import Consumer, Message, Source
from tf_ext.data.streaming import stream
from tf_ext.data.worker_batches import variable_batch_size, worker_share

__all__ = [
    "Avro",
    "Consumer",
    "Csv",
    "DamagedFileError",
    "DirectorySource",
    "Field",
    "JoinCounts",
    "JoinSource",
    "KafkaSource",
    "LostRecordsError",
    "Message",
    "Protobuf",
    "ReadErrors",
    "RedisSource",
    "Schema",
    "Source",
    "SourceError",
    "SourceUnavailableError",
    "StreamProgress",
    "TooManyErrorsError",
    "hash_columns",
    "list_files",
    "read",
    "stream",
    "variable_batch_size",
    "worker_share",
]


def __dir__() -> list[str]:
    return sorted(__all__)
