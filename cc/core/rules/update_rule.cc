// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/update_rule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/core/support/message.h"

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
                       std::vector<FieldOffset> offsets,
                       std::optional<NarrowRows> narrow)
    : config_(config),
      dim_(dim),
      narrow_(std::move(narrow)),
      offsets_(narrow_ ? narrow_->ComputedOffsets(offsets)
                       : std::move(offsets)),
      simd_(CurrentSimdLevel()),
      finite_(MakeFiniteRows()) {}

FiniteRows UpdateRule::MakeFiniteRows() const {
  const PushInput input = Input(nullptr, 0);
  const auto is_narrow = [&](bool of_slots, int64_t offset) {
    if (!narrow_ ||
        !(of_slots ? narrow_->copies_slots() : narrow_->copies_weights())) {
      return false;
    }
    return std::any_of(narrow_->fields().begin(), narrow_->fields().end(),
                       [&](const NarrowedField& field) {
                         return field.computed == offset &&
                                FieldTypeBytes(field.type) != sizeof(float);
                       });
  };
  FiniteRows finite;
  // Without copies, weights and slots are parts of the same rows.
  const bool same = !narrow_;
  const int64_t weights = input.Offset("weights");
  finite.Add(/*of_slots=*/false, weights, dim_, is_narrow(false, weights));
  for (const Slot& slot : config_.Slots(dim_)) {
    if (slot.type != FieldType::kFloat32) continue;
    const int64_t offset = input.Offset(slot.name);
    finite.Add(!same, offset, slot.count, is_narrow(true, offset));
  }
  return finite;
}

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
    return Invalid("hyperparameters of ", rule, " must be ", expected,
                   " numbers (", NamesText(spec), "), found ", count);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Hyperparameter& hyperparameter = spec.hyperparameters[i];
    if (hyperparameter.range.Holds(hyperparameters[i])) continue;
    return Invalid(hyperparameter.name, " of ", rule, " must be ",
                   hyperparameter.range.allowed, ", found ",
                   NumberText(hyperparameters[i]));
  }
  if (spec.check != nullptr) {
    TF_EXT_RETURN_IF_ERROR(spec.check(Input(hyperparameters, step)));
  }
  if (step < 0) {
    return Invalid("step must be 0 or more, found ", step);
  }
  return Status::Ok();
}

UpdateRule::Push UpdateRule::Prepare(const double* hyperparameters,
                                     int64_t /*count*/, int64_t step) const {
  Push push;
  push.finite_ = &finite_;
  const PushInput input = Input(hyperparameters, step);
  push.prepared_ = config_.spec().prepare(input);
  push.weights_ = input.Offset("weights");
  if (narrow_) {
    push.special_ = true;
    push.narrow_ = &*narrow_;
    push.dim_ = dim_;
    push.rounding_key_ = RoundingKey(narrow_->stream(), step);
  }
  return push;
}

int64_t UpdateRule::Push::UpdateSpecial(uint8_t* const* rows,
                                        const float* gradients,
                                        const int64_t* gradient_index,
                                        int64_t count) const {
  int64_t saturated;
  if (narrow_ != nullptr) {
    saturated = UpdateNarrow(rows, gradients, gradient_index, count);
  } else {
    CatchUp(rows, rows, rows, count);
    Shrink(rows, rows, count);
    prepared_.update(prepared_.args.get(), rows, rows, gradients,
                     gradient_index, count);
    saturated = finite_->Limit(rows, rows, count);
  }
  if (absent_ != nullptr) absent_->Record(rows, step_, count);
  return saturated;
}

void UpdateRule::Push::CatchUp(const uint8_t* const* rows,
                               uint8_t* const* weights, uint8_t* const* slots,
                               int64_t count) const {
  if (absent_ == nullptr) return;
  absent_->CatchUp(*before_, rows, weights, slots, count);
}

void UpdateRule::Push::Shrink(uint8_t* const* rows, uint8_t* const* weights,
                              int64_t count) const {
  if (shrinkage_ == nullptr) return;
  const auto at = [&](int64_t i) {
    return reinterpret_cast<float*>(weights[i] + weights_);
  };
  shrinkage_->ShrinkAndRecord(rows, now_, count, at, at);
}

int64_t UpdateRule::Push::UpdateNarrow(uint8_t* const* rows,
                                       const float* gradients,
                                       const int64_t* gradient_index,
                                       int64_t count) const {
  ComputedRows computed(*narrow_);
  int64_t saturated = 0;
  for (int64_t begin = 0; begin < count;) {
    const int n =
        static_cast<int>(std::min<int64_t>(narrow_->capacity(), count - begin));
    // While the rows are copied. Of a longer gradient the hardware fetches the
    // rest, once the start is read.
    const int64_t start = std::min<int64_t>(dim_, 256);
    for (int i = 0; i < n; ++i) {
      const float* const gradient =
          gradients + gradient_index[begin + i] * dim_;
      for (int64_t j = 0; j < start; j += 16) __builtin_prefetch(gradient + j);
    }
    computed.Widen(rows + begin, n);
    CatchUp(rows + begin, computed.weights(), computed.slots(), n);
    Shrink(rows + begin, computed.weights(), n);
    prepared_.update(prepared_.args.get(), computed.weights(), computed.slots(),
                     gradients, gradient_index + begin, n);
    saturated += finite_->Limit(computed.weights(), computed.slots(), n);
    saturated += computed.Narrow(rounding_key_);
    begin += n;
  }
  return saturated;
}

}  // namespace tf_ext
