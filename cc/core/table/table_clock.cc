// SPDX-License-Identifier: Apache-2.0
// What happens to rows while they are absent from pushes: up to when they are
// shrunk, and moved, when they are read, and what is saved of that.
#include <algorithm>
#include <new>

#include "cc/core/support/message.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"

namespace tf_ext {

Status Table::SetShrinkageClock(int64_t clock) {
  if (clock < 0 || clock > Shrinkage::kLast) {
    return Invalid("clock must be from 0 to ", Shrinkage::kLast, ", but it is ",
                   clock, ".");
  }
  if (shrinkage_ != nullptr) shrinkage_->SetNow(clock);
  return Status::Ok();
}

Status Table::AbsentState(std::string* state) const {
  state->clear();
  if (absent_ == nullptr) return Status::Ok();
  try {
    *state = absent_->history().State();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  return Status::Ok();
}

Status Table::SetAbsentState(const std::string& state) {
  if (absent_ == nullptr) return Status::Ok();
  try {
    return absent_->history().SetState(state);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

std::shared_ptr<const AbsentView> Table::AbsentNowFor(
    const std::vector<BoundField>& fields) const {
  if (absent_ == nullptr) return nullptr;
  const int64_t caught_up = absent_->fields().caught_up;
  const bool stored =
      std::any_of(fields.begin(), fields.end(), [=](const BoundField& bound) {
        return bound.offset <= caught_up &&
               caught_up < bound.offset + bound.bytes;
      });
  return stored ? nullptr : absent_->history().view();
}

void Table::BindShrunk(const int64_t* now,
                       std::vector<BoundField>* fields) const {
  if (shrinkage_ == nullptr) return;
  const auto has = [fields](int64_t offset) {
    return std::any_of(fields->begin(), fields->end(), [=](const auto& bound) {
      return bound.offset <= offset && offset < bound.offset + bound.bytes;
    });
  };
  const Field& shrunk = *layout_.Find(kShrunkField);
  if (!has(RowLayout::kWeightsOffset) || has(shrunk.offset)) return;
  fields->push_back({shrunk.offset, shrunk.bytes(),
                     reinterpret_cast<const uint8_t*>(now), /*stride=*/0});
}

}  // namespace tf_ext
