# SPDX-License-Identifier: Apache-2.0
"""Tables, the rows of sparse features: `tf_ext.SparseTable`."""

__all__ = []
