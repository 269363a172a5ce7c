# SPDX-License-Identifier: Apache-2.0
"""Variables of a SavedModel whose values are never in memory as a whole.

A SavedModel is written with empty variables. Their values, which were appended
to files meanwhile, then take their places in its checkpoint, as slices: readers
of checkpoints put these together, TensorFlow Serving among them.
"""

import math
import pathlib
import shutil
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tf_ext.serving.row_dtypes import Array

# Of a slice: large enough for few files, small beside the rows.
_SLICE_BYTES = 32 << 20

# Where Keras and TensorFlow save the value of a variable.
_VALUE = "VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


class ValueFile:
    """The value of a variable in a file, to which elements are appended.

    Args:
      path: pathlib.Path of a file that does not exist.
      variable: tf.Variable, `[None, ...]`; its dtype and inner shape are those
        of the value.

    Attributes:
      count: int, the number of elements.
    """

    def __init__(self, path: pathlib.Path, variable: tf.Variable) -> None:
        self._path = path
        self._dtype = variable.dtype
        self._inner = tuple(variable.shape[1:])
        self.count = 0
        self._path.touch(exist_ok=False)

    def append(self, values: Array) -> None:
        """Appends elements, `[n, ...]` of the variable's dtype."""
        values = values.astype(self._dtype.as_numpy_dtype, copy=False)
        assert values.shape[1:] == self._inner, (values.shape, self._inner)
        with self._path.open("ab") as file:
            file.write(values.tobytes())
        self.count += len(values)

    def slices(self) -> Iterator[tuple[str, tf.Tensor]]:
        """The whole as `(specification, values)`, as `SaveV2` takes them."""
        size = self._dtype.size * math.prod(self._inner)
        step = max(1, _SLICE_BYTES // size)
        shape = " ".join(map(str, [self.count, *self._inner]))
        rest = "".join(":-" for _ in self._inner)
        with self._path.open("rb") as file:
            for begin in range(0, self.count, step):
                count = min(step, self.count - begin)
                raw = np.fromfile(file, np.uint8, count * size)
                values = raw.view(self._dtype.as_numpy_dtype)
                is_whole = count == self.count
                yield (
                    "" if is_whole else f"{shape} {begin},{count}{rest}",
                    tf.constant(values.reshape(count, *self._inner)),
                )


class _Parts:
    """Writes a checkpoint in parts, each of some slices.

    Args:
      folder: pathlib.Path, for the parts.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._waiting: list[tuple[str, str, tf.Tensor]] = []
        self._bytes = 0
        self.prefixes: list[str] = []

    def add(self, name: str, specification: str, values: tf.Tensor) -> None:
        """Writes a slice, at the latest with the next `flush`."""
        size = values.dtype.size or 0
        self._bytes += size * math.prod(values.shape)
        self._waiting.append((name, specification, values))
        if self._bytes >= _SLICE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        if not self._waiting:
            return
        names, specifications, tensors = zip(*self._waiting, strict=True)
        self.prefixes.append(str(self._folder / str(len(self.prefixes))))
        tf.raw_ops.SaveV2(
            prefix=self.prefixes[-1],
            tensor_names=names,
            shape_and_slices=specifications,
            tensors=tensors,
        )
        self._waiting, self._bytes = [], 0


def fill_variables(
    folder: pathlib.Path, files: Mapping[Sequence[str], ValueFile]
) -> None:
    """Replaces the values of variables in a SavedModel.

    Args:
      folder: pathlib.Path, the folder of the SavedModel.
      files: mapping from the path to a variable, the names of attributes from
        the object that was saved on, to its value. Files without elements
        leave the variable empty.
    """
    files = {path: file for path, file in files.items() if file.count}
    if not files:
        return
    prefix = folder / "variables" / "variables"
    reader = tf.train.load_checkpoint(str(prefix))
    keys = _keys_of(reader, files)
    others = set(reader.get_variable_to_shape_map()).difference(keys.values())
    temporary = prefix.parent / "parts"
    temporary.mkdir()
    parts = _Parts(temporary)
    with tf.device("/CPU:0"):
        for name in sorted(others):
            parts.add(name, "", tf.constant(reader.get_tensor(name)))
        for path, file in files.items():
            for specification, values in file.slices():
                parts.add(keys[path], specification, values)
        parts.flush()
        for old in prefix.parent.glob(f"{prefix.name}.*"):
            old.unlink()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts.prefixes, destination_prefix=str(prefix)
        )
    # TensorFlow has removed the folder, unless a part was in another one.
    shutil.rmtree(temporary, ignore_errors=True)


def _keys_of(
    reader: typing.Any, paths: typing.Iterable[Sequence[str]]
) -> dict[Sequence[str], str]:
    """The key in a checkpoint of each variable."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(_OBJECT_GRAPH)
    )
    keys = {}
    for path in paths:
        node = graph.nodes[0]
        for name in path:
            [index] = [
                child.node_id
                for child in node.children
                if child.local_name == name
            ]
            node = graph.nodes[index]
        [keys[path]] = [
            attribute.checkpoint_key
            for attribute in node.attributes
            if attribute.name == _VALUE
        ]
    return keys
