// SPDX-License-Identifier: Apache-2.0
// Distinct signs of a batch, ordered by shard.
#ifndef TF_EXT_CC_CORE_BAGS_UNIQUE_H_
#define TF_EXT_CC_CORE_BAGS_UNIQUE_H_

#include <cstdint>
#include <vector>

#include "cc/core/support/status.h"

namespace tf_ext {

inline constexpr int64_t kMaxShards = 1 << 20;

struct UniqueSigns {
  std::vector<int64_t> signs;        // [u], by shard
  std::vector<int64_t> counts;       // [u], how often each is in the batch
  std::vector<int64_t> split_sizes;  // [num_shards], distinct signs of each
};

// Of one shard, signs are in the order of their first appearance. Of several,
// each shard's are by the stripes of its table, so that it reads and writes
// them nearly in order, and then by first appearance; the stripes count only
// up to 64 shards.
//
// One pass over a scratch hash table, no sort. `inverse`: [n], the place in
// `signs` of each input. n up to 2^31 - 1; num_shards from 1
// to kMaxShards.
Status UniqueByShard(const int64_t* signs, int64_t n, int64_t num_shards,
                     UniqueSigns* unique, int32_t* inverse);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BAGS_UNIQUE_H_
