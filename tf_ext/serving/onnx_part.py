# SPDX-License-Identifier: Apache-2.0
"""The dense part of a model as an ONNX model."""

import logging
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._compat.frozen import with_variables_as_inputs
from tf_ext.serving.dense_part import DensePart

FILE = "dense.onnx"

_Array: typing.TypeAlias = npt.NDArray[typing.Any]

# Of the operators; runtimes since 2023 have it.
_OPSET = 18
# Of the batch with which a model is compared: samples, and values of each.
_SAMPLES, _VALUES = 3, 2
# Between outputs, relative to those above 1.
_TOLERANCE = 1e-4


class OnnxPart:
    """An ONNX model of a dense part, of which only weights change.

    It is converted once, with variables as inputs: a version has their values
    as initializers.

    Args:
      part: DensePart.
      name: string, the model's, for messages.

    Attributes:
      about: dict, what a manifest says of it: its file, and the names of its
        inputs and outputs by those of the dense part.

    Raises:
      ModuleNotFoundError: if tf2onnx or onnxruntime is not installed.
      ValueError: if it cannot be converted.
    """

    def __init__(self, part: DensePart, name: str) -> None:
        try:
            import onnx
            import onnxruntime
            import tf2onnx
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error.name} is not installed, which ONNX needs: pip install "
                "'tf-ext[onnx]'",
                name=error.name,
            ) from None
        self._onnx, self._runtime = onnx, onnxruntime
        graph, inputs, outputs, variables = with_variables_as_inputs(
            part.function
        )
        self._variables: list[str | None] = variables
        lifted = [one for one in variables if one]
        # It warns of TensorFlow's own functions that it calls.
        level = tf.get_logger().level
        tf.get_logger().setLevel(logging.ERROR)
        try:
            self._model, _ = tf2onnx.convert.from_graph_def(
                graph,
                name=name,
                input_names=[*inputs, *lifted],
                output_names=outputs,
                opset=_OPSET,
            )
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise _cannot(name, error) from error
        finally:
            tf.get_logger().setLevel(level)
        kept = [one for one in self._model.graph.input if one.name in inputs]
        del self._model.graph.input[:]
        self._model.graph.input.extend(kept)
        [_, arguments] = part.function.structured_input_signature
        # Flat outputs are in the order of their names.
        names = sorted(part.function.structured_outputs)
        self.about: dict[str, typing.Any] = {
            "file": FILE,
            "inputs": dict(zip(arguments, inputs, strict=True)),
            "outputs": dict(zip(names, outputs, strict=True)),
        }
        self._check(part, name)

    def with_values(self, values: Sequence[_Array]) -> bytes:
        """The file with the values of variables.

        Args:
          values: list of arrays, one for each of `part.function.variables`.
        """
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.initializer.extend(
            self._onnx.numpy_helper.from_array(np.ascontiguousarray(one), name)
            for name, one in zip(self._variables, values, strict=True)
            if name
        )
        return bytes(model.SerializeToString())

    def _check(self, part: DensePart, name: str) -> None:
        """Raises ValueError unless it computes what the dense part does."""
        rng = np.random.default_rng(0)
        [_, arguments] = part.function.structured_input_signature
        splits = {one.row_splits for one in part.embeddings if one.row_splits}
        ragged = {one.name for one in part.embeddings if one.row_splits}
        batch = {}
        for key, spec in arguments.items():
            if key in splits:
                ends = np.arange(_SAMPLES + 1) * _VALUES
                batch[key] = ends.astype(np.int64)
            else:
                count = _SAMPLES * (_VALUES if key in ragged else 1)
                batch[key] = _random(rng, spec, count)
        wanted = part.function(**{k: tf.constant(v) for k, v in batch.items()})
        values = [one.numpy() for one in part.function.variables]
        try:
            session = self._runtime.InferenceSession(self.with_values(values))
        except Exception as error:  # Of the runtime, which has its own.
            raise _cannot(name, error) from error
        taken = {one.name for one in session.get_inputs()}
        named = {self.about["inputs"][key]: one for key, one in batch.items()}
        found = session.run(
            [*self.about["outputs"].values()],
            {key: one for key, one in named.items() if key in taken},
        )
        for key, one in zip(self.about["outputs"], found, strict=True):
            right = wanted[key].numpy()
            if not np.allclose(one, right, _TOLERANCE, _TOLERANCE):
                raise _cannot(name, f"output {key!r} differs")


def _random(
    rng: np.random.Generator, spec: tf.TensorSpec, count: int
) -> _Array:
    shape = [count, *(size or _VALUES for size in spec.shape[1:])]
    if spec.dtype == tf.string:
        return np.full(shape, "a", object)
    if spec.dtype.is_floating:
        return rng.normal(size=shape).astype(spec.dtype.as_numpy_dtype)
    return np.ones(shape, spec.dtype.as_numpy_dtype)


def _cannot(name: str, why: object) -> ValueError:
    return ValueError(f"Model {name!r} cannot be converted to ONNX: {why}.")
