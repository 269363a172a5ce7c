// SPDX-License-Identifier: Apache-2.0
// What this process did since it started, for its metrics: relaxed atomics,
// which an op adds to once per call. They outlive tables, so they only grow.
#ifndef TF_EXT_CC_OPS_TABLE_OP_COUNTS_H_
#define TF_EXT_CC_OPS_TABLE_OP_COUNTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace tf_ext {

// The upper bounds of the first buckets of durations, in nanoseconds,
// inclusive; the last bucket has the rest.
inline constexpr int64_t kDurationBounds[] = {
    10'000,      25'000,      50'000,      100'000,     250'000,    500'000,
    1'000'000,   2'500'000,   5'000'000,   10'000'000,  25'000'000, 50'000'000,
    100'000'000, 250'000'000, 500'000'000, 1000'000'000};
inline constexpr int kDurationBuckets =
    sizeof(kDurationBounds) / sizeof(kDurationBounds[0]) + 1;

// Aligned, because different threads pull and push.
struct alignas(64) OpCounts {
  using Clock = std::chrono::steady_clock;

  // Counts a successful call on `n` signs that has just ended.
  void Add(int64_t n, Clock::time_point begin) {
    const int64_t duration =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() -
                                                             begin)
            .count();
    int bucket = 0;
    while (bucket < kDurationBuckets - 1 && duration > kDurationBounds[bucket])
      ++bucket;
    signs.fetch_add(n, std::memory_order_relaxed);
    nanoseconds.fetch_add(duration, std::memory_order_relaxed);
    calls[bucket].fetch_add(1, std::memory_order_relaxed);
  }

  std::atomic<int64_t> signs{0};
  std::atomic<int64_t> nanoseconds{0};
  std::atomic<int64_t> calls[kDurationBuckets] = {};  // by duration
};

// Of all tables of one name.
struct TableCounts {
  OpCounts pull;
  OpCounts push;
  std::atomic<int64_t> step{-1};  // of the latest push; -1: none
};

// Those of a table's name, and of HashCategory. They are never freed, because
// scrapers expect that counters only grow, and are small beside the kernel that
// TensorFlow keeps for each new name.
TableCounts& CountsOfTable(const std::string& name);
OpCounts& CountsOfHashing();

// Calls visit(name, counts) for all names of tables.
void VisitTableCounts(
    const std::function<void(const std::string&, const TableCounts&)>& visit);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_OP_COUNTS_H_
