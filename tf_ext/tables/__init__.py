"""Tables: the rows of sparse features."""

from tf_ext.tables.sparse_table import SparseTable

__all__ = ["SparseTable"]
