#include "cc/core/rules/update_rule.h"

#include <string>
#include <utility>

namespace tf_ext {
namespace {

std::string NamesText(const RuleSpec& spec) {
  std::string text;
  for (const Hyperparameter& hyperparameter : spec.hyperparameters) {
    if (!text.empty()) text += ", ";
    text += hyperparameter.name;
  }
  return text;
}

}  // namespace

UpdateRule::UpdateRule(const RuleConfig& config, int64_t dim,
                       std::vector<FieldOffset> offsets)
    : config_(config),
      dim_(dim),
      offsets_(std::move(offsets)),
      simd_(CurrentSimdLevel()) {}

PushInput UpdateRule::Input(const double* hyperparameters, int64_t step) const {
  return {config_, offsets_, dim_, simd_, hyperparameters, step};
}

Status UpdateRule::Check(const double* hyperparameters, int64_t count,
                         int64_t step) const {
  const RuleSpec& spec = config_.spec();
  if (spec.prepare == nullptr) return Status::InvalidArgument(spec.refusal);
  const std::string rule = spec.name;
  const int64_t expected = static_cast<int64_t>(spec.hyperparameters.size());
  if (count != expected) {
    return Status::InvalidArgument(
        "hyperparameters of " + rule + " must be " + std::to_string(expected) +
        " numbers (" + NamesText(spec) + "), found " + std::to_string(count));
  }
  for (int64_t i = 0; i < count; ++i) {
    const Hyperparameter& hyperparameter = spec.hyperparameters[i];
    if (hyperparameter.range.Holds(hyperparameters[i])) continue;
    return Status::InvalidArgument(std::string(hyperparameter.name) + " of " +
                                   rule + " must be " +
                                   hyperparameter.range.allowed + ", found " +
                                   NumberText(hyperparameters[i]));
  }
  if (spec.check != nullptr) {
    const Status status = spec.check(Input(hyperparameters, step));
    if (!status.ok()) return status;
  }
  if (step < 0) {
    return Status::InvalidArgument("step must be 0 or more, found " +
                                   std::to_string(step));
  }
  return Status::Ok();
}

UpdateRule::Push UpdateRule::Prepare(const double* hyperparameters,
                                     int64_t /*count*/, int64_t step) const {
  Push push;
  push.prepared_ = config_.spec().prepare(Input(hyperparameters, step));
  return push;
}

}  // namespace tf_ext
