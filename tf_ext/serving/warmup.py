# SPDX-License-Identifier: Apache-2.0
"""Warm-up requests, which a model server runs before it serves.

The file has TensorFlow Serving's format: a TFRecord file of `PredictionLog`
protos. The fields that are used are declared here, so that
`tensorflow-serving-api` is not required; field numbers never change.
"""

import functools
import os
import pathlib
import typing
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from tensorflow.core.framework import tensor_pb2

from tf_ext.serving.folder import EXTRA

NAME = "tf_serving_warmup_requests"
SIGNATURE = "serving_default"

# The maximum number of requests in a file of TensorFlow Serving.
MAX_BATCHES = 1000

_PACKAGE = "tf_ext.serving"
_FIELD = descriptor_pb2.FieldDescriptorProto

# Message -> `(name, number, type)` of its fields. Maps are declared as repeated
# messages, and TensorProtos as bytes, whose wire format is the same.
_MESSAGES = {
    "Tensor": [("key", 1, "string"), ("value", 2, "bytes")],
    "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
    "PredictRequest": [
        ("model_spec", 1, "ModelSpec"),
        ("inputs", 2, "[Tensor]"),
    ],
    "PredictResponse": [("outputs", 1, "[Tensor]")],
    "PredictLog": [
        ("request", 1, "PredictRequest"),
        ("response", 2, "PredictResponse"),
    ],
    "PredictionLog": [("predict_log", 6, "PredictLog")],
}

Arrays: typing.TypeAlias = dict[str, npt.NDArray[typing.Any]]


def write(
    folder: pathlib.Path,
    model: str,
    batches: Iterable[tuple[Mapping[str, tf.Tensor], Mapping[str, tf.Tensor]]],
) -> None:
    """Writes the file.

    Args:
      folder: pathlib.Path, the folder of a version.
      model: string, the model's name.
      batches: iterable of `(inputs, outputs)`, dicts from names in the
        signature to tensors.
    """
    path = folder / EXTRA / NAME
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for inputs, outputs in batches:
            log = _prediction_log()()
            request = log.predict_log.request
            request.model_spec.name = model
            request.model_spec.signature_name = SIGNATURE
            _put(request.inputs, inputs)
            _put(log.predict_log.response.outputs, outputs)
            writer.write(log.SerializeToString())


def read_warmup(
    folder: str | os.PathLike[str],
) -> list[tuple[Arrays, Arrays]]:
    """Reads the warm-up batches of an export, with the model's outputs.

    Args:
      folder: path-like, the folder of a version.

    Returns:
      List of `(inputs, outputs)`, dicts from names in the signature
      "serving_default" to arrays. The outputs are those of the model that was
      exported, whatever the export's dtype. The list is empty if the model was
      exported without `warmup`.
    """
    path = pathlib.Path(folder, EXTRA, NAME)
    if not path.exists():
        return []
    batches = []
    for record in tf.data.TFRecordDataset(os.fspath(path)):
        log = _prediction_log().FromString(record.numpy()).predict_log
        batches.append((_take(log.request.inputs), _take(log.response.outputs)))
    return batches


def _put(entries: typing.Any, tensors: Mapping[str, tf.Tensor]) -> None:
    for name, tensor in tensors.items():
        proto = tf.make_tensor_proto(tensor.numpy())
        entries.add(key=name, value=proto.SerializeToString())


def _take(entries: typing.Any) -> Arrays:
    return {
        entry.key: np.asarray(
            tf.make_ndarray(tensor_pb2.TensorProto.FromString(entry.value))
        )
        for entry in entries
    }


@functools.cache
def _prediction_log() -> typing.Any:
    """The class of `PredictionLog`, in its own descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_ext/serving/warmup.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number)
            added.label = (
                _FIELD.LABEL_REPEATED
                if kind.startswith("[")
                else _FIELD.LABEL_OPTIONAL
            )
            _set_type(added, kind.strip("[]"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{_PACKAGE}.PredictionLog")
    )


def _set_type(field: typing.Any, kind: str) -> None:
    if kind in _MESSAGES:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    else:
        field.type = {
            "bytes": _FIELD.TYPE_BYTES,
            "string": _FIELD.TYPE_STRING,
        }[kind]
