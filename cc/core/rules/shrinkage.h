// SPDX-License-Identifier: Apache-2.0
// The l2 and l1 of a table, which shrink all of its rows in each step:
//
//   |w| <- max((1 - rate * l2) |w| - rate * l1, 0)
//
// before the rule updates the rows of the batch. A row is shrunk when it is
// read or pushed: steps in which it was absent are one step, because with
// c = l1 / l2 each of them is |w| + c <- (1 - rate * l2) (|w| + c). So a row
// holds how far it has been shrunk, on a clock of the table that advances by
// -log2(1 - rate * l2), or, without l2, by rate * l1.
//
// The clock is an integer, so that its value does not depend on the order in
// which a shard receives steps. All is computed with +, -, * and / in a fixed
// order: every machine has the same bits.
#ifndef TF_EXT_CC_CORE_RULES_SHRINKAGE_H_
#define TF_EXT_CC_CORE_RULES_SHRINKAGE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "cc/core/rules/field_type.h"

namespace tf_ext {

// What a row has before it has been pushed: it keeps its initial weights.
inline constexpr int64_t kNotShrunk = -1;

class Shrinkage {
 public:
  // Where the clock ends: nothing is left of any row then.
  static constexpr int64_t kLast = int64_t{1} << 62;
  // The most that l1 may be of an l2 above 0. A step of the clock is rounded to
  // an error of 2^-48, and so what l1 takes from a weight to l1 / l2 times
  // that: at most 2.5e-11 in a step.
  static constexpr double kMostL1OfL2 = 10000;
  // Rows whose factors are computed together, in vectors of so many.
  static constexpr int kMostRows = 24;
  static constexpr int kLanes = 8;
  static_assert(kMostRows % kLanes == 0, "whole vectors are written");

  // l2, l1: finite and at least 0, not both 0, as kMostL1OfL2 says. field:
  // where rows hold how far they have been shrunk, in bytes from their start.
  Shrinkage(double l2, double l1, int64_t dim, int64_t field);

  double l2() const { return l2_; }
  int64_t now() const { return now_.load(std::memory_order_relaxed); }
  // now: from 0 to kLast.
  void SetNow(int64_t now) { now_ = now; }
  // Advances the clock by a step, and returns it. learning_rate * l2 is less
  // than 1.
  int64_t Advance(double learning_rate);

  int64_t Get(const uint8_t* row) const {
    int64_t shrunk;
    std::memcpy(&shrunk, row + field_, sizeof(shrunk));
    return shrunk;
  }
  // Records that rows have been shrunk up to `now`, or further.
  void Record(uint8_t* const* rows, int64_t now, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t shrunk = std::max(Get(rows[i]), now);
      std::memcpy(rows[i] + field_, &shrunk, sizeof(shrunk));
    }
  }

  // Reads the weights of `count` rows at from(i), and writes them, shrunk up to
  // `now`, to to(i), which may be the same place.
  template <typename From, typename To>
  void Shrink(const uint8_t* const* rows, int64_t now, int64_t count,
              const From& from, const To& to) const {
    ShrinkBlocks(rows, now, count, from, to, [](int64_t, int64_t) {});
  }
  // The same, and Record.
  template <typename From, typename To>
  void ShrinkAndRecord(uint8_t* const* rows, int64_t now, int64_t count,
                       const From& from, const To& to) const {
    ShrinkBlocks(rows, now, count, from, to, [=](int64_t i, int64_t reached) {
      std::memcpy(rows[i] + field_, &reached, sizeof(reached));
    });
  }
  // The same for weights that are stored in `type`, `stride` bytes apart, and
  // may be unaligned: they are rounded to the nearest value. May throw
  // std::bad_alloc.
  void ShrinkStored(const uint8_t* const* rows, int64_t now, int64_t count,
                    FieldType type, uint8_t* weights, int64_t stride) const;

 private:
  friend struct ShrinkLoops;

  // fields: where rows hold how far they have been shrunk. clocks: receives how
  // far they are then. Both are read or written up to a multiple of kLanes.
  using ShrinkFn = void (*)(const Shrinkage& shrinkage,
                            const uint8_t* const* fields, int64_t now,
                            int count, int64_t* clocks,
                            const float* const* from, float* const* to);

  // reached(i, clock): what is there to record of a row.
  template <typename From, typename To, typename Reached>
  void ShrinkBlocks(const uint8_t* const* rows, int64_t now, int64_t count,
                    const From& from, const To& to,
                    const Reached& reached) const {
    const float* sources[kMostRows];
    float* targets[kMostRows];
    const uint8_t* fields[kMostRows];
    int64_t clocks[kMostRows];
    for (int64_t begin = 0; begin < count; begin += kMostRows) {
      const int n =
          static_cast<int>(std::min<int64_t>(kMostRows, count - begin));
      for (int i = 0; i < n; ++i) {
        sources[i] = from(begin + i);
        targets[i] = to(begin + i);
        fields[i] = rows[begin + i] + field_;
      }
      // Whole vectors are read.
      for (int i = n; i % kLanes != 0; ++i) fields[i] = fields[n - 1];
      shrink_(*this, fields, now, n, clocks, sources, targets);
      for (int i = 0; i < n; ++i) reached(begin + i, clocks[i]);
    }
  }

  const double l2_;
  const double l1_;
  const int64_t dim_;
  const int64_t field_;
  const ShrinkFn shrink_;  // picked for this CPU once
  std::atomic<int64_t> now_{0};
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_SHRINKAGE_H_
