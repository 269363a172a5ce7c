// SPDX-License-Identifier: Apache-2.0
// Partitions a batch by stripe, for the source files of the table.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_STRIPES_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_STRIPES_H_

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <vector>

#include "cc/core/support/message.h"
#include "cc/core/table/batch_parts.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/stripe_batch.h"
#include "cc/core/table/table.h"

namespace tf_ext {

// The minimum number of signs that justifies waking a thread.
inline constexpr int64_t kMinSignsPerBlock = 2048;

// Locked at once for a small batch.
inline constexpr int kMaxStripesAtOnce = 16;

inline Status CheckCount(int64_t n) {
  if (n >= 0) return Status::Ok();
  return Invalid("the number of signs is ", n, "; it must not be negative.");
}

template <typename Part, typename Share>
Status Table::ForEachRange(const std::vector<Part>& parts, int64_t at_least,
                           const ParallelFor& parallel_for,
                           const Share& share) {
  const int64_t n = CountSigns(parts);
  if (n == 0) return Status::Ok();
  std::atomic<bool> out_of_memory{false};
  std::atomic<bool> full{false};
  try {
    if (n >= kStripes) {
      for (const auto& stripe : stripes_) stripe->Prefetch();
    }
    const StripeBatch batch(parts, parallel_for);
    const int64_t blocks =
        std::clamp<int64_t>(n / kMinSignsPerBlock, 1, kStripes);
    // No exception may propagate through parallel_for, the caller's code.
    const auto run = [&](int64_t block) {
      const int end = static_cast<int>(kStripes * (block + 1) / blocks);
      int s = static_cast<int>(kStripes * block / blocks);
      try {
        while (s < end) {
          const int begin = s;
          int64_t count = batch.size(s++);
          if (count == 0) continue;
          while (s < end && count < at_least && s - begin < kMaxStripesAtOnce) {
            count += batch.size(s++);
          }
          share(StripeRange{stripes_.data(), begin, s}, batch.items(begin),
                count);
        }
      } catch (const StripeFullError&) {
        full = true;
      } catch (const std::bad_alloc&) {
        out_of_memory = true;
      }
    };
    RunBlocks(blocks, parallel_for, run);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  if (out_of_memory) return OutOfMemory();
  if (full) {
    return Status::ResourceExhausted(
        "table \"" + config_.name + "\" is full: a stripe has its maximum of " +
        std::to_string(RowSlabs::kMaxRows) +
        " rows; use more shards, or erase rows. Part of the batch may have "
        "been applied.");
  }
  return Status::Ok();
}

template <typename Part, typename Share>
Status Table::ForEachStripe(const std::vector<Part>& parts,
                            const ParallelFor& parallel_for,
                            const Share& share) {
  return ForEachRange(parts, /*at_least=*/1, parallel_for,
                      [&](const StripeRange& range, BatchItem* items,
                          int64_t count) { share(range.begin, items, count); });
}

template <typename Share>
Status Table::ForEachStripe(const int64_t* signs, int64_t n,
                            const ParallelFor& parallel_for,
                            const Share& share) {
  return ForEachStripe(std::vector<SignPart>{{signs, n, 0, 1}}, parallel_for,
                       share);
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_STRIPES_H_
