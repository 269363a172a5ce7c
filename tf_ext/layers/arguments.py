# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of EmbeddingFeatures."""

import typing
from collections.abc import Sequence

from tf_ext.feature_column.column import Column
from tf_ext.tables.sparse_table import SparseTable


def by_table(
    columns: typing.Any, table: SparseTable | None
) -> dict[SparseTable, Sequence[Column]]:
    """`{table: columns}` from the constructor's arguments, checked."""
    if isinstance(columns, SparseTable):
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must be a list of "
            "columns, and comes before `table`. Received: columns=<SparseTable "
            f"{columns.name!r}>, table={table!r}"
        )
    if table is None and not isinstance(columns, dict):
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must be a dict {table: "
            "columns}, or a list of columns with a `table`. Received: "
            f"columns={columns!r}, table=None"
        )
    if table is not None and not isinstance(table, SparseTable):
        raise _no_table(table)
    by_table = columns if table is None else {table: columns}
    names: set[str] = set()
    if not by_table:
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must not be empty. "
            f"Received: columns={columns!r}"
        )
    for one, its_columns in by_table.items():
        if not isinstance(one, SparseTable):
            raise _no_table(one)
        if one.name in names:
            raise ValueError(
                "Argument `columns` of EmbeddingFeatures must have tables of "
                f"different names. Received: two tables {one.name!r}"
            )
        names.add(one.name)
        _check_columns(one, its_columns)
    return by_table


def _no_table(found: object) -> ValueError:
    return ValueError(
        "Argument `table` of EmbeddingFeatures must be a tf_ext.SparseTable. "
        f"Received: table={found!r}"
    )


def _check_columns(table: SparseTable, columns: object) -> None:
    if not isinstance(columns, (list, tuple)) or not columns:
        raise ValueError(
            "Argument `columns` of EmbeddingFeatures must be a non-empty list "
            f"for each table. Received: {columns!r} for table {table.name!r}"
        )
    seen: set[str] = set()
    for column in columns:
        if not isinstance(column, Column):
            raise ValueError(
                "Argument `columns` of EmbeddingFeatures must hold columns, "
                "such as those of tf_ext.feature_column.category_column and "
                f"crossed_column. Received: {column!r} for table "
                f"{table.name!r}"
            )
        if column.name in seen:
            raise ValueError(
                "Argument `columns` of EmbeddingFeatures must have columns of "
                "different names for each table. Received: two columns "
                f"{column.name!r} for table {table.name!r}"
            )
        seen.add(column.name)


def check_shapes(by_table: dict[SparseTable, Sequence[Column]]) -> None:
    """Raises ValueError for outputs that cannot be concatenated."""
    for table, columns in by_table.items():
        for column in columns:
            shape = column.output_shape(table.dim)
            if len(shape) != 1 or shape[0] is None:
                raise ValueError(
                    "Argument `concatenate` of EmbeddingFeatures must be False "
                    "for outputs of other shapes than [batch_size, width]. "
                    f"Received: concatenate=True, and column {column.name!r} "
                    f"of shape {[None, *shape]}"
                )
