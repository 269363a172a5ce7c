// SPDX-License-Identifier: Apache-2.0
// Walks over all rows of a table by row number, for the source files of the
// table.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_SWEEP_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_SWEEP_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "cc/core/table/stripe.h"
#include "cc/core/table/stripe_sweep.h"
#include "cc/core/table/table.h"

namespace tf_ext {

// The minimum number of rows that justifies waking a thread.
inline constexpr int64_t kMinRowsPerBlock = 8192;

// Calls fn(row) repeatedly; it returns the row number to continue with. The
// RowWalk keeps row numbers stable, so that each row is visited once.
template <typename Fn>
void ForEachSpan(const Stripe& stripe, const Fn& fn) {
  const RowWalk walk(stripe);
  for (uint32_t row = 0; row != kNoRow;) row = fn(row);
}

template <typename Sweep>
Status Table::SweepStripes(const ParallelFor& parallel_for,
                           const Sweep& sweep) const {
  std::atomic<bool> out_of_memory{false};
  const int64_t blocks =
      std::clamp<int64_t>(Size() / kMinRowsPerBlock, 1, kStripes);
  // No exception may propagate through parallel_for, the caller's code.
  const auto run = [&](int64_t block) {
    try {
      sweep(kStripes * block / blocks, kStripes * (block + 1) / blocks);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  };
  try {
    RunBlocks(blocks, parallel_for, run);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  return out_of_memory ? OutOfMemory() : Status::Ok();
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_SWEEP_H_
