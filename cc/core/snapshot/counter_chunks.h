// SPDX-License-Identifier: Apache-2.0
// Files of counters of signs: docs/snapshots.md has their layout. They have the
// chunks of files of rows, and each "row" is a StoredCounter.
#ifndef TF_EXT_CC_CORE_SNAPSHOT_COUNTER_CHUNKS_H_
#define TF_EXT_CC_CORE_SNAPSHOT_COUNTER_CHUNKS_H_

#include <cstdint>
#include <cstring>
#include <optional>

#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/support/status.h"

namespace tf_ext {

// How often a sign was counted. Negative: it was last counted in the period
// before the current one.
struct StoredCounter {
  int64_t sign;
  int32_t count;
};

inline constexpr int64_t kStoredCounterBytes = 12;
inline constexpr int kMostCount = 255;

inline StoredCounter LoadCounter(const uint8_t* from) {
  StoredCounter counter;
  std::memcpy(&counter.sign, from, sizeof(counter.sign));
  std::memcpy(&counter.count, from + sizeof(counter.sign),
              sizeof(counter.count));
  return counter;
}

inline void StoreCounter(const StoredCounter& counter, uint8_t* to) {
  std::memcpy(to, &counter.sign, sizeof(counter.sign));
  std::memcpy(to + sizeof(counter.sign), &counter.count, sizeof(counter.count));
}

// The order of a file, which is that in which a table is walked: by stripe,
// then by the lower half of the hash. Different signs have different keys.
inline uint64_t CounterKey(int64_t sign) {
  constexpr int kRestBits = 32 - kStripeBits;
  const uint64_t hash = TableHash(sign);
  const uint64_t rest = (hash >> 32) & ((uint64_t{1} << kRestBits) - 1);
  return static_cast<uint64_t>(StripeOf(hash)) << (64 - kStripeBits) |
         (hash & 0xffffffff) << kRestBits | rest;
}

// Checks the chunks of a file, in order: that there are only counters of tables
// that admit at `n`, and that keys ascend, so that no sign occurs twice.
class CounterCheck {
 public:
  // `older`: whether counters may be of the period before.
  CounterCheck(int n, bool older) : n_(n), older_(older) {}

  // Fails (kDataLoss).
  Status Check(const ChunkView& chunk);

 private:
  const int n_;
  const bool older_;
  std::optional<uint64_t> last_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SNAPSHOT_COUNTER_CHUNKS_H_
