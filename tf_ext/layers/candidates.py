# SPDX-License-Identifier: Apache-2.0
"""Checks of the ids and embeddings of candidates, as NumPy arrays."""

import typing

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.ops._stock.checks import check

Array: typing.TypeAlias = npt.NDArray[typing.Any]

ID_DTYPES = ("int64", "string")
# What stands where there is no candidate.
MISSING: dict[str, int | str] = {"int64": -1, "string": ""}

_SHOWN = 3

# Ids before the first `index`; those of candidates are distinct. A restored
# checkpoint, and a graph, tell it from an index that has become empty.
NO_INDEX: dict[str, list[int | str]] = {
    dtype: [missing] * 2 for dtype, missing in MISSING.items()
}


def has_index(
    name: str, ids: tf.Tensor, embeddings: tf.Tensor
) -> list[tf.Operation]:
    """Checks, to depend on, that a layer of a name has been indexed.

    Raises:
      tf.errors.InvalidArgumentError: eagerly, if it has not.
    """
    never = (tf.size(ids) == 2) & (tf.shape(embeddings)[0] == 0)
    text = (
        f"The Retrieval layer {name!r} has no candidates yet. Call its "
        "`index`, `index_from_dataset`, `index_from_table` or `add`, or load a "
        "model that has an index."
    )
    with tf.name_scope("retrieval_has_index"):
        return check(tf.logical_not(never), text)


def to_pair(owner: str, batch: typing.Any) -> tuple[typing.Any, typing.Any]:
    """The ids and the embeddings of an element of a dataset."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        refuse(owner, "dataset", "of pairs (ids, embeddings)", batch)
    return batch[0], batch[1]


def to_ids(owner: str, ids: typing.Any, id_dtype: str) -> Array:
    """Ids `[n]` of any form as int64, or as an object array of bytes.

    Raises:
      ValueError: ids of another rank or dtype, or an id twice.
    """
    array = _to_array(owner, "ids", ids)
    if array.ndim != 1:
        refuse(owner, "ids", "of rank 1", f"an array of shape {array.shape}")
    if id_dtype == "string":
        array = _to_bytes(owner, array)
    elif not array.size:
        array = array.astype(np.int64)
    elif array.dtype.kind not in "iu" or (
        array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max
    ):
        allowed = 'integers of at most 64 bits, with id_dtype="int64"'
        refuse(owner, "ids", allowed, f"an array of {array.dtype}")
    else:
        array = array.astype(np.int64)
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) < len(array):
        raise ValueError(
            f"Argument `ids` of {owner} must be distinct. Received: "
            f"{shown(distinct[counts > 1])}, more than once"
        )
    return array


def to_embeddings(
    owner: str, embeddings: typing.Any, count: int, dim: int
) -> Array:
    """Embeddings of any form as float32 `[count, dim]`.

    Raises:
      ValueError: another shape or dtype, or a value that is not finite.
    """
    array = _to_array(owner, "embeddings", embeddings)
    if array.dtype != tf.bfloat16.as_numpy_dtype and array.dtype.kind != "f":
        refuse(owner, "embeddings", "floats", f"an array of {array.dtype}")
    if array.shape != (count, dim):
        allowed = f"of shape {(count, dim)}, (number of ids, dim)"
        refuse(owner, "embeddings", allowed, f"an array of {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.asarray(array, np.float32)
        finite = np.isfinite(np.einsum("ij,ij->i", array, array))
    if not finite.all():
        row = int(np.argmin(finite))
        allowed = "finite, and so must the squares of their norms"
        refuse(owner, "embeddings", allowed, f"{array[row]} in row {row}")
    return array


def places_of(ids: Array, among: Array) -> npt.NDArray[np.int64]:
    """The index of each of `ids` `[n]` in `among` `[m]`, or -1: int64 `[n]`."""
    if not len(among):
        return np.full(len(ids), -1, np.int64)
    order = np.argsort(among, kind="stable")
    places = np.searchsorted(among, ids, sorter=order)
    places = order[np.minimum(places, len(among) - 1)]
    return np.where(among[places] == ids, places, -1)


def shown(ids: Array) -> str:
    """The first ids, for a message."""
    texts = [
        repr(one.decode(errors="replace"))
        if isinstance(one, bytes)
        else f"{one}"
        for one in ids[:_SHOWN]
    ]
    return ", ".join(texts) + (", ..." if len(ids) > _SHOWN else "")


def save_ids(store: typing.Any, ids: Array, id_dtype: str) -> None:
    """Writes ids into a store of Keras.

    Strings are arrays of numbers there: HDF5 cuts strings at a NUL.
    """
    if id_dtype == "int64":
        store["ids"] = ids
        return
    texts: list[bytes] = list(ids)
    store["id_bytes"] = np.frombuffer(b"".join(texts), np.uint8)
    store["id_lengths"] = np.array([len(one) for one in texts], np.int64)


def load_ids(
    store: typing.Any, layer: keras.layers.Layer, content: str
) -> Array:
    """The ids that `save_ids` wrote, as of `to_ids`.

    Args:
      store: the store of Keras.
      layer: the layer that is loaded, with an `id_dtype`.
      content: string, what the ids are of, for messages.

    Raises:
      ValueError: ids of another type, or an id twice.
    """
    if ("ids" in store) != (layer.id_dtype == "int64"):
        found = "string" if "id_bytes" in store else "int64"
        raise ValueError(
            f"Layer {layer.name!r} has ids of {layer.id_dtype}, but the file "
            f"has ids of {found}, or no {content}."
        )
    if layer.id_dtype == "int64":
        ids = np.asarray(store["ids"])
    else:
        text = np.asarray(store["id_bytes"], np.uint8).tobytes()
        ends = np.cumsum(np.asarray(store["id_lengths"], np.int64))
        ids = np.empty(len(ends), object)
        begin = 0
        for place, end in enumerate(ends):
            ids[place] = text[begin:end]
            begin = end
    return to_ids(f"{type(layer).__name__}.index", ids, layer.id_dtype)


def _to_array(owner: str, argument: str, value: typing.Any) -> Array:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        refuse(owner, argument, "dense", type(value).__name__)
    return np.asarray(value.numpy() if tf.is_tensor(value) else value)


def _to_bytes(owner: str, array: Array) -> Array:
    allowed = 'strings, with id_dtype="string"'
    if array.size and array.dtype.kind not in "OSU":
        refuse(owner, "ids", allowed, f"an array of {array.dtype}")
    ids = np.empty(len(array), object)
    for place, one in enumerate(array.tolist()):
        if not isinstance(one, (str, bytes)):
            refuse(owner, "ids", allowed, one)
        ids[place] = one.encode() if isinstance(one, str) else one
    return ids
