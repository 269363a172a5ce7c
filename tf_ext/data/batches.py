# SPDX-License-Identifier: Apache-2.0
"""The dataset of batches that are cut from windows of records."""

import contextlib
import typing
import weakref
from collections.abc import Callable, Generator, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.data.errors import ReadingError
from tf_ext.data.layout import Layout
from tf_ext.data.passes import Window
from tf_ext.data.unreachable_iterators import free_in_threads_of_python
from tf_ext.ops.exchange import exchange_ops


def batches_of(
    windows: Callable[[], Generator[Window, None, None]],
    layout: Layout,
    batch_size: int,
    options: tf.data.Options,
    release: Callable[[], None] | None = None,
) -> tf.data.Dataset:
    """The batches of windows, whose errors it raises.

    Args:
      windows: function that begins to read them, in each iteration.
      layout: Layout.
      batch_size: int.
      options: tf.data.Options.
      release: called when TensorFlow has released what `windows` returned.
    """
    signature = (
        tf.TensorSpec([], tf.string),  # An error.
        tf.TensorSpec([None], tf.int64),
        *layout.signature,
    )

    free_in_threads_of_python()
    released: set[typing.Any] = set()

    def begin() -> Iterator[tuple[typing.Any, ...]]:
        iteration = generate(windows())
        if release is not None:
            released.add(weakref.ref(iteration, on_release))
        return iteration

    def on_release(reference: typing.Any) -> None:
        released.discard(reference)
        if release is not None:
            release()

    def generate(
        iteration: Generator[Window, None, None],
    ) -> Iterator[tuple[typing.Any, ...]]:
        try:
            with contextlib.closing(iteration) as read:
                for window in read:
                    yield ("", window.order, *layout.tensors(window.part))
        except ReadingError as error:
            # To a function's error TensorFlow would add all frames of Python.
            yield (error.as_text(), *map(empty, signature[1:]))

    # AutoGraph would take longer than the reading of a small file.
    @tf.autograph.experimental.do_not_convert
    def begins(
        error: tf.Tensor, order: tf.Tensor, *tensors: tf.Tensor
    ) -> tf.data.Dataset:
        with tf.control_dependencies([exchange_ops.raise_error(error)]):
            rows = tf.size(order, tf.int64)
        return tf.data.Dataset.range(0, rows, batch_size).map(
            lambda begin: (begin, order, *tensors)
        )

    @tf.autograph.experimental.do_not_convert
    def batch(
        begin: tf.Tensor, order: tf.Tensor, *tensors: tf.Tensor
    ) -> typing.Any:
        return layout.batch(tensors, order[begin : begin + batch_size])

    parsed = tf.data.Dataset.from_generator(
        begin, output_signature=signature
    ).with_options(options)
    # Each stage counts the bytes of all strings of an element, so they are made
    # in the last one.
    return parsed.flat_map(begins).map(batch).prefetch(tf.data.AUTOTUNE)


def empty(spec: tf.TensorSpec) -> npt.NDArray[typing.Any]:
    """The smallest array of a specification."""
    shape = [size or 0 for size in spec.shape]
    return np.empty(shape, spec.dtype.as_numpy_dtype)
