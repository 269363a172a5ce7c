# SPDX-License-Identifier: Apache-2.0
"""Keras models become models with tables, and the reverse."""

from tf_ext.convert.models_in import ConvertedModel, model_from_keras
from tf_ext.convert.models_out import KerasModel, model_to_keras
from tf_ext.convert.rows_in import ConvertedRows, from_keras
from tf_ext.convert.rows_out import KerasLayers, to_keras, to_matrix

__all__ = [
    "ConvertedModel",
    "ConvertedRows",
    "KerasLayers",
    "KerasModel",
    "from_keras",
    "model_from_keras",
    "model_to_keras",
    "to_keras",
    "to_matrix",
]


def __dir__() -> list[str]:
    return sorted(__all__)
