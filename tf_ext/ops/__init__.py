# SPDX-License-Identifier: Apache-2.0
"""The ops of tf_ext, as functions.

The op library is loaded by the first call of any of them.
"""

from tf_ext.ops.bags.bag_ops import (
    combine_bags,
    route_gradient,
    unique_by_shard,
)
from tf_ext.ops.bags.gradient_sum_ops import sum_segments
from tf_ext.ops.bags.hash_ops import hash_category
from tf_ext.ops.registration import library
from tf_ext.ops.table.eviction_ops import (
    sparse_table_decay,
    sparse_table_evict,
)
from tf_ext.ops.table.table_ops import (
    TABLE_STATS,
    sparse_table_clear,
    sparse_table_compact,
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

__all__ = [
    "TABLE_STATS",
    "combine_bags",
    "hash_category",
    "library",
    "route_gradient",
    "sparse_table_clear",
    "sparse_table_compact",
    "sparse_table_config",
    "sparse_table_decay",
    "sparse_table_erase",
    "sparse_table_evict",
    "sparse_table_export",
    "sparse_table_handle",
    "sparse_table_import",
    "sparse_table_pull",
    "sparse_table_push",
    "sparse_table_serving_handle",
    "sparse_table_size",
    "sparse_table_stats",
    "sum_segments",
    "unique_by_shard",
]


def __dir__() -> list[str]:
    return sorted(__all__)
