# SPDX-License-Identifier: Apache-2.0
"""The dense part of a version: what computes outputs of embeddings."""

import abc
import pathlib
import tempfile
import typing
from collections.abc import Callable, Mapping

import numpy as np

from tf_ext._checks import listed
from tf_ext.serving.lookups.features import Array, read_feature
from tf_ext.serving.sinks.sink import Manifest, SinkError


class Dense(abc.ABC):
    """Computes the outputs of a model."""

    @abc.abstractmethod
    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, of all inputs."""


class _TensorFlow(Dense):
    """The SavedModel, loaded from a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        import tensorflow as tf

        self._constant = tf.constant
        # What the signature belongs to has to stay alive.
        self._loaded = tf.saved_model.load(str(folder))
        self._call = self._loaded.signatures["serving_default"]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        tensors = {name: self._constant(one) for name, one in inputs.items()}
        return {
            name: one.numpy() for name, one in self._call(**tensors).items()
        }


def load_tensorflow(
    manifest: Manifest, read_file: Callable[[str], bytes]
) -> Dense:
    """Loads the SavedModel of a version.

    Args:
      manifest: dict.
      read_file: function that returns the contents of a file of the version.
    """
    prefix = f"{manifest['dense']}/"
    with tempfile.TemporaryDirectory(prefix="tf_ext_") as folder:
        for one in manifest["files"]:
            if one["name"].startswith(prefix):
                path = pathlib.Path(folder, one["name"].removeprefix(prefix))
                if not path.is_relative_to(folder) or ".." in path.parts:
                    raise SinkError(
                        f"The name {one['name']!r} is not a file's."
                    )
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(read_file(one["name"]))
        return _TensorFlow(pathlib.Path(folder))


class _Onnx(Dense):
    """The ONNX model."""

    def __init__(self, about: Mapping[str, typing.Any], data: bytes) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error.name} is not installed: pip install onnxruntime",
                name=error.name,
            ) from None
        options = onnxruntime.SessionOptions()
        # Between requests its threads would take the processors of others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(data, options)
        taken = {one.name for one in self._session.get_inputs()}
        self._inputs = {
            name: its for name, its in about["inputs"].items() if its in taken
        }
        self._outputs: dict[str, str] = about["outputs"]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {its: _decoded(inputs[n]) for n, its in self._inputs.items()}
        found = self._session.run([*self._outputs.values()], given)
        return dict(zip(self._outputs, found, strict=True))


def _decoded(values: Array) -> Array:
    """Strings in place of bytes, which the runtime does not take."""
    if values.dtype.kind != "O":
        return values
    texts = [
        one.decode() if isinstance(one, bytes) else one for one in values.flat
    ]
    return np.array(texts, object).reshape(values.shape)


def load_onnx(manifest: Manifest, read_file: Callable[[str], bytes]) -> Dense:
    """Loads the ONNX model of a version.

    Args:
      manifest: dict.
      read_file: as of `load_tensorflow`.
    """
    about = manifest.get("onnx")
    if about is None:
        raise SinkError(
            f"Version {manifest['version']} has no ONNX model: write it with "
            "onnx=True of tf_ext.serving.export_split or publish."
        )
    return _Onnx(about, read_file(about["file"]))


# What computes a dense part, by its name.
LOADERS: dict[str, Callable[[Manifest, Callable[[str], bytes]], Dense]] = {
    "onnx": load_onnx,
    "tensorflow": load_tensorflow,
}


def other_inputs(
    manifest: Manifest, features: Mapping[str, typing.Any]
) -> dict[str, Array]:
    """The inputs of the dense part that are features themselves.

    Args:
      manifest: dict.
      features: dict of a request.

    Raises:
      ValueError: one is missing, or not as it must be.
    """
    return {
        one["input"]: _other_input(one, features) for one in manifest["inputs"]
    }


def _other_input(
    about: Mapping[str, typing.Any], features: Mapping[str, typing.Any]
) -> Array:
    name, part = about["of_model"], ""
    if name not in features:
        # A ragged input has its values and row splits apart.
        name, _, part = name.rpartition("/")
    if name not in features or part not in ("", "values", "row_splits"):
        raise ValueError(
            f"The feature {about['of_model']!r} is missing. Present are: "
            f"{listed(features)}."
        )
    feature = read_feature(name, features[name], bool(part))
    if part == "row_splits":
        return feature.splits.astype(about["dtype"])
    values = feature.values
    if not part:
        if feature.row_splits is not None:
            raise ValueError(
                f"The feature {name!r} must be dense, but its bags are of "
                "different lengths."
            )
        values = values.reshape(feature.shape)
        if len(feature.shape) + 1 == len(about["shape"] or ()):
            values = values[..., np.newaxis]
    return _cast(name, values, about["dtype"])


def _cast(name: str, values: Array, dtype: str) -> Array:
    is_text = values.dtype.kind in "USOT"
    if dtype == "string":
        if is_text or not values.size:
            return values.astype(object)
    elif not is_text:
        wanted = np.dtype(dtype)
        if wanted.kind == "f" or values.dtype.kind != "f" or not values.size:
            return values.astype(wanted)
    raise ValueError(
        f"The feature {name!r} must be of {dtype}, but is of {values.dtype}."
    )
