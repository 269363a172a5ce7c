# SPDX-License-Identifier: Apache-2.0
"""Embeddings of features, of rows in a store; needs no TensorFlow."""

__all__: list[str] = []
