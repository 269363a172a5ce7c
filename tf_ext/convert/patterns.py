# SPDX-License-Identifier: Apache-2.0
"""Finds in a model what a column and a table can take the place of."""

import typing

import tensorflow as tf

from tf_ext._compat.functional_graphs import Call, is_dense
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.convert.copies import ModelCopy
from tf_ext.convert.indices import LOOKUPS
from tf_ext.convert.rows_in import unusable

OWNER = "model_from_keras"
# The layers that do not read what is masked.
_MASK_READERS = (
    keras.layers.RNN,
    keras.layers.LSTM,
    keras.layers.GRU,
    keras.layers.Bidirectional,
    keras.layers.GlobalAveragePooling1D,
)


class Found(typing.NamedTuple):
    """A call of an Embedding, and what is around it.

    Attributes:
      embedding: the Embedding.
      lookup: the StringLookup or IntegerLookup before it; None without any.
      source: the symbolic tensor that the column is to read.
      kind: "sum" or "mean" for one vector for each example, or "sequence".
      output: the symbolic tensor that the column's output replaces.
      masks: bool, whether index 0 is left out.
    """

    embedding: typing.Any
    lookup: typing.Any
    source: typing.Any
    kind: str
    output: typing.Any
    masks: bool


def find(copy: ModelCopy) -> list[Found]:
    """The calls of Embeddings in a model, in their order.

    Raises:
      ValueError: one is called in another way than columns can express, or
        there is none; the sentence names the layer.
    """
    found = [
        _of_call(copy, call)
        for call in copy.calls
        if isinstance(call.layer, keras.layers.Embedding)
    ]
    if not found:
        raise ValueError(
            f"Argument `model` of {OWNER} must have a layer "
            "keras.layers.Embedding, not inside of another layer. Received: a "
            "model without one"
        )
    lookups: dict[int, typing.Any] = {}
    for one in found:
        if lookups.setdefault(id(one.embedding), one.lookup) is not one.lookup:
            _refuse(
                one.embedding,
                "is called behind one lookup layer, so that each row is that "
                "of one value",
                "several",
            )
    for layer in copy.ancestors([one.source for one in found]):
        if isinstance(layer, keras.layers.Embedding):
            _refuse(
                layer, "does not make ids of others", "ids that depend on it"
            )
    return found


def _refuse(layer: typing.Any, allowed: str, found: str) -> typing.NoReturn:
    raise ValueError(
        f"Argument `model` of {OWNER} must have layers of embeddings that "
        f"columns can express: {type(layer).__name__} {layer.name!r} must be "
        f"one that {allowed}. Received: {found}"
    )


def _of_call(copy: ModelCopy, call: Call) -> Found:
    embedding = call.layer
    _check_layer(embedding)
    [ids] = call.inputs()
    [output] = call.outputs
    rank = len(ids.shape)
    if not is_dense(ids) or rank not in (1, 2):
        _refuse(
            embedding,
            "reads dense ids [batch_size] or [batch_size, n]",
            f"{ids}",
        )
    lookup, source = _before(copy, embedding, ids)
    masks = bool(embedding.mask_zero)
    if masks and lookup is not None and lookup.mask_token is None:
        _refuse(
            embedding,
            "has mask_zero=False, or a lookup with a mask token",
            f"mask_zero=True behind {lookup.name!r} with mask_token=None, "
            "where index 0 is that of other values",
        )
    if rank == 1:
        if masks:
            _refuse(
                embedding,
                "has mask_zero=False where it reads ids [batch_size]",
                "mask_zero=True, whose mask would leave examples out of the "
                "loss",
            )
        return Found(embedding, lookup, source, "sum", output, False)
    readers = copy.readers(output)
    after = readers[0] if len(readers) == 1 else None
    if after is not None:
        if _flattens(after, ids.shape[1], embedding.output_dim):
            [flat] = after.outputs
            return Found(embedding, lookup, source, "sum", flat, False)
        if _averages(after):
            [mean] = after.outputs
            return Found(embedding, lookup, source, "mean", mean, masks)
    for reader in readers if masks else ():
        if reader is None or not isinstance(reader.layer, _MASK_READERS):
            name = "an output" if reader is None else f"{reader.layer.name!r}"
            _refuse(
                embedding,
                "has mask_zero=False, or is read by recurrent layers or "
                "GlobalAveragePooling1D, which leave out what is masked",
                f"mask_zero=True, read by {name}",
            )
    return Found(embedding, lookup, source, "sequence", output, masks)


def _check_layer(embedding: typing.Any) -> None:
    if type(embedding) is not keras.layers.Embedding:
        _refuse(
            embedding,
            "is an Embedding itself, not a subclass",
            f"{type(embedding)!r}",
        )
    why = unusable(embedding)
    if why:
        _refuse(embedding, why, "another")
    for name in ("embeddings_regularizer", "embeddings_constraint"):
        value = getattr(embedding, name)
        if value is not None:
            _refuse(embedding, f"has {name}=None", f"{value!r}")


def _before(
    copy: ModelCopy, embedding: typing.Any, ids: typing.Any
) -> tuple[typing.Any, typing.Any]:
    """The lookup before an Embedding, and what it reads."""
    layer = copy.maker(ids).layer
    if not isinstance(layer, LOOKUPS):
        return None, ids
    [source] = copy.maker(ids).inputs()
    if not is_dense(source) or source.shape != ids.shape:
        _refuse(embedding, f"is behind a dense {layer.name!r}", f"{source}")
    return layer, source


def _flattens(after: Call, length: int | None, dim: int) -> bool:
    """Whether a call makes `[batch_size, dim]` of `[batch_size, 1, dim]`."""
    kinds = (keras.layers.Flatten, keras.layers.Reshape)
    return (
        length == 1
        and isinstance(after.layer, kinds)
        and tuple(after.outputs[0].shape[1:]) == (dim,)
    )


def _averages(after: Call) -> bool:
    """Whether a call is a mean over positions, by the mask of its input."""
    layer = after.layer
    return (
        type(layer) is keras.layers.GlobalAveragePooling1D
        and not layer.keepdims
        and layer.data_format == "channels_last"
        and after.kwargs.get("mask") is None
        and len(after.args) == 1
    )


def as_ids(source: typing.Any) -> typing.Any:
    """A tensor as ids: Embedding and IntegerLookup take floats for integers."""
    dtype = tf.as_dtype(source.dtype)
    if not dtype.is_floating:
        return source
    if IS_KERAS_3:
        return keras.ops.cast(source, "int64")
    return tf.cast(source, tf.int64)


def without_mask(sequence: typing.Any) -> typing.Any:
    """The same values, which layers take for those of an Embedding.

    Sequences of columns have a mask, also where nothing is masked. Layers that
    have several inputs may not take it beside others.
    """
    if IS_KERAS_3:
        ops = keras.ops
        return ops.squeeze(ops.expand_dims(sequence, 0), 0)
    return tf.squeeze(tf.expand_dims(sequence, 0), 0)
