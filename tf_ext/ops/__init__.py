"""The ops of tf_ext, one function each.

The op library is loaded when the first of them is called.
"""

from tf_ext.ops._library import library
from tf_ext.ops.bag_ops import (
    UNIQUE_BY_SHARD,
    UNIQUE_SIGNS,
    combine_bags,
    combine_bags_grad,
    route_gradient,
    unique_by_shard,
)
from tf_ext.ops.exchange_ops import (
    exchange_pack,
    exchange_pull,
    exchange_sum,
    exchange_unpack,
    raise_error,
)
from tf_ext.ops.exchange_size_ops import (
    HEADER_COLUMNS,
    exchange_agree,
    exchange_header,
    exchange_width,
)
from tf_ext.ops.gradient_sum_ops import sum_segments
from tf_ext.ops.hash_ops import hash_category
from tf_ext.ops.owner_ops import (
    release_sparse_tables,
    sparse_table_set_owner,
)
from tf_ext.ops.snapshot_ops import (
    sparse_table_end_save,
    sparse_table_restore,
    sparse_table_save,
    sparse_table_set_chain,
    write_file_atomically,
)
from tf_ext.ops.table_ops import (
    TABLE_STATS,
    sparse_table_clear,
    sparse_table_config,
    sparse_table_erase,
    sparse_table_export,
    sparse_table_handle,
    sparse_table_import,
    sparse_table_pull,
    sparse_table_push,
    sparse_table_serving_handle,
    sparse_table_size,
    sparse_table_stats,
)
from tf_ext.ops.version_ops import versions

__all__ = [
    "HEADER_COLUMNS",
    "TABLE_STATS",
    "UNIQUE_BY_SHARD",
    "UNIQUE_SIGNS",
    "combine_bags",
    "combine_bags_grad",
    "exchange_agree",
    "exchange_header",
    "exchange_pack",
    "exchange_pull",
    "exchange_sum",
    "exchange_unpack",
    "exchange_width",
    "hash_category",
    "library",
    "raise_error",
    "release_sparse_tables",
    "route_gradient",
    "sparse_table_clear",
    "sparse_table_config",
    "sparse_table_end_save",
    "sparse_table_erase",
    "sparse_table_export",
    "sparse_table_handle",
    "sparse_table_import",
    "sparse_table_pull",
    "sparse_table_push",
    "sparse_table_restore",
    "sparse_table_save",
    "sparse_table_serving_handle",
    "sparse_table_set_chain",
    "sparse_table_set_owner",
    "sparse_table_size",
    "sparse_table_stats",
    "sum_segments",
    "unique_by_shard",
    "versions",
    "write_file_atomically",
]
