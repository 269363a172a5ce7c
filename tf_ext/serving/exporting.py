# SPDX-License-Identifier: Apache-2.0
"""Exports models as SavedModels of TensorFlow's own ops."""

import os
import typing

from tf_ext._keras import keras
from tf_ext.serving.arguments import Arguments
from tf_ext.serving.row_sources import of_table
from tf_ext.serving.writing import write
from tf_ext.snapshot.files import Progress


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    unknown: str | None = None,
    version: int | None = None,
    warmup: typing.Any = None,
    signature: typing.Any = None,
    progress: Progress | None = None,
) -> str:
    """Writes a SavedModel that can be served without tf_ext.

    It contains only ops of TensorFlow and the weights of the rows, without
    slots: TensorFlow Serving, `tf.saved_model.load` and programs in C++, Java
    or Go load it as it is. It has an endpoint `serve`, with the same inputs as
    the model, and the signature "serving_default" of dense tensors by name: a
    ragged input `tags` becomes `tags/values` and `tags/row_splits`, a sparse
    one `tags/indices`, `tags/values` and `tags/dense_shape`. Features that are
    nothing but the `click` of an `EmbeddingFeatures` are not among the inputs.

    Under MultiWorkerMirroredStrategy all workers must call it, and the first
    one writes; there and under ParameterServerStrategy, the model is copied by
    its `get_config`, and the rows are fetched in chunks.

    The export is atomic: `path/version` exists only once it is complete, even
    if the process is killed. `assets.extra/manifest.json` in it describes what
    was exported.

    Args:
      model: a built Keras model.
      path: path-like, the folder of all versions on this machine, as in
        TensorFlow Serving's `--model_base_path`.
      dtype: the type in which rows are stored: "float32", "float16",
        "bfloat16", or "int8" with a scale for each row. With "int8", rows of
        dim 1 are stored as float16, and a table may have at most 2^31 - 1 rows.
        The dtype in which the model computes does not change.
      unknown: the rows of ids without a row: None for the same as in the model,
        their initial weights or zeros (`unknown` of the table), or "zeros".
      version: int, or None for one more than the highest in `path`.
      warmup: a batch of features, or a list of batches, with which a server
        warms up: `assets.extra/tf_serving_warmup_requests`.
        `tf_ext.serving.read_warmup` reads it, with the outputs of the model.
      signature: structure of `tf.TensorSpec`, `tf.RaggedTensorSpec` and
        `tf.SparseTensorSpec` of the model's inputs. None for the inputs of a
        functional model, or else those with which the model was called, or
        else those of `warmup`, all without clicks.
      progress: function that is called with the number of bytes of rows that
        were read, after each chunk; or None.

    Returns:
      string, the folder of the version, `path/version`.

    Raises:
      ValueError: if an argument is invalid, the model is not built, `dtype`
        cannot represent a weight, or the model has an op that is not
        TensorFlow's.
      FileExistsError: if the version exists.
      OSError: if the folder cannot be written.

    Example:
    >>> import tempfile
    >>> from tf_ext._keras import keras
    >>> inputs = {"user": keras.Input((), dtype="int64", name="user")}
    >>> table = tf_ext.SparseTable("user", dim=1)
    >>> user = tf_ext.feature_column.category_column("user")
    >>> outputs = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
    >>> model = tf_ext.Model(inputs, outputs)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = tf_ext.serving.export(model, path)
    ...     loaded = tf.saved_model.load(folder)
    ...     loaded.serve({"user": tf.constant([7], tf.int64)}).shape
    TensorShape([1, 1])
    """
    given = Arguments(
        "tf_ext.serving.export",
        model,
        path,
        dtype,
        unknown,
        version,
        warmup,
        signature,
        progress,
    )
    return write(given, of_table)
