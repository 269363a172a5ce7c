"""The tables of a model."""

from tf_ext.tables import shadow


def tables_of(model):
    """The distinct SparseTables of a Keras model or layer, in its order.

    Args:
      model: a built Keras model or layer.
    """
    tables = {}
    for variable in model.weights:
        table = shadow.table_of(variable)
        if table is not None:
            tables[id(table)] = table
    return list(tables.values())
