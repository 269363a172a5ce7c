#include "cc/core/table/row_layout.h"

#include "cc/core/table/row_time.h"

namespace tf_ext {
RowLayout::RowLayout(const TableConfig& config) {
  int64_t offset = kWeightsOffset;
  const auto add = [this, &offset](const Slot& slot) {
    fields_.push_back({slot.name, slot.type, slot.count, offset, slot.start});
    offset += fields_.back().bytes();
  };
  add({"weights", FieldType::kFloat32, config.dim, 0});
  for (const Slot& slot : config.rule.Slots(config.dim)) add(slot);
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

std::vector<FieldOffset> RowLayout::offsets() const {
  std::vector<FieldOffset> offsets;
  for (const Field& field : fields_) {
    offsets.emplace_back(field.name, field.offset);
  }
  return offsets;
}

}  // namespace tf_ext
