// SPDX-License-Identifier: Apache-2.0
// Compaction of a table. stripe_compact.cc compacts a stripe.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {

int64_t Table::CompactStripes(const std::vector<Stripe*>& stripes,
                              const ParallelFor& parallel_for,
                              std::vector<Stripe*>* walked) {
  std::atomic<bool> out_of_memory{false};
  std::atomic<int64_t> total{0};
  std::vector<uint8_t> is_walked(stripes.size());
  // No exception may propagate through parallel_for, the caller's code.
  const auto compact = [&](int64_t i) {
    try {
      bool had_to_stay = false;
      total += stripes[i]->Compact(&had_to_stay);
      is_walked[i] = had_to_stay;
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  };
  RunBlocks(static_cast<int64_t>(stripes.size()), parallel_for, compact);
  if (out_of_memory) throw std::bad_alloc();
  for (size_t i = 0; i < stripes.size(); ++i) {
    if (is_walked[i]) walked->push_back(stripes[i]);
  }
  return total;
}

Status Table::Compact(const ParallelFor& parallel_for, int64_t* bytes) {
  *bytes = 0;
  const ExclusiveLock lock(compact_mutex_);
  try {
    std::vector<Stripe*> left;
    for (const auto& stripe : stripes_) left.push_back(stripe.get());
    while (true) {
      std::vector<Stripe*> walked;
      *bytes += CompactStripes(left, parallel_for, &walked);
      if (walked.empty()) break;
      left = std::move(walked);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (const auto& stripe : stripes_) stripe->Pack();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  // Other threads may have inserted more than was returned.
  *bytes = std::max<int64_t>(0, *bytes);
  return Status::Ok();
}

void Table::CompactIfSparse(const ParallelFor& parallel_for) {
  try {
    std::vector<Stripe*> sparse;
    for (const auto& stripe : stripes_) {
      if (stripe->sparse()) sparse.push_back(stripe.get());
    }
    if (sparse.empty()) return;
    if (!compact_mutex_.try_lock()) return;
    const ExclusiveLock lock(compact_mutex_, std::adopt_lock);
    std::vector<Stripe*> walked;
    CompactStripes(sparse, parallel_for, &walked);
    if (!memory_.scattered()) return;
    for (const auto& stripe : stripes_) stripe->Pack();
  } catch (const std::bad_alloc&) {
    // Ignored: the erasure, which is what the caller requested, succeeded.
  }
}

}  // namespace tf_ext
