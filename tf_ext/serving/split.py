# SPDX-License-Identifier: Apache-2.0
"""Exports rows for key-value stores, and the dense part as a SavedModel."""

import os
import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.feature_column.column import Column
from tf_ext.serving import folder, row_files
from tf_ext.serving import signature as signatures
from tf_ext.serving.arguments import check_built, check_version
from tf_ext.serving.dense_part import DensePart, Embedding, cut
from tf_ext.serving.onnx_part import OnnxPart
from tf_ext.serving.writing import header_of
from tf_ext.snapshot import parquet as row_groups
from tf_ext.snapshot.files import Progress
from tf_ext.tables.sparse_table import SparseTable

# The folder of the SavedModel, in the folder of a version.
DENSE = "dense"

_EXPORT_SPLIT = "tf_ext.serving.export_split"


def export_split(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    snapshots: Mapping[str, str | os.PathLike[str]] | None = None,
    signature: typing.Any = None,
    progress: Progress | None = None,
    onnx: bool = False,
) -> str:
    """Writes a model's rows for a key-value store, and a model of the rest.

    The folder of a version contains three kinds of files. `TABLE.parquet` has
    the rows of a table: `sign`, int64, and `vector`, a list of `dim` float32
    values; its metadata identifies the table. `dense` is a SavedModel of
    TensorFlow's own ops. Its inputs are the combined embedding of each column,
    `[batch_size, dim]`, and the other features that the model uses; those of a
    sequence are `[batch_size, length, dim]` and its mask, or, if it is ragged,
    values and row splits.
    `assets.extra/manifest.json` names the table and the column of each input,
    and the step that the model has reached. docs/serving.md shows how to look
    rows up without TensorFlow.

    Rows are written in chunks, so that memory never contains a second copy of
    all of them.

    Args:
      model: keras.Model, functional or with its own `call`, whose tables are
        read by EmbeddingFeatures.
      path: path-like, the folder of all versions.
      version: int, or None for one more than the highest in `path`.
      snapshots: dict from names of tables to directories of snapshots from
        which their rows are read; for example for tables on parameter servers
        or with shards on several workers. None to read all rows from the model.
      signature: structure of `tf.TensorSpec`, `tf.RaggedTensorSpec` and
        `tf.SparseTensorSpec` of the model's inputs. None for the inputs of a
        functional model, or else those with which the model was called.
      progress: function that is called with the number of bytes of rows that
        were written, after each chunk; or None.
      onnx: bool, whether `dense.onnx` is written, too: the dense part for
        processes without TensorFlow. It needs `pip install 'tf-ext[onnx]'`.

    Returns:
      string, the folder of the version, `path/version`.

    Raises:
      ValueError: if the model cannot be cut in two, or `snapshots` has tables
        that are not the model's or do not fit them; or if ONNX cannot compute
        the dense part.
      FileExistsError: if the version exists.
      ModuleNotFoundError: if pyarrow is not installed, or what `onnx` needs.
      OSError: if the folder cannot be written.

    Example:
      >>> import os, tempfile
      >>> table = tf_ext.SparseTable("deep", dim=2)
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [tf_ext.feature_column.category_column("user")], table)
      >>> inputs = {"user": keras.Input([1], dtype="string", name="user")}
      >>> outputs = keras.layers.Dense(1)(layer(inputs))
      >>> model = tf_ext.Model(inputs, outputs)
      >>> with tempfile.TemporaryDirectory() as path:
      ...     version = tf_ext.serving.export_split(model, path)
      ...     sorted(os.listdir(version))
      ['assets.extra', 'deep.parquet', 'dense']
    """
    check_version(version, _EXPORT_SPLIT)
    row_groups.import_pyarrow()
    check_built(model, _EXPORT_SPLIT)
    part = cut(model, signatures.of_model(model, signature, None))
    tables = tables_of_embeddings(part.embeddings)
    sources = _sources(tables, snapshots or {})
    converted = OnnxPart(part, model.name) if onnx else None
    with folder.new_version(path, version, _EXPORT_SPLIT) as new:
        tf.saved_model.save(
            part.module, str(new.part / DENSE), signatures=part.function
        )
        if converted is not None:
            values = [one.numpy() for one in part.function.variables]
            data = converted.with_values(values)
            (new.part / converted.about["file"]).write_bytes(data)
        files = [
            row_files.write(
                new.part / one.file,
                one.table,
                one.columns,
                sources.get(one.table.name),
                progress,
            )
            for one in tables
        ]
        new.manifest = {
            "kind": "split",
            **header_of(model),
            "dense": DENSE,
            **described(part, tables, converted),
            "tables": files,
        }
    return str(new.folder)


class FiledTable(typing.NamedTuple):
    """A table, the file of its rows, and the columns that read it."""

    table: SparseTable
    file: str
    columns: Sequence[Column]


def tables_of_embeddings(embeddings: Sequence[Embedding]) -> list[FiledTable]:
    """The distinct tables of some embeddings, with unique file names."""
    columns: dict[SparseTable, list[Column]] = {}
    for one in embeddings:
        columns.setdefault(one.table, []).append(one.column)
    tables: list[FiledTable] = []
    taken: set[str] = set()
    for table, its_columns in columns.items():
        # Several tables may have the same name.
        file, count = f"{table.name}.parquet", 1
        while file.lower() in taken:
            count += 1
            file = f"{table.name}_{count}.parquet"
        taken.add(file.lower())
        tables.append(FiledTable(table, file, its_columns))
    return tables


def _sources(
    tables: Sequence[FiledTable],
    snapshots: Mapping[str, str | os.PathLike[str]],
) -> dict[str, str]:
    """Checks the snapshots; returns their directories by table name."""
    names = [one.table.name for one in tables]
    for name in snapshots:
        if names.count(name) != 1:
            raise ValueError(
                "Argument `snapshots` of tf_ext.serving.export_split must name "
                "tables of the model, whose names are "
                f"{', '.join(sorted(names))}; a name of several tables cannot "
                f"be used. Received: {name!r}"
            )
    for one in tables:
        if one.table.name not in snapshots:
            one.table.rows.regime.placement.check_exportable(one.table.name)
    return {name: os.fspath(where) for name, where in snapshots.items()}


def described(
    part: DensePart, tables: Sequence[FiledTable], converted: OnnxPart | None
) -> dict[str, typing.Any]:
    """What a manifest says of a dense part: its inputs and outputs, ONNX."""
    return {
        **({} if converted is None else {"onnx": converted.about}),
        "features": {n: _feature(one) for n, one in part.specs.items()},
        "embeddings": [_describe(one, tables) for one in part.embeddings],
        "inputs": _other_inputs(part),
        "outputs": sorted(part.function.structured_outputs),
    }


def _describe(
    one: Embedding, tables: Sequence[FiledTable]
) -> dict[str, typing.Any]:
    [file] = [each.file for each in tables if each.table is one.table]
    serialized = keras.utils.serialize_keras_object(one.column)
    return {
        "input": one.name,
        # The input of a sequence's mask, if the outputs depend on it.
        **({"mask": one.mask} if one.mask else {}),
        **({"row_splits": one.row_splits} if one.row_splits else {}),
        "file": file,
        "shape": list(one.column.output_shape(one.table.dim)),
        "column": one.column.name,
        "kind": type(one.column).__name__,
        "config": serialized["config"],
        "features": one.features,
    }


def _feature(spec: typing.Any) -> dict[str, typing.Any]:
    """An input of the model."""
    kind = "dense"
    if isinstance(spec, tf.RaggedTensorSpec):
        kind = "ragged"
    elif isinstance(spec, tf.SparseTensorSpec):
        kind = "sparse"
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    return {"kind": kind, "dtype": spec.dtype.name, "shape": shape}


def _other_inputs(part: DensePart) -> list[dict[str, typing.Any]]:
    [_, arguments] = part.function.structured_input_signature
    return [
        {
            "input": name,
            "of_model": of_model,
            "dtype": arguments[name].dtype.name,
            "shape": arguments[name].shape.as_list(),
        }
        for name, of_model in part.others.items()
    ]
