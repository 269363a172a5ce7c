// SPDX-License-Identifier: Apache-2.0
// Walks over the rows of a stripe by row number, in short lock holds.
#ifndef TF_EXT_CC_CORE_TABLE_STRIPE_SWEEP_H_
#define TF_EXT_CC_CORE_TABLE_STRIPE_SWEEP_H_

#include <cstdint>

#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"

namespace tf_ext {

// Rows that a walk examines per lock hold. Few enough that no other thread
// waits longer than a pull of 65,536 rows takes.
inline constexpr uint32_t kSweptAtOnce = 4096;

template <typename Visit>
uint32_t Stripe::Walk(uint32_t row, uint32_t limit, const Visit& visit) const {
  const SharedLock lock(mutex_);
  const uint64_t end = uint64_t{row} + limit;
  for (uint64_t first = row; first < end; first += 64) {
    if (first >= rows_.slabs.used()) return kNoRow;
    uint64_t bits = rows_.slabs.LiveBits(first / 64);
    for (; bits != 0; bits &= bits - 1) {
      const uint8_t* const at =
          rows_.slabs.At(static_cast<uint32_t>(first + __builtin_ctzll(bits)));
      visit(at, RowSlabs::LoadSign(at));
    }
  }
  return end < rows_.slabs.used() ? static_cast<uint32_t>(end) : kNoRow;
}

template <typename Visit>
uint32_t Stripe::Sweep(uint32_t row, uint32_t limit, const Visit& visit) {
  const ExclusiveLock lock(mutex_);
  const uint64_t end = uint64_t{row} + limit;
  for (uint64_t first = row; first < end && first < rows_.slabs.used();
       first += 64) {
    uint64_t bits = rows_.slabs.LiveBits(first / 64);
    // Before any of them is erased, because it may throw.
    if (marks_ != nullptr) marks_->ReserveErased(__builtin_popcountll(bits));
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t number =
          static_cast<uint32_t>(first + __builtin_ctzll(bits));
      uint8_t* const at = rows_.slabs.At(number);
      const int64_t sign = RowSlabs::LoadSign(at);
      const Swept swept = visit(at, sign);
      if (swept == Swept::kErase) {
        if (marks_ != nullptr) marks_->Erase(number, sign);
        EraseRow(number);
      } else if (swept == Swept::kChanged && marks_ != nullptr) {
        marks_->Touch(&number, 1);
      }
    }
  }
  NoteFreeRows();
  return end < rows_.slabs.used() ? static_cast<uint32_t>(end) : kNoRow;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_STRIPE_SWEEP_H_
