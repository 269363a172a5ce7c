# SPDX-License-Identifier: Apache-2.0
"""Reads small sources whole."""

import tensorflow as tf

import tf_ext


def read_whole(source, fields, format, missing=("",), **kwargs):
    """The only batch, as lists, and what was malformed, by reason.

    Args:
      source: files or tables, as of `tf_ext.data.read`.
      fields: list of Field.
      format: as of `tf_ext.data.read`.
      missing: as of `tf_ext.data.Schema`.
      **kwargs: of `tf_ext.data.read`.
    """
    errors = tf_ext.data.ReadErrors()
    [batch] = tf_ext.data.read(
        source,
        tf_ext.data.Schema(fields, missing=missing),
        format,
        batch_size=1000,
        max_errors=1.0,
        errors=errors,
        **kwargs,
    )
    return {
        name: value.to_list()
        if isinstance(value, tf.RaggedTensor)
        else value.numpy().tolist()
        for name, value in batch.items()
    }, errors.by_reason()
