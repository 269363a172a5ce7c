// SPDX-License-Identifier: Apache-2.0
// Export and import of a stripe's counters of signs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"

namespace tf_ext {
namespace {

// Lines of counters that are read per lock hold, which takes tens of
// microseconds. There may be as many in each generation.
constexpr uint64_t kLinesAtOnce = 256;

}  // namespace

uint64_t Stripe::CopyCounters(uint64_t key, int64_t period,
                              std::vector<StoredCounter>* counters) const {
  const size_t begin = counters->size();
  uint64_t next;
  {
    const SharedLock lock(mutex_);
    next = counters_.Walk(
        key, kLinesAtOnce, period,
        [counters](uint64_t hash, uint8_t count, bool older) {
          counters->push_back({SignOfTableHash(hash), older ? -count : count});
        });
  }
  std::sort(counters->begin() + begin, counters->end(),
            [](const StoredCounter& one, const StoredCounter& two) {
              return CounterKey(one.sign) < CounterKey(two.sign);
            });
  return next;
}

void Stripe::ImportCounters(const BatchItem* items, int64_t n,
                            const int32_t* counts, int most, int64_t period) {
  // Destroyed after unlocking, because unmapping takes time.
  CounterLines dropped[2];
  const ExclusiveLock lock(mutex_);
  counters_.Advance(period, &dropped[0], &dropped[1]);
  // There is none before period 0, the only one if nothing is forgotten.
  const auto is_older = [&](int64_t i) {
    return counts[items[i].position] < 0 && period > 0;
  };
  int64_t older = 0;
  for (int64_t i = 0; i < n; ++i) older += is_older(i);
  counters_.Reserve(n - older, older);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t hash = TableHash(items[i].sign);
    if (rows_.Find(items[i].sign, hash) != kNoRow) continue;
    const int count = std::min(std::abs(counts[items[i].position]), most);
    counters_.Set(hash, static_cast<uint8_t>(count),
                  is_older(i) ? period - 1 : period);
  }
}

void Stripe::ClearCounters() {
  AdmissionCounters counters(static_cast<double>(number_) / kStripes);
  const ExclusiveLock lock(mutex_);
  std::swap(counters_, counters);
}

}  // namespace tf_ext
