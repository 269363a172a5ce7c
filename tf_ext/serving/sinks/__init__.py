# SPDX-License-Identifier: Apache-2.0
"""Where versions of rows are published; needs no TensorFlow."""

__all__: list[str] = []
