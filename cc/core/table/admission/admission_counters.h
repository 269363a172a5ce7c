// SPDX-License-Identifier: Apache-2.0
// How often each sign that has no row was pushed, for admission by count.
//
// Counters are kept in two generations: those that were counted in the current
// period of steps, and those that were last counted in the one before. A sign
// that is counted moves to the current generation. When a period begins, the
// previous generation is dropped, and the current one becomes the previous one.
// So a sign that is not pushed for one to two periods loses its counter, which
// depends on steps alone, not on the number of threads, stripes or shards.
//
// Generations, rather than the period of each counter in one table: its memory
// is returned at once, without a walk over the counters for which a stripe
// would have to be locked. The price is a second cache line to find that a sign
// has no counter, and only if counters are to be forgotten.
//
// Steps that go backwards, as with asynchronous parameter servers, count in the
// current period.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_ADMISSION_COUNTERS_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_ADMISSION_COUNTERS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cc/core/table/admission/counter_lines.h"

namespace tf_ext {

class AdmissionCounters {
 public:
  // `phase`: see CounterLines.
  explicit AdmissionCounters(double phase)
      : current_(phase), previous_(phase) {}

  bool empty() const { return current_.size() == 0 && previous_.size() == 0; }

  // Begins a period if it is a later one. What is dropped is swapped with
  // `*dropped` and `*dropped_too`, which are empty, so that the caller can free
  // it after unlocking.
  void Advance(int64_t period, CounterLines* dropped,
               CounterLines* dropped_too) {
    if (period <= period_) return;
    previous_.swap(*dropped);
    previous_.swap(current_);
    if (period - period_ > 1) previous_.swap(*dropped_too);
    period_ = period;
  }

  void Prefetch(uint64_t hash) const {
    current_.Prefetch(hash);
    previous_.Prefetch(hash);
  }

  // Adds occurrences to the counter of a sign unless its count then reaches
  // `n`. Returns whether it does. Throws std::bad_alloc.
  bool Reaches(uint64_t hash, int64_t occurrences, int n) {
    uint8_t* count = current_.Find(hash);
    const bool older = count == nullptr && previous_.size() > 0;
    if (older) count = previous_.Find(hash);
    const int64_t before = count == nullptr ? 0 : *count;
    if (occurrences >= n - before) return true;
    const uint8_t after = static_cast<uint8_t>(before + occurrences);
    if (count == nullptr) {
      current_.Insert(hash, after);
    } else if (older) {
      current_.Insert(hash, after);
      previous_.Remove(hash);
    } else {
      *count = after;
    }
    return false;
  }

  void Remove(uint64_t hash) {
    if (current_.Remove(hash) == 0) previous_.Remove(hash);
  }

  // Makes room for more counters of the current and the previous period.
  void Reserve(int64_t current, int64_t previous) {
    current_.Reserve(current);
    previous_.Reserve(previous);
  }

  // Sets the counter of a sign that was last counted in `period`, unless it
  // would be forgotten by now. Throws std::bad_alloc.
  void Set(uint64_t hash, uint8_t count, int64_t period) {
    Remove(hash);
    if (period >= period_) {
      current_.Insert(hash, count);
    } else if (period_ - period == 1) {
      previous_.Insert(hash, count);
    }
  }

  // Calls visit(hash, count, older) for the counters with keys (see
  // CounterLines) from `key`, of about `lines` lines, that are not forgotten in
  // `period`. `older`: whether a counter is of the period before. Returns the
  // key to continue with, or kNoKey at the end.
  static constexpr uint64_t kNoKey = uint64_t{1} << 32;
  template <typename Visit>
  uint64_t Walk(uint64_t key, uint64_t lines, int64_t period,
                const Visit& visit) const {
    const uint64_t keys =
        std::min(current_.KeysOf(lines), previous_.KeysOf(lines));
    const uint64_t next = std::min(kNoKey, key + keys);
    const auto walk = [&](const CounterLines& generation, int64_t its_period) {
      if (period - its_period > 1) return;
      const bool older = its_period < period;
      generation.ForEachOf(
          static_cast<uint32_t>(key), static_cast<uint32_t>(next - 1),
          [&](uint64_t hash, uint8_t count) { visit(hash, count, older); });
    };
    walk(current_, period_);
    walk(previous_, period_ - 1);
    return next;
  }

  // Frees memory if there are few counters. Throws std::bad_alloc.
  void Shrink() {
    current_.Shrink();
    previous_.Shrink();
  }

  // The number of counters in `period`, which may be later than that of the
  // last Advance.
  int64_t Size(int64_t period) const {
    return (period - period_ <= 1 ? current_.size() : 0) +
           (period <= period_ ? previous_.size() : 0);
  }
  int64_t bytes() const { return current_.bytes() + previous_.bytes(); }

 private:
  CounterLines current_;
  CounterLines previous_;
  int64_t period_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_ADMISSION_COUNTERS_H_
