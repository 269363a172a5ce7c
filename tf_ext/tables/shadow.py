# SPDX-License-Identifier: Apache-2.0
"""The variable that represents a table in Keras.

Each table has a trainable `[1, dim]` variable. The gradient of a pull is an
`IndexedSlices` of this variable whose indices are the signs, so that gradients
of tables pass through Keras like any other until `tf_ext.optimizers.Optimizer`
extracts them. The variable's value is never used. Another optimizer would
silently train it instead of the table, so assigning it raises.
"""

import typing
import weakref
from collections.abc import Iterable

import tensorflow as tf

from tf_ext._compat.calls import is_within
from tf_ext._compat.variables import refuse_updates
from tf_ext.regimes.table_interface import Table

_TABLE = "_tf_ext_table"
# Methods of Keras that assign variables one after another.
_SETTERS = ("set_weights", "set_state_tree")


def refusal(name: str | None) -> str:
    """The error text for an assignment to the shadow variable of a table.

    Args:
      name: string, the name of the table, or None if it is not made yet.
    """
    whose = "tf_ext.Model's tables" if name is None else f"table {name!r}"
    return (
        f"The rows of {whose} are not in a variable: they live in the "
        "table, which is updated by tf_ext.optimizers.Optimizer. Compile the "
        "model with (or call apply_gradients of) "
        "tf_ext.optimizers.Optimizer(your_optimizer) instead of your_optimizer "
        "itself. To copy rows, use table.export_rows() and "
        "table.import_rows(); to stop early with the best weights, "
        "tf_ext.callbacks.EarlyStopping."
    )


def setter_refusal(setter: str, name: str) -> str:
    """The error text for a `set_...` of a layer or model with a table.

    Args:
      setter: string, the name of the method: one of `_SETTERS`.
      name: string, the name of the table.
    """
    getter = f"g{setter[1:]}"
    return (
        f"{setter} cannot be used here: the rows of table {name!r} are not "
        f"in a variable, and {getter} returns none of them. Copy a model "
        "with save_weights and load_weights, rows with table.export_rows() and "
        "table.import_rows(), and the weights of a layer without tables with "
        "its own set_weights."
    )


def mark(variable: typing.Any, table: Table) -> None:
    """Makes `variable` the shadow of `table`.

    Args:
      variable: a Keras or TensorFlow variable that was just created.
      table: the SparseTable; kept as a weak reference.
    """

    def refuse() -> None:
        for setter in _SETTERS:
            if is_within(setter):
                raise RuntimeError(setter_refusal(setter, table_name))
        raise RuntimeError(refusal(table_name))

    table_name = table.name  # Not the table, which would never be freed.
    layers = [variable]
    if isinstance(getattr(variable, "value", None), tf.Variable):
        layers.append(variable.value)  # Keras 3's holds TensorFlow's
    for layer in layers:
        setattr(layer, _TABLE, weakref.ref(table))
        refuse_updates(layer, refuse)


def table_of(variable: typing.Any) -> Table | None:
    """The table whose shadow `variable` is, or None."""
    reference = getattr(variable, _TABLE, None)
    return None if reference is None else reference()


def holds_values(variable: typing.Any) -> bool:
    """Whether one of a model's variables has values that can be assigned.

    The shadow of a table has none. In tf_keras, the vocabularies of lookups are
    among the variables, too.
    """
    return table_of(variable) is None and hasattr(variable, "assign")


def name_of(variable: typing.Any) -> str:
    """What messages call a variable, or the table whose shadow it is."""
    table = table_of(variable)
    return variable.name if table is None else f"table {table.name!r}"


def count_without(count: int, tables: Iterable[Table]) -> int:
    """Keras's count of parameters, without the shadows of tables.

    Args:
      count: int.
      tables: list of distinct tables.
    """
    return count - sum(table.dim for table in tables)
