#include "cc/core/row_layout.h"

namespace tf_ext {
namespace {

struct Slot {
  const char* name;
  FieldType type;
  int64_t count;
  double start;
};

std::vector<Slot> SlotsOf(const TableConfig& config) {
  constexpr FieldType kFloat = FieldType::kFloat32;
  const int64_t dim = config.dim;
  const RuleConfig& rule = config.rule;
  const double accumulator = rule.initial_accumulator_value;
  switch (rule.kind) {
    case RuleKind::kSgd:
    case RuleKind::kNone:
      return {};
    case RuleKind::kMomentum:
      return {{"momentum", kFloat, dim, 0}};
    case RuleKind::kAdagrad:
      return {{"accumulator", kFloat, dim, accumulator}};
    case RuleKind::kRowWiseAdagrad:
      return {{"accumulator", kFloat, 1, accumulator}};
    case RuleKind::kAdam: {
      std::vector<Slot> slots = {{"m", kFloat, dim, 0}, {"v", kFloat, dim, 0}};
      if (rule.bias_correction_by_row) {
        slots.push_back({"step", FieldType::kInt32, 1, 0});
      }
      return slots;
    }
    case RuleKind::kFtrl:
      return {{"accumulator", kFloat, dim, accumulator},
              {"linear", kFloat, dim, 0}};
    case RuleKind::kRmsprop: {
      std::vector<Slot> slots = {{"velocity", kFloat, dim, 0}};
      if (rule.momentum_field) slots.push_back({"momentum", kFloat, dim, 0});
      if (rule.centered) slots.push_back({"average_gradient", kFloat, dim, 0});
      return slots;
    }
  }
  return {};
}

}  // namespace

RowLayout::RowLayout(const TableConfig& config) {
  int64_t offset = kWeightsOffset;
  const auto add = [this, &offset](const Slot& slot) {
    fields_.push_back({slot.name, slot.type, slot.count, offset, slot.start});
    offset += fields_.back().bytes();
  };
  add({"weights", FieldType::kFloat32, config.dim, 0});
  for (const Slot& slot : SlotsOf(config)) add(slot);
  raw_bytes_ = offset;
  stride_ = (raw_bytes_ + 7) / 8 * 8;
}

const Field* RowLayout::Find(const std::string& name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

}  // namespace tf_ext
