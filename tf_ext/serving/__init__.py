# SPDX-License-Identifier: Apache-2.0
"""Serving of trained models, with stock TensorFlow ops or with tables.

Names are loaded when they are first used: sinks need no TensorFlow.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from tf_ext.serving.exporting import export
    from tf_ext.serving.folder import damaged_files, read_manifest, versions
    from tf_ext.serving.following import Follower, follow
    from tf_ext.serving.lookups.features import Ragged
    from tf_ext.serving.lookups.lookup import Lookup
    from tf_ext.serving.publishing import Publisher, publish
    from tf_ext.serving.rolling_back import rollback
    from tf_ext.serving.sinks.directory_sink import DirectorySink
    from tf_ext.serving.sinks.redis_sink import RedisSink
    from tf_ext.serving.sinks.sink import (
        FoundRows,
        RowChanges,
        Sink,
        SinkConflictError,
        SinkError,
        TableChanges,
        Versions,
    )
    from tf_ext.serving.snapshots import export_snapshots
    from tf_ext.serving.split import export_split
    from tf_ext.serving.warmup import read_warmup
    from tf_ext.tables.weights_only import weights_only

# Module -> the public names that it defines.
_NAMES = {
    "serving.exporting": ["export"],
    "serving.folder": ["damaged_files", "read_manifest", "versions"],
    "serving.following": ["Follower", "follow"],
    "serving.lookups.features": ["Ragged"],
    "serving.lookups.lookup": ["Lookup"],
    "serving.publishing": ["Publisher", "publish"],
    "serving.rolling_back": ["rollback"],
    "serving.sinks.directory_sink": ["DirectorySink"],
    "serving.sinks.redis_sink": ["RedisSink"],
    "serving.sinks.sink": [
        "FoundRows",
        "RowChanges",
        "Sink",
        "SinkConflictError",
        "SinkError",
        "TableChanges",
        "Versions",
    ],
    "serving.snapshots": ["export_snapshots"],
    "serving.split": ["export_split"],
    "serving.warmup": ["read_warmup"],
    "tables.weights_only": ["weights_only"],
}
_MODULES = {
    name: f"tf_ext.{module}"
    for module, names in _NAMES.items()
    for name in names
}

__all__ = [
    "DirectorySink",
    "Follower",
    "FoundRows",
    "Lookup",
    "Publisher",
    "Ragged",
    "RedisSink",
    "RowChanges",
    "Sink",
    "SinkConflictError",
    "SinkError",
    "TableChanges",
    "Versions",
    "damaged_files",
    "export",
    "export_snapshots",
    "export_split",
    "follow",
    "publish",
    "read_manifest",
    "read_warmup",
    "rollback",
    "versions",
    "weights_only",
]


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'tf_ext.serving' has no attribute {name!r}; it has: "
            f"{', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
