"""Tables, the rows of sparse features: `tf_ext.SparseTable`."""

__all__ = []
