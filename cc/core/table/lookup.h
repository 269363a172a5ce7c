// SPDX-License-Identifier: Apache-2.0
// Batched lookup of signs, whose cache misses overlap.
//
// Signs go through three stages a block of kBlock at a time, each stage one
// block ahead of the next:
//
//   1. hash the sign and prefetch its bucket,
//   2. read the tags and prefetch the row that is likely the sign's,
//   3. visit: compare the sign, then copy or update.
//
// The first two take turns sign by sign, so that prefetches are spread over
// the other work: the processor stalls at a prefetch while all of its line
// fill buffers wait for memory. Rows are prefetched into the second-level
// cache, which takes more misses at once than the first.
#ifndef TF_EXT_CC_CORE_TABLE_LOOKUP_H_
#define TF_EXT_CC_CORE_TABLE_LOOKUP_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/hashing/mix.h"
#include "cc/core/table/bucket_index.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_slabs.h"

namespace tf_ext {

// The lookup structures of a stripe: from the hash to the number of the row,
// and from the number to the row.
struct SignRows {
  uint32_t Find(int64_t sign, uint64_t hash) const {
    return index.Find(
        hash, [this, sign](uint32_t row) { return slabs.SignAt(row) == sign; });
  }
  // The same, without a search if the candidate of a block is the sign's row.
  uint32_t Find(int64_t sign, uint64_t hash, uint32_t candidate) const {
    const bool is_row = candidate != kNoRow && slabs.SignAt(candidate) == sign;
    return is_row ? candidate : Find(sign, hash);
  }

  BucketIndex index;
  RowSlabs slabs;
};

// Enough that what one stage prefetches has arrived when the next one comes to
// it, few enough that no line is evicted before.
inline constexpr int kBlock = 24;

// The same number of prefetches for each row, though one that starts late in a
// line has a line more: a branch on that would be mispredicted half the
// time, and stall until the row's address has come.
//
// Inlined always: a call of a function that does nothing but prefetch is one
// without effect for g++, which drops it.
inline __attribute__((always_inline)) void PrefetchRow(const uint8_t* row,
                                                       int64_t bytes) {
  // Of a longer row the hardware fetches the rest, once the start is read.
  constexpr int64_t kMaxBytes = 1024;
  constexpr int kToSecondLevel = 2;  // as __builtin_prefetch counts
  bytes = std::min(bytes, kMaxBytes);
  for (int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(row + at, 0, kToSecondLevel);
  }
  __builtin_prefetch(row + bytes - 1, 0, kToSecondLevel);
}

// Calls visit(start, count, hashes, candidates) for the blocks of a batch of n.
// A candidate is the number of a row that may be the sign's, or kNoRow.
// `sign_at(i)`: a sign of the batch. `rows_of(hash)`: the SignRows it is in.
// `row_bytes`: how much of a row to prefetch. `also_prefetch(hashes,
// candidates, count)`: whatever else the visit will touch.
template <typename SignAt, typename RowsOf, typename AlsoPrefetch,
          typename Visit>
void LookUp(int64_t n, int64_t row_bytes, const SignAt& sign_at,
            const RowsOf& rows_of, const AlsoPrefetch& also_prefetch,
            const Visit& visit) {
  uint64_t hashes[3][kBlock];
  uint32_t candidates[2][kBlock];
  const auto count_at = [n](int64_t start) {
    return static_cast<int>(std::clamp<int64_t>(n - start, 0, kBlock));
  };
  const auto hash = [&](int64_t block) {
    const int64_t start = block * kBlock;
    const int count = count_at(start);
    uint64_t* const to = hashes[block % 3];
    for (int i = 0; i < count; ++i) {
      to[i] = TableHash(sign_at(start + i));
      rows_of(to[i]).index.Prefetch(to[i]);
    }
  };
  // The second stage of a block, and the first of the next one.
  const auto find = [&](int64_t block, int hash_count) {
    const int64_t next = (block + 1) * kBlock;
    const int count = count_at(block * kBlock);
    uint64_t* const to_next = hashes[(block + 1) % 3];
    const uint64_t* const of = hashes[block % 3];
    uint32_t* const to = candidates[block % 2];
    const auto find_one = [&](int i) {
      const SignRows& rows = rows_of(of[i]);
      to[i] = rows.index.Candidate(of[i], [&](uint32_t other) {
        PrefetchRow(rows.slabs.At(other), row_bytes);
      });
      if (to[i] != kNoRow) PrefetchRow(rows.slabs.At(to[i]), row_bytes);
    };
    int i = 0;
    for (; i < hash_count; ++i) {
      to_next[i] = TableHash(sign_at(next + i));
      rows_of(to_next[i]).index.Prefetch(to_next[i]);
      find_one(i);
    }
    for (; i < count; ++i) find_one(i);
    also_prefetch(of, to, count);
  };
  hash(0);
  hash(1);
  find(0, 0);
  for (int64_t block = 0; block * kBlock < n; ++block) {
    find(block + 1, count_at((block + 2) * kBlock));
    visit(block * kBlock, count_at(block * kBlock), hashes[block % 3],
          candidates[block % 2]);
  }
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_LOOKUP_H_
