// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/row_layout.h"

#include "cc/core/rules/shrinkage.h"
#include "cc/core/table/row_time.h"

namespace tf_ext {
RowLayout::RowLayout(const TableConfig& config) {
  int64_t offset = kWeightsOffset;
  const auto add = [this, &offset](const Slot& slot) {
    fields_.push_back({slot.name, slot.type, slot.count, offset, slot.start});
    offset += fields_.back().bytes();
  };
  add({"weights", config.dtype, config.dim, 0});
  if (config.shrinks()) {
    // Both halves of kNotShrunk.
    add({kShrunkField, FieldType::kInt32, 2, kNotShrunk});
  }
  if (config.moves_absent_rows()) {
    add({kCaughtUpField, FieldType::kInt32, 1, 0});
  }
  first_slot_ = fields_.size();
  for (Slot slot : config.rule.Slots(config.dim)) {
    if (slot.type == FieldType::kFloat32) slot.type = config.slot_dtype;
    add(slot);
  }
  end_of_slots_ = fields_.size();
  if (config.last_seen != LastSeen::kNone) {
    add({kLastSeenField, FieldType::kInt32, 1, kNeverSeen});
  }
  for (int i = 0; i < config.statistics; ++i) {
    add({kStatisticsFields[i], FieldType::kFloat32, 1, 0});
  }
  raw_bytes_ = offset;
  stride_ = (raw_bytes_ + 7) / 8 * 8;
}

const Field* RowLayout::Find(const std::string& name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::optional<NarrowRows> RowLayout::narrow(uint64_t rounding_stream) const {
  constexpr int64_t kComputed = FieldTypeBytes(FieldType::kFloat32);
  const auto is_narrow = [](const Field& field) {
    return FieldTypeBytes(field.type) < kComputed;
  };
  const bool weights = is_narrow(fields_[0]);
  bool slots = false;
  for (size_t f = first_slot_; f < end_of_slots_; ++f) {
    slots |= is_narrow(fields_[f]) || fields_[f].offset % kComputed != 0;
  }
  if (!weights && !slots) return std::nullopt;
  NarrowRows narrow(rounding_stream, weights, slots);
  const auto add = [&narrow](const Field& field) {
    narrow.Add(field.type, field.count, field.offset);
  };
  add(fields_[0]);
  for (size_t f = first_slot_; f < end_of_slots_; ++f) add(fields_[f]);
  return narrow;
}

std::vector<FieldOffset> RowLayout::offsets() const {
  std::vector<FieldOffset> offsets;
  for (const Field& field : fields_) {
    offsets.emplace_back(field.name, field.offset);
  }
  return offsets;
}

}  // namespace tf_ext
