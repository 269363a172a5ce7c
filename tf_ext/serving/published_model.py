# SPDX-License-Identifier: Apache-2.0
"""What all published versions of a model have in common."""

import dataclasses
import hashlib
import posixpath
import typing
from collections.abc import Iterator, Mapping

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.recovery import files as points
from tf_ext.recovery.files import SavedPoint
from tf_ext.recovery.held import HeldFiles
from tf_ext.recovery.points import (
    OF_MODEL,
    check_id,
    check_variables,
    model_variables,
)
from tf_ext.serving import folder, row_files, split
from tf_ext.serving import signature as signatures
from tf_ext.serving.dense_files import DenseFiles
from tf_ext.serving.dense_part import cut
from tf_ext.serving.onnx_part import OnnxPart
from tf_ext.serving.sinks import row_bytes
from tf_ext.serving.sinks.sink import (
    Manifest,
    RowChanges,
    Sink,
    TableChanges,
    without_empty,
)
from tf_ext.serving.writing import header_of
from tf_ext.snapshot.changes import Changes, all_of, changes_of, deltas_since
from tf_ext.snapshot.clocks import have_clocks
from tf_ext.snapshot.files import Chain, read_chain
from tf_ext.tables.config import exported_text
from tf_ext.tables.find import tables_of

_OWNER = "tf_ext.serving.publish"
_SUFFIX = ".parquet"


class PublishedModel:
    """Makes manifests and changes of the points of a model.

    Args:
      model: keras.Model, built.
      dtype: string, one of `row_bytes.DTYPES`.
      signature: see `tf_ext.serving.publish`.
      onnx: bool, see `tf_ext.serving.publish`.
    """

    def __init__(
        self,
        model: keras.Model,
        dtype: str,
        signature: typing.Any,
        onnx: bool,
    ) -> None:
        for table in tables_of(model):
            if have_clocks(name for name, *_ in table.rows.stored_fields):
                refuse(
                    _OWNER,
                    "model",
                    "one whose rows change in pushes alone: with l2, l1 or "
                    "SparseAdam(absent='decay') each step changes all rows of "
                    f"table {table.name!r}. Use tf_ext.serving.follow, for "
                    "absent='decay' with a model made without weights_only",
                    model,
                )
        part = cut(model, signatures.of_model(model, signature, None))
        filed = split.tables_of_embeddings(part.embeddings)
        self._names = [table.name for table in tables_of(model)]
        places = {id(t): index for index, t in enumerate(tables_of(model))}
        self._tables = [(places[id(one.table)], one) for one in filed]
        self._texts = [
            row_files.metadata_of(one.table, one.columns) for one in filed
        ]
        self._variables = model_variables(model)
        self._dense = DenseFiles(part, model)
        self._onnx = OnnxPart(part, model.name) if onnx else None
        self._dtype = dtype
        self._header = {
            "format": folder.FORMAT,
            "kind": "published",
            **header_of(model),
            "dense": split.DENSE,
            "dtype": dtype,
            **split.described(part, filed, self._onnx),
        }

    def ids(self, saved: SavedPoint) -> dict[str, str]:
        """The ids of a point's snapshots, by the file of the rows."""
        return {one.file: saved.tables[i][1] for i, one in self._tables}

    def check(self, saved: SavedPoint, path: str) -> None:
        """Raises ValueError unless a point is of this model."""
        names = [name for name, _ in saved.tables]
        if len(names) != len(self._names):
            raise ValueError(
                f"Argument `model` of {_OWNER} must have the tables of the "
                f"model from which {path} was saved, {names}. Received: a "
                f"model with {self._names}."
            )
        described = {
            name: value
            for name, value in saved.variables.items()
            if name.startswith(OF_MODEL)
        }
        check_variables(self._variables, described, path)

    def version_of(
        self, path: str, saved: SavedPoint, written: float
    ) -> tuple[Manifest, dict[str, bytes]]:
        """The manifest of a point's version, without rows, and its files."""
        arrays = points.read_arrays(saved, path)
        contents = {
            f"{split.DENSE}/{name}": data
            for name, data in self._dense.at(arrays).items()
        }
        if self._onnx is not None:
            values = self._dense.values_of(arrays)
            name = self._onnx.about["file"]
            contents[name] = self._onnx.with_values(values)
        about = [
            {
                "name": name,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            for name, data in contents.items()
        ]
        ids = self.ids(saved)
        tables = [
            {
                "file": one.file,
                "name": one.table.name,
                "dim": one.table.dim,
                "dtype": self._dtype,
                "snapshot": ids[one.file],
                "config": text["config"],
                "schema_crc32c": text["schema_crc32c"],
            }
            for (_, one), text in zip(self._tables, self._texts, strict=True)
        ]
        manifest = {
            **self._header,
            "step": saved.step,
            "point": posixpath.basename(path),
            "point_time": written,
            "tables": tables,
            "files": about,
        }
        return manifest, contents

    def changes(
        self,
        path: str,
        saved: SavedPoint,
        base: Mapping[str, typing.Any],
        sink: Sink,
        held: HeldFiles,
        count: typing.Callable[[int], object],
    ) -> list[TableChanges]:
        """How a point's rows differ from those of a version.

        Args:
          path: string, the point's directory.
          saved: SavedPoint.
          base: dict, the manifest of the version; {} for none.
          sink: Sink that has the version.
          held: HeldFiles.
          count: function that is called with numbers of rows.
        """
        before = {one["file"]: one for one in base.get("tables", [])}
        changes = []
        for index, one in self._tables:
            where = points.table_path(path, index)
            chain = read_chain(where)
            check_id(
                chain[-1][1],
                saved.tables[index][1],
                where,
                posixpath.join(path, points.NAME),
            )
            one.table.rows.served.check_config(
                exported_text(chain[-1][1].config)
            )
            name = one.file.removesuffix(_SUFFIX)
            version, deltas = before.get(one.file), None
            if version and base.get("dtype") == self._dtype:
                if not sink.needs_whole(name):
                    deltas = deltas_since(chain, version.get("snapshot"))
            links = held.hold(chain if deltas is None else deltas)
            read = all_of if deltas is None else changes_of
            changes.append(
                TableChanges(
                    name,
                    row_bytes.width(self._dtype, one.table.dim),
                    deltas is None,
                    _Parts(read, links, self._dtype, one.table.name, count),
                )
            )
        return changes


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Reads the changes of a table, as `TableChanges.parts`."""

    read: typing.Callable[..., Iterator[Changes]]
    links: Chain
    dtype: str
    table: str
    added: typing.Callable[[int], object]

    def __call__(self) -> Iterator[RowChanges]:
        return without_empty(map(self._encoded, self.read(self.links)))

    def _encoded(self, part: Changes) -> RowChanges:
        self.added(len(part.signs) + len(part.erased))
        rows = row_bytes.encode(part.weights, self.dtype, self.table)
        return RowChanges(part.signs, rows, part.erased)
