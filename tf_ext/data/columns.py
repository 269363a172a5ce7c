# SPDX-License-Identifier: Apache-2.0
"""Columns that have a type: which fields they fit, and in what layout.

Parquet files and tables in memory have such columns.
"""

import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tf_ext._splits import row_splits
from tf_ext.data import paths
from tf_ext.data.field import Field, is_list, is_text
from tf_ext.data.numeric import is_text as is_text_type
from tf_ext.data.parts import splits_of, text_of
from tf_ext.data.times import is_time

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None

_MOST_BYTES = 256 << 20  # of the texts of a block; a larger one is refused


def is_list_type(type_: typing.Any) -> bool:
    """Whether a type of Arrow is one of lists that can be read."""
    return (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def fits(field: Field, type_: typing.Any) -> bool:
    """Whether a field can be read from a column of a type of Arrow."""
    if pa.types.is_null(type_):
        return True
    if is_list(field):
        if not is_list_type(type_):
            return False
        type_ = type_.value_type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if is_text_type(type_):
        return True
    if field.time is not None and is_time(type_):
        return True
    if is_text(field) and not _takes_ids(field):
        return False
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return True
    return field.dtype != "string" and (
        pa.types.is_boolean(type_) or pa.types.is_decimal(type_)
    )


def _takes_ids(field: Field) -> bool:
    """Whether a text may be the decimal text of an integer, as in hashing."""
    return field.values is None and field.separator is None


def wanted(field: Field) -> str:
    """What `fits` is true of, in words."""
    if field.separator is not None:
        return "text, as the field has a separator"
    if field.values is not None:
        return "text, as the field has values"
    of = "numbers, booleans or text"
    if field.dtype == "string":
        of = "text or numbers"
    elif field.time is not None:
        of = "times, dates, numbers or text"
    return f"lists of {of}" if field.bag else of


def complaint(
    file: str, schema: typing.Any, fields: Sequence[Field]
) -> str | None:
    """What a file or a table lacks of some fields, in words; None if nothing.

    Args:
      file: string, its name.
      schema: schema of Arrow.
      fields: list of Field.
    """
    wrong = [
        field.name
        for field in fields
        if any(
            schema.names.count(one) > 1 for one in paths.roots_of(field.name)
        )
        or (paths.type_at(schema, field.name) is None and not field.optional)
    ]
    if wrong:
        return (
            f"{file} must have each field of the schema once as a column, but "
            f"not {wrong}. Its columns are {schema.names[:100]}. Name fields "
            "as the file does, leave them out of the schema, or make those "
            "that some files lack with optional=True."
        )
    for field in fields:
        found = paths.type_at(schema, field.name)
        if found is not None and not fits(field, found):
            return (
                f"The column {field.name!r} of {file} must be {wanted(field)}, "
                f"but is {found}. Change the schema, or write the file with "
                "another type."
            )
    return None


def column_at(batch: typing.Any, name: str) -> typing.Any:
    """A field's column in rows that may lack it: it is missing in all then."""
    found = batch.schema.get_field_index(name)
    if found >= 0:
        return batch.column(found)
    [first, *steps] = paths.steps_of(name)
    if paths.type_at(batch.schema, name) is None:
        return pa.nulls(batch.num_rows)
    return pc.struct_field(batch.column(first), steps)


def text_lengths(column: typing.Any) -> npt.NDArray[typing.Any]:
    """The bytes of each text in the dictionary of a column."""
    if is_list_type(column.type):
        column = column.values
    if not (
        pa.types.is_dictionary(column.type)
        and is_text_type(column.type.value_type)
    ):
        return np.zeros(0, np.int64)
    texts = column.dictionary
    if pa.types.is_string(texts.type) or pa.types.is_binary(texts.type):
        return np.diff(text_of(texts)[0])  # Faster by four.
    lengths = pc.binary_length(texts).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False)


def decoded_bytes(
    column: typing.Any, most: int
) -> npt.NDArray[np.int64] | None:
    """The bytes of the texts of each row of a column of indices.

    Args:
      column: array.
      most: int.

    Returns:
      int64 `[rows]`; None if they are `most` or less in sum, or if the column
      is not one of indices.
    """
    lengths = text_lengths(column)
    if len(lengths) == 0:
        return None
    is_lists = is_list_type(column.type)
    indices = column.flatten() if is_lists else column
    if len(indices) * int(lengths.max()) <= most:
        return None
    sizes = lengths.astype(np.int64)[indices.indices.fill_null(0).to_numpy()]
    if indices.null_count:
        sizes[indices.is_null().to_numpy(zero_copy_only=False)] = 0
    if is_lists:
        sizes = np.diff(row_splits(sizes)[splits_of(column)])
    return sizes if sizes.sum() > most else None


def plain(
    field: Field, column: typing.Any, missing: Sequence[str]
) -> typing.Any:
    """A column of no more than the types that `Converter` takes.

    Args:
      field: Field.
      column: array that it `fits`.
      missing: list of strings, texts that stand for no number.

    Raises:
      ValueError: a column of indices is too large when decoded.
      pyarrow.ArrowException: there is no such layout of its values.
    """
    if pa.types.is_null(column.type):
        kind = pa.binary()
        return column.cast(pa.list_(kind) if is_list(field) else kind)
    if is_list_type(column.type):
        column = column.cast(pa.list_(column.type.value_type))
        if pa.types.is_dictionary(column.type.value_type):
            _check_size(field.name, column)
            # Not `cast`, which decodes what was before a slice, too.
            column = pa.ListArray.from_arrays(
                splits_of(column).astype(np.int32),
                column.flatten().dictionary_decode(),
            )
        kind = column.type.value_type
    else:
        if pa.types.is_dictionary(column.type):
            _check_size(field.name, column)
            if _can_stay(field, column):
                return pa.DictionaryArray.from_arrays(
                    column.indices.cast(pa.int32()),
                    column.dictionary.cast(pa.binary()),
                )
            column = column.dictionary_decode()
        kind = column.type
    plain_kind = kind
    if is_text(field) and pa.types.is_integer(kind):
        plain_kind = pa.string()
    elif is_text_type(kind):
        plain_kind = pa.binary()
    if plain_kind != kind:
        is_one = kind == column.type
        column = column.cast(plain_kind if is_one else pa.list_(plain_kind))
    if is_text_type(kind) and not field.bag and field.dtype != "string":
        texts = pa.array([text.encode() for text in missing], pa.binary())
        is_missing = pc.is_in(column, value_set=texts)
        if pc.any(is_missing).as_py():
            column = pc.if_else(
                is_missing, pa.scalar(None, pa.binary()), column
            )
    return column


def _can_stay(field: Field, column: typing.Any) -> bool:
    """Whether what reads a column of indices can do so as it is."""
    return (
        field.dtype == "string"
        and not field.bag
        and not column.null_count
        and not column.dictionary.null_count
        and is_text_type(column.type.value_type)
    )


def _check_size(name: str, column: typing.Any) -> None:
    """Raises ValueError if a column of indices is too large when decoded."""
    sizes = decoded_bytes(column, _MOST_BYTES)
    if sizes is not None:
        values = column.flatten() if is_list_type(column.type) else column
        raise ValueError(
            f"its column {name!r} has {len(values):,} texts of "
            f"{sizes.sum():,} bytes, more than the {_MOST_BYTES >> 20} MiB of "
            "a block"
        )
