# SPDX-License-Identifier: Apache-2.0
"""Serving of trained models, with stock TensorFlow ops or with tables."""

from tf_ext.serving.export import export
from tf_ext.serving.folder import damaged_files, read_manifest, versions
from tf_ext.serving.follow import Follower, follow
from tf_ext.serving.snapshots import export_snapshots
from tf_ext.serving.split import export_split
from tf_ext.serving.warmup import read_warmup
from tf_ext.tables.weights_only import weights_only

__all__ = [
    "Follower",
    "damaged_files",
    "export",
    "export_snapshots",
    "export_split",
    "follow",
    "read_manifest",
    "read_warmup",
    "versions",
    "weights_only",
]


def __dir__() -> list[str]:
    return sorted(__all__)
