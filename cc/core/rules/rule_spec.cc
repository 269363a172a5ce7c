// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/rule_spec.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tf_ext {
namespace {

[[noreturn]] void DieOf(const char* what, const std::string& name,
                        const RuleSpec& spec) {
  std::fprintf(stderr, "tf_ext: the update rule %s has no %s %s\n", spec.name,
               what, name.c_str());
  std::abort();
}

size_t KeyIndex(const RuleSpec& spec, const std::string& key) {
  for (size_t i = 0; i < spec.identity.size(); ++i) {
    if (key == spec.identity[i].name) return i;
  }
  DieOf("identity key", key, spec);
}

}  // namespace

bool Range::Holds(double value) const {
  const float as_float = static_cast<float>(value);
  if (!std::isfinite(as_float)) return false;
  if (flag) return value == 0 || value == 1;
  // The float32 is what a rule divides by.
  return (low_allowed ? value >= low : as_float > low) &&
         (high_allowed ? value <= high : value < high);
}

RuleConfig::RuleConfig() : RuleConfig(*AllRules().front()) {}

RuleConfig::RuleConfig(const RuleSpec& spec) : spec_(&spec) {
  for (const IdentityKey& key : spec.identity) {
    identity_.push_back(key.range != nullptr ? key.start
                                             : static_cast<float>(key.start));
  }
}

double RuleConfig::Number(const std::string& key) const {
  return identity_[KeyIndex(*spec_, key)];
}

RuleConfig& RuleConfig::Set(const std::string& key, double value) {
  const size_t i = KeyIndex(*spec_, key);
  identity_[i] =
      spec_->identity[i].range != nullptr ? value : static_cast<float>(value);
  return *this;
}

std::vector<Slot> RuleConfig::Slots(int64_t dim) const {
  if (spec_->slots == nullptr) return {};
  return spec_->slots(*this, dim);
}

double PushInput::Number(const char* name) const {
  const std::vector<Hyperparameter>& all = config.spec().hyperparameters;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::strcmp(name, all[i].name) == 0) return hyperparameters[i];
  }
  DieOf("hyperparameter", name, config.spec());
}

int64_t PushInput::Offset(const char* field) const {
  for (const FieldOffset& each : offsets) {
    if (each.first == field) return each.second;
  }
  DieOf("field", field, config.spec());
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  for (int digits = 1; digits < 17; ++digits) {
    char shorter[32];
    std::snprintf(shorter, sizeof(shorter), "%.*g", digits, value);
    if (std::strtod(shorter, nullptr) == value) return shorter;
  }
  return text;
}

}  // namespace tf_ext
