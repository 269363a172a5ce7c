# SPDX-License-Identifier: Apache-2.0
"""The tables of a model."""

from tf_ext._keras import keras
from tf_ext.tables import shadow
from tf_ext.tables.sparse_table import SparseTable


def tables_of(model: keras.layers.Layer) -> list[SparseTable]:
    """The distinct SparseTables of a Keras model or layer, in its order.

    Args:
      model: a Keras model or layer. A subclassed model that is not built has
        the tables that its constructor made.
    """
    try:
        variables = model.weights
    except ValueError:
        # tf_keras lists no weights if one of the layers is not built.
        modules = model.submodules
        return [module for module in modules if isinstance(module, SparseTable)]
    tables = {}
    for variable in variables:
        table = shadow.table_of(variable)
        if isinstance(table, SparseTable):
            tables[id(table)] = table
    return list(tables.values())
