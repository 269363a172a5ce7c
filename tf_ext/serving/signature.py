# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of served models: structures, and named tensors."""

import collections
import re
import typing
from collections.abc import Callable, Mapping, Sequence, Sized

import tensorflow as tf

from tf_ext._compat.models import Functional
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import click_inputs
from tf_ext.layers.hashed_inputs import replaced_in
from tf_ext.models.arrays import to_arrays
from tf_ext.models.recorded_call import recorded_inputs

Structure: typing.TypeAlias = typing.Any
Named: typing.TypeAlias = "dict[str, typing.Any]"

_COMPOSITE = (tf.RaggedTensorSpec, tf.SparseTensorSpec)


def of_model(
    model: keras.Model, signature: Structure, warmup: Structure
) -> "Signature":
    """The signature of a served model.

    Inputs that hold nothing but clicks are not in it unless the user says so:
    predictions do not need them.

    Args:
      model: keras.Model.
      signature: as of `infer`.
      warmup: as of `infer`.

    Raises:
      ValueError: as `infer`.
    """
    specs = infer(model, signature, warmup)
    clicks = click_inputs.clicks_of(model, specs)
    if signature is None:
        specs = click_inputs.without(specs, clicks)
    elif isinstance(specs, dict):
        clicks = {k: one for k, one in clicks.items() if k not in specs}
    else:
        clicks = {}
    return Signature(specs, clicks)


def infer(
    model: keras.Model, signature: Structure, warmup: Structure
) -> Structure:
    """Infers the specs of a model's inputs: a structure of `tf.TypeSpec`.

    Args:
      model: keras.Model.
      signature: the user's argument, or None.
      warmup: a batch, or None.

    Raises:
      ValueError: if the inputs are unknown, or `signature` is invalid.
    """
    if signature is not None:
        return _map(_to_spec, signature)
    # A Sequential that was called with a dict of features has no inputs.
    if isinstance(model, Functional) and hasattr(model, "input"):
        return _map(_to_spec, model.input)
    call = getattr(model, "tf_ext_call", None)
    called_with = None if call is None else recorded_inputs(call)
    if called_with is not None:
        return _map(_to_spec, called_with)
    saved = None if IS_KERAS_3 else model.save_spec()
    if saved is not None and replaced_in(saved[0][0]) is None:
        return _map(_to_spec, saved[0][0])
    inputs = getattr(model, "inputs", None)
    if isinstance(model, keras.Sequential) and inputs:
        return _map(_to_spec, inputs[0])
    if warmup is not None and replaced_in(warmup) is None:
        return _map(_to_spec, to_arrays(warmup))
    raise ValueError(
        f"Model {model.name!r} is neither functional nor has it been called "
        "with features that tf_ext.data.hash_columns or "
        "tf_ext.data.read(columns=) has not hashed, so its inputs are unknown. "
        "Call it once, or pass `signature`: a tf.TensorSpec for each feature, "
        "in the structure of the model's inputs; or `warmup`, raw features."
    )


def _map(
    function: Callable[..., typing.Any], structure: Structure
) -> Structure:
    """Like tf.nest.map_structure, but returns plain dicts, lists and tuples."""
    if isinstance(structure, collections.abc.Mapping):
        return {k: _map(function, v) for k, v in structure.items()}
    if isinstance(structure, (list, tuple)):
        mapped = [_map(function, value) for value in structure]
        return mapped if isinstance(structure, list) else tuple(mapped)
    return function(structure)


def _to_spec(value: typing.Any) -> tf.TypeSpec:
    if isinstance(value, tf.RaggedTensor):
        value = tf.RaggedTensorSpec.from_value(value)
    elif isinstance(value, tf.SparseTensor):
        value = tf.SparseTensorSpec(value.shape, value.dtype)
    if isinstance(value, tf.RaggedTensorSpec):
        rank = value.ragged_rank
        # The batch size and all ragged dimensions are unknown.
        sizes = [None] * (rank + 1) + list(value.shape[rank + 1 :])
        return tf.RaggedTensorSpec(
            sizes, value.dtype, rank, value.row_splits_dtype
        )
    if isinstance(value, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(_any_batch(value.shape), value.dtype)
    inner = getattr(value, "type_spec", None)  # Of tf_keras's Input.
    if isinstance(inner, _COMPOSITE):
        return _to_spec(inner)
    if getattr(value, "dtype", None) is None or not hasattr(value, "shape"):
        raise ValueError(
            "Argument `signature` must be a structure of tf.TensorSpec, "
            "tf.RaggedTensorSpec, tf.SparseTensorSpec or keras.KerasTensor, "
            f"of known dtypes. Received: {value!r}"
        )
    dtype, shape = tf.as_dtype(value.dtype), _any_batch(value.shape)
    if getattr(value, "ragged", False):
        rank = getattr(value, "ragged_rank", None) or 1
        splits = getattr(value, "row_splits_dtype", None) or "int64"
        return tf.RaggedTensorSpec(shape, dtype, rank, tf.as_dtype(splits))
    if getattr(value, "sparse", False):
        return tf.SparseTensorSpec(shape, dtype)
    return tf.TensorSpec(shape, dtype, getattr(value, "name", None))


def _any_batch(shape: typing.Any) -> tf.TensorShape:
    shape = tf.TensorShape(shape)
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape


def flatten(structure: Structure, names_of: Structure) -> Named:
    """Flattens a structure to a dict of named leaves.

    Args:
      structure: structure with leaves of any type.
      names_of: structure of `tf.TypeSpec` with the same nesting.

    Returns:
      `{name: leaf}`. A name consists of the keys of dicts and the names or
      indices of elements of lists, joined by "/". The name of a single leaf is
      that of its spec, or "inputs".
    """
    named: Named = {}

    def visit(spec: Structure, value: Structure, path: tuple[str, ...]) -> None:
        if isinstance(spec, dict):
            for key in spec:
                visit(spec[key], value[key], (*path, str(key)))
        elif isinstance(spec, (list, tuple)):
            for index, (one, part) in enumerate(zip(spec, value, strict=True)):
                name = getattr(one, "name", None) or f"{index}"
                visit(one, part, (*path, name))
        else:
            name = "/".join(path) or getattr(spec, "name", None) or "inputs"
            if name in named:
                raise _alike(name, name)
            named[name] = value

    visit(names_of, structure, ())
    return named


def _alike(one: str, other: str) -> ValueError:
    return ValueError(
        f"The inputs {one!r} and {other!r} of the model would have the same "
        "name in the signature: give them names that differ in letters or "
        "digits."
    )


class Signature:
    """The inputs of a SavedModel's signature: named dense tensors.

    A ragged input `tags` becomes `tags/values` and `tags/row_splits` (with
    several ragged dimensions `tags/row_splits_0`, ..., the outermost first), a
    sparse one `tags/indices`, `tags/values` and `tags/dense_shape`. Characters
    that TensorFlow does not allow in names are replaced by "_".

    Args:
      specs: structure of `tf.TypeSpec` of the model's inputs.
      clicks: dict of further ones, of `click_inputs.clicks_of`.

    Raises:
      ValueError: if two inputs would have the same name.
    """

    def __init__(
        self,
        specs: Structure,
        clicks: Mapping[str | int, tf.TensorSpec] | None = None,
    ) -> None:
        self.specs = specs
        self._clicks = clicks or {}
        self._leaves = flatten(specs, specs)
        self._names: dict[str, dict[str, str]] = {}
        self.tensors: dict[str, tf.TensorSpec] = {}
        seen: dict[str, str] = {}
        for name, spec in self._leaves.items():
            parts = _parts(spec)
            self._names[name] = {}
            for part, part_spec in parts.items():
                full = _legal(f"{name}/{part}" if part else name)
                key = re.sub(r"\W", "_", full)
                if key in seen:
                    raise _alike(seen[key], name)
                seen[key] = name
                self._names[name][part] = full
                self.tensors[full] = tf.TensorSpec(
                    part_spec.shape, part_spec.dtype, full
                )

    def pack(self, tensors: Named) -> Structure:
        """Converts named tensors to the structure of the model's inputs."""
        leaves = iter(self._leaves.items())

        def leaf(_: tf.TypeSpec) -> typing.Any:
            name, spec = next(leaves)
            parts = {
                part: tensors[full] for part, full in self._names[name].items()
            }
            return _join(spec, parts)

        return _map(leaf, self.specs)

    def complete(self, batch: Structure) -> Structure:
        """A batch of `specs` with everything that the model is called with."""
        return click_inputs.completed(batch, self._clicks)

    def call(self, model: keras.Model, batch: Structure) -> Structure:
        """The model's predictions for a batch of `specs`."""
        return model(self.complete(batch), training=False)

    def answers(
        self, model: keras.Model, batches: Sequence[Structure]
    ) -> list[tuple[Named, Named]]:
        """Batches and the predictions for them, as named tensors."""
        return [
            (self.unpack(batch), name_outputs(self.call(model, batch)))
            for batch in batches
        ]

    def unpack(self, batch: Structure) -> Named:
        """Converts a structure of the model's inputs to named tensors."""
        tensors = {}
        for name, value in flatten(batch, self.specs).items():
            for part, tensor in _split(value).items():
                tensors[self._names[name][part]] = tensor
        return tensors

    def convert(self, batch: Structure) -> Structure:
        """Converts a user's batch to tensors of the model's types.

        Args:
          batch: structure of tensors, arrays and lists; dicts may have keys
            that are not inputs of the model, which are ignored.

        Raises:
          ValueError: if an input is missing, or has the wrong type.
        """
        return _convert(self.specs, to_arrays(batch))


def _parts(spec: tf.TypeSpec) -> dict[str, tf.TensorSpec]:
    if isinstance(spec, tf.RaggedTensorSpec):
        rank = spec.ragged_rank
        parts = {
            "values": tf.TensorSpec([None, *spec.shape[rank + 1 :]], spec.dtype)
        }
        for name in _splits(rank):
            parts[name] = tf.TensorSpec([None], spec.row_splits_dtype)
        return parts
    if isinstance(spec, tf.SparseTensorSpec):
        rank = spec.shape.rank
        return {
            "indices": tf.TensorSpec([None, rank], tf.int64),
            "values": tf.TensorSpec([None], spec.dtype),
            "dense_shape": tf.TensorSpec([rank], tf.int64),
        }
    return {"": spec}


def _splits(rank: int) -> list[str]:
    if rank == 1:
        return ["row_splits"]
    return [f"row_splits_{index}" for index in range(rank)]


def _join(spec: tf.TypeSpec, parts: Named) -> typing.Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        # Validated, because clients may send anything.
        return tf.RaggedTensor.from_nested_row_splits(
            parts["values"], [parts[name] for name in _splits(spec.ragged_rank)]
        )
    if isinstance(spec, tf.SparseTensorSpec):
        sparse = tf.SparseTensor(**parts)
        sparse.set_shape(spec.shape)
        return sparse
    return parts[""]


def _split(value: typing.Any) -> Named:
    if isinstance(value, tf.RaggedTensor):
        splits = zip(_splits(value.ragged_rank), value.nested_row_splits)
        return {"values": value.flat_values, **dict(splits)}
    if isinstance(value, tf.SparseTensor):
        return {
            "indices": value.indices,
            "values": value.values,
            "dense_shape": value.dense_shape,
        }
    return {"": value}


def _legal(name: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", name)
    return name if re.match("[A-Za-z0-9.]", name) else f"arg{name}"


def _convert(spec: Structure, value: Structure) -> Structure:
    if isinstance(spec, dict):
        missing = [key for key in spec if key not in value]
        if missing:
            raise ValueError(
                f"Argument `warmup` must hold the input {missing[0]!r} of the "
                f"model. Received: {sorted(value)}"
            )
        return {key: _convert(spec[key], value[key]) for key in spec}
    if isinstance(spec, (list, tuple)):
        count = len(value) if isinstance(value, Sized) else None
        if count != len(spec):
            raise ValueError(
                f"Argument `warmup` must hold the {len(spec)} inputs of the "
                f"model. Received: {value if count is None else count}"
            )
        return type(spec)(_convert(one, part) for one, part in zip(spec, value))
    try:
        return _converted_leaf(spec, value)
    except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
        [first, *_] = str(error).splitlines()
        raise ValueError(
            "Argument `warmup` must be a batch that the model takes. "
            f"Received: {first}"
        ) from None


def _converted_leaf(spec: tf.TypeSpec, value: typing.Any) -> typing.Any:
    if not isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        value = tf.convert_to_tensor(value)
        if isinstance(spec, tf.SparseTensorSpec):
            value = tf.sparse.from_dense(value)
        elif isinstance(spec, tf.RaggedTensorSpec):
            value = tf.RaggedTensor.from_tensor(
                value, ragged_rank=spec.ragged_rank
            )
        elif spec.shape.rank == 2 and value.shape.rank == 1:
            value = value[:, tf.newaxis]
    if isinstance(value, tf.RaggedTensor):
        value = value.with_row_splits_dtype(spec.row_splits_dtype)
    # Casts that are exact or round; not strings, nor floats to integers.
    if value.dtype != spec.dtype and (
        spec.dtype.is_floating or value.dtype.is_integer
    ):
        value = tf.cast(value, spec.dtype)
    if not spec.is_compatible_with(value):
        raise ValueError(
            f"{spec} does not fit {tf.type_spec_from_value(value)}"
        )
    return value


def name_outputs(outputs: Structure) -> dict[str, tf.Tensor]:
    """Names outputs by the keys of dicts, joined by "/", or `output_0`, ..."""
    named: dict[str, tf.Tensor] = {}

    def visit(value: Structure, path: tuple[str, ...], index: int) -> None:
        if isinstance(value, collections.abc.Mapping):
            for key, part in value.items():
                visit(part, (*path, str(key)), 0)
        elif isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                visit(part, (*path, f"output_{number}"), number)
        else:
            name = "/".join(path) or f"output_{index}"
            for part, tensor in _split(value).items():
                full = f"{name}/{part}" if part else name
                named[full] = tf.convert_to_tensor(tensor)

    visit(outputs, (), 0)
    return named
