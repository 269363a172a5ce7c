// SPDX-License-Identifier: Apache-2.0
// Keeps what a push computes finite.
//
// Finite gradients and rows can give values beyond float32: huge gradients, or
// huge learning rates. Infinity would stay in its row for ever, and become NaN
// in the next push. So such a value becomes the largest of its sign; one that
// is NaN, of which nothing is known, becomes 0. Tables count them.
#ifndef TF_EXT_CC_CORE_RULES_FINITE_ROWS_H_
#define TF_EXT_CC_CORE_RULES_FINITE_ROWS_H_

#include <cstdint>
#include <vector>

#include "cc/core/support/cpu.h"

namespace tf_ext {

// The floats of rows that a rule computes.
class FiniteRows {
 public:
  // The values [offset, offset + 4 * count) of a row's weights or slots.
  // narrow: they are rounded later, where infinity is limited and counted.
  void Add(bool of_slots, int64_t offset, int64_t count, bool narrow);

  // Of rows whose weights and slots are at weights[i] and slots[i]. Returns how
  // many values were not finite, but for infinity in narrow ones.
  int64_t Limit(uint8_t* const* weights, uint8_t* const* slots,
                int64_t count) const;

 private:
  struct Range {
    bool of_slots;
    int64_t offset;
    int64_t count;
    bool narrow;
  };

  std::vector<Range> ranges_;
  const SimdLevel simd_ = CurrentSimdLevel();
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_FINITE_ROWS_H_
