# SPDX-License-Identifier: Apache-2.0
"""What `summary` says of tables, whose rows are no parameters of Keras."""

import inspect
import typing
from collections.abc import Callable

from tf_ext._compat.models import counting_weights
from tf_ext._keras import keras
from tf_ext.tables import shadow
from tf_ext.tables.find import tables_of
from tf_ext.tables.sparse_table import SparseTable


def print_summary(
    model: keras.Model,
    keras_summary: Callable[..., None],
    given: inspect.BoundArguments,
) -> None:
    """Prints Keras's summary, and a line for each table.

    Args:
      model: tf_ext.Model.
      keras_summary: the method of its Keras class.
      given: inspect.BoundArguments of it.
    """
    counted = [
        weight
        for weight in model.trainable_weights
        if shadow.table_of(weight) is None
    ]
    with counting_weights(model, counted):
        keras_summary(*given.args, **given.kwargs)
    print_line: typing.Any = given.arguments.get("print_fn") or print
    for table in tables_of(model):
        print_line(_line(table))


def _line(table: SparseTable) -> str:
    # A worker that has a part of the rows must not wait for the others, which
    # may print nothing.
    where = "" if table.rows.regime.placement.has_all else " in this process"
    count = sum(int(shard.size()) for shard in table.rows.shards)
    rule = type(table.optimizer).__name__
    return (
        f" Table {table.name!r}: {count:,} rows{where} of dim {table.dim}, "
        f"trained by {rule}"
    )
