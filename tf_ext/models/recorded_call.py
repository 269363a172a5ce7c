# SPDX-License-Identifier: Apache-2.0
"""The first call of a subclassed model, which builds it when it is loaded.

Keras records the shapes of the inputs alone, and builds a loaded model with
floats of these shapes, which ids and strings are not.
"""

import json
import typing
import warnings
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext._compat.calls import is_building_by_shapes
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers.hashed_inputs import replaced_in
from tf_ext.training.building import example_of

_Encoded: typing.TypeAlias = dict[str, typing.Any]

# What is recorded as it is.
_VALUES = (bool, int, float, str, type(None))


def record_call(
    args: Sequence[typing.Any], kwargs: Mapping[str, typing.Any]
) -> str | None:
    """The arguments of a call as a JSON text, with types in place of tensors.

    None if Keras made them up.
    """
    if is_building_by_shapes():
        return None
    return json.dumps([_encoded(list(args)), _encoded(dict(kwargs))])


def recorded_inputs(record: str) -> typing.Any:
    """The structure of `tf.TypeSpec` of the first argument of a call.

    The size of the batch is unknown.

    None if it holds anything else than tensors, or hashed features, which
    nothing else than training takes.
    """
    inputs = _first_argument(record)
    return None if replaced_in(inputs) is not None else inputs


def is_of_hashed_features(record: str) -> bool:
    """Whether a call was with features that are hashed."""
    return replaced_in(_first_argument(record)) is not None


def _first_argument(record: str) -> typing.Any:
    """As `recorded_inputs`, but of hashed features, too."""
    encoded = json.loads(record)
    _forget_batch_size(encoded)
    args, _ = encoded
    try:
        inputs = _decoded(args)[:1]
    except _NotRecordedError:
        return None
    leaves = tf.nest.flatten(inputs)
    if not leaves or not all(isinstance(leaf, tf.TypeSpec) for leaf in leaves):
        return None
    return inputs[0]


def repeat_call(model: keras.Model, record: str) -> None:
    """Makes the variables of a model that is being loaded.

    Args:
      model: keras.Model.
      record: string, as of `record_call`.

    Raises:
      ValueError: the call cannot be repeated.
    """
    encoded = json.loads(record)
    _forget_batch_size(encoded)
    try:
        call = [_decoded(one) for one in encoded]
    except _NotRecordedError as error:
        raise _refusal(model, f"it was called with {error}.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns if it fails.
            _trace(model, call)
    except Exception:
        # Some code works eagerly alone, such as `numpy()`.
        try:
            args, kwargs = _map_specs(example_of, call)
            model(*args, **kwargs)
        except Exception as error:
            raise _refusal(model, f"its call failed: {error}") from error


def _refusal(model: keras.Model, reason: str) -> ValueError:
    return ValueError(
        f"Model {model.name!r} cannot be built as it was before it was saved. "
        "Make the model as the program that saved it did, call it on a batch, "
        "and then load the same file with `load_weights`; or give the class "
        f"{type(model).__name__} the methods `get_build_config` and "
        f"`build_from_config`. The reason: {reason}"
    )


def _trace(model: keras.Model, call: list[typing.Any]) -> None:
    """Calls a model without computing anything."""
    specs: list[tf.TypeSpec] = []
    _map_specs(specs.append, call)

    def traced(*tensors: typing.Any) -> None:
        given = iter(tensors)
        args, kwargs = _map_specs(lambda _: next(given), call)
        model(*args, **kwargs)

    if not IS_KERAS_3:
        tf.function(traced).get_concrete_function(*specs)
        return
    # As where Keras infers shapes: variables are made when the scopes end.
    with keras.StatelessScope(), keras.SymbolicScope():
        tf.function(traced, autograph=False).get_concrete_function(*specs)


def _map_specs(
    function: typing.Callable[[tf.TypeSpec], typing.Any], call: typing.Any
) -> typing.Any:
    return tf.nest.map_structure(
        lambda leaf: function(leaf) if isinstance(leaf, tf.TypeSpec) else leaf,
        call,
    )


class _NotRecordedError(Exception):
    """An argument is neither a tensor nor a number, a string or None."""


def _encoded(value: typing.Any) -> _Encoded:
    if isinstance(value, Mapping):
        if all(type(key) in (str, int) for key in value):
            return {"dict": [[k, _encoded(v)] for k, v in value.items()]}
    elif type(value) in (list, tuple):
        return {type(value).__name__: [_encoded(one) for one in value]}
    elif type(value) in _VALUES:
        return {"value": value}
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        return _encoded_tensor(value)
    return {"unknown": f"an argument of type {type(value).__name__}"}


def _encoded_tensor(value: typing.Any) -> _Encoded:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        value = tf.type_spec_from_value(value)
    value = getattr(value, "type_spec", value)  # Of tf_keras's Input.
    shape = tf.TensorShape(value.shape)
    encoded = {
        "tensor": "dense",
        "shape": None if shape.rank is None else shape.as_list(),
        "dtype": tf.as_dtype(value.dtype).name,
    }
    if isinstance(value, tf.SparseTensorSpec) or _has(value, "sparse"):
        encoded["tensor"] = "sparse"
    elif isinstance(value, tf.RaggedTensorSpec) or _has(value, "ragged"):
        splits = getattr(value, "row_splits_dtype", None) or tf.int64
        encoded["tensor"] = "ragged"
        encoded["ragged_rank"] = getattr(value, "ragged_rank", None) or 1
        encoded["row_splits_dtype"] = tf.as_dtype(splits).name
    return encoded


def _has(value: typing.Any, kind: str) -> bool:
    """Whether Keras 3's Input is of a kind."""
    return getattr(value, kind, False) is True


def _decoded(encoded: _Encoded) -> typing.Any:
    if "dict" in encoded:
        return {key: _decoded(value) for key, value in encoded["dict"]}
    if "list" in encoded:
        return [_decoded(one) for one in encoded["list"]]
    if "tuple" in encoded:
        return tuple(_decoded(one) for one in encoded["tuple"])
    if "value" in encoded:
        return encoded["value"]
    if "unknown" in encoded:
        raise _NotRecordedError(encoded["unknown"])
    shape, dtype = encoded["shape"], tf.as_dtype(encoded["dtype"])
    if encoded["tensor"] == "sparse":
        return tf.SparseTensorSpec(shape, dtype)
    if encoded["tensor"] == "ragged":
        splits = tf.as_dtype(encoded["row_splits_dtype"])
        return tf.RaggedTensorSpec(shape, dtype, encoded["ragged_rank"], splits)
    return tf.TensorSpec(shape, dtype)


def _forget_batch_size(encoded: typing.Any) -> None:
    """Makes the first dimension of tensors unknown, where it is the batch's."""
    shapes: list[list[int | None]] = []

    def visit(one: typing.Any) -> None:
        if isinstance(one, dict):
            if one.get("tensor") and one["shape"]:
                shapes.append(one["shape"])
            for value in one.values():
                visit(value)
        elif isinstance(one, list):
            for value in one:
                visit(value)

    visit(encoded)
    size = shapes[0][0] if shapes else None
    for shape in shapes:
        if shape[0] == size:
            shape[0] = None


def export_signature(record: str | None) -> typing.Any:
    """The inputs of a SavedModel of a subclassed model, `tf.TensorSpec`s.

    Keras takes all inputs for floats.

    Args:
      record: string, as of `record_call`, or None.

    Returns:
      None if the record does not tell, or has other than dense features.
    """
    inputs = None if record is None else recorded_inputs(record)
    leaves = tf.nest.flatten(inputs)
    if not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        return None

    def of_any_size(spec: tf.TensorSpec, name: str | None) -> tf.TensorSpec:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)

    if isinstance(inputs, Mapping) and len(leaves) == len(inputs):
        return {key: of_any_size(one, key) for key, one in inputs.items()}
    return tf.nest.map_structure(lambda one: of_any_size(one, None), inputs)
