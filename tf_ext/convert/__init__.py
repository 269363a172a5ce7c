# SPDX-License-Identifier: Apache-2.0
"""Keras models become models with tables, and the reverse; rows of others."""

from tf_ext.convert.models_in import ConvertedModel, model_from_keras
from tf_ext.convert.models_out import KerasModel, model_to_keras
from tf_ext.convert.rows_in import ConvertedRows, from_keras
from tf_ext.convert.rows_out import KerasLayers, to_keras, to_matrix
from tf_ext.convert.stored_array import DamagedFilesError
from tf_ext.convert.tensornet import from_tensornet
from tf_ext.convert.tfra import from_tfra

__all__ = [
    "ConvertedModel",
    "ConvertedRows",
    "DamagedFilesError",
    "KerasLayers",
    "KerasModel",
    "from_keras",
    "from_tensornet",
    "from_tfra",
    "model_from_keras",
    "model_to_keras",
    "to_keras",
    "to_matrix",
]


def __dir__() -> list[str]:
    return sorted(__all__)
