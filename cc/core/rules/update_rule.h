// SPDX-License-Identifier: Apache-2.0
// The update rule of a table: what a push does to its rows.
//
// All formulas are those of the Keras optimizer of the same name, applied
// lazily: a row that is not pushed does not change, except by dense_adam
// (absent_history.h) and by what shrinks rows. `gradients` of a sign are
// summed before they come here, so a row is updated once a push.
//
// Hyperparameters come with each push as doubles, in the order of the rule's
// spec (rule_spec.h).
#ifndef TF_EXT_CC_CORE_RULES_UPDATE_RULE_H_
#define TF_EXT_CC_CORE_RULES_UPDATE_RULE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/core/rules/absent_rows.h"
#include "cc/core/rules/finite_rows.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/rule_spec.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/support/cpu.h"
#include "cc/core/support/status.h"

namespace tf_ext {

class UpdateRule {
 public:
  // offsets: of all fields of a row, "weights" and the slots of `config`.
  // narrow: for rows of which some fields are narrow.
  UpdateRule(const RuleConfig& config, int64_t dim,
             std::vector<FieldOffset> offsets,
             std::optional<NarrowRows> narrow = std::nullopt);

  // Number and range of the hyperparameters, finite, step >= 0; an error names
  // the hyperparameter, what was found and what is allowed.
  Status Check(const double* hyperparameters, int64_t count,
               int64_t step) const;

  // A push with these hyperparameters. `step` counts from 1 (it is only used
  // by adam with bias_correction "global"; 0 is taken as 1).
  class Push {
   public:
    // Updates rows[i] with the gradient gradients + gradient_index[i] * dim,
    // for i in [0, count). Rows are distinct and locked by the caller. Returns
    // how many values were limited to the largest that their field can store,
    // or were NaN and became 0.
    int64_t Update(uint8_t* const* rows, const float* gradients,
                   const int64_t* gradient_index, int64_t count) const {
      if (special_)
        return UpdateSpecial(rows, gradients, gradient_index, count);
      prepared_.update(prepared_.args.get(), rows, rows, gradients,
                       gradient_index, count);
      return finite_->Limit(rows, rows, count);
    }

    // Rows are shrunk up to `now` before each update.
    void SetShrinkage(const Shrinkage& shrinkage, int64_t now) {
      special_ = true;
      shrinkage_ = &shrinkage;
      now_ = now;
    }

    // Rows are moved up to `before` before they are shrunk; `now`: the step of
    // this push.
    void SetAbsent(const AbsentRows& absent,
                   std::shared_ptr<const AbsentView> before, int64_t now) {
      special_ = true;
      absent_ = &absent;
      before_ = std::move(before);
      step_ = now;
    }

   private:
    friend class UpdateRule;

    int64_t UpdateSpecial(uint8_t* const* rows, const float* gradients,
                          const int64_t* gradient_index, int64_t count) const;
    int64_t UpdateNarrow(uint8_t* const* rows, const float* gradients,
                         const int64_t* gradient_index, int64_t count) const;
    // What the rule sees of rows.
    void CatchUp(const uint8_t* const* rows, uint8_t* const* weights,
                 uint8_t* const* slots, int64_t count) const;
    // The weights of rows, or copies of them.
    void Shrink(uint8_t* const* rows, uint8_t* const* weights,
                int64_t count) const;

    PreparedPush prepared_;
    const FiniteRows* finite_ = nullptr;
    bool special_ = false;  // narrow, shrunk or moved
    const NarrowRows* narrow_ = nullptr;
    const Shrinkage* shrinkage_ = nullptr;
    int64_t now_ = 0;
    const AbsentRows* absent_ = nullptr;
    std::shared_ptr<const AbsentView> before_;
    int64_t step_ = 0;
    int64_t weights_ = 0;  // as the rule sees them
    uint64_t rounding_key_ = 0;
    int64_t dim_ = 0;
  };
  // `hyperparameters` have passed Check.
  Push Prepare(const double* hyperparameters, int64_t count,
               int64_t step) const;

 private:
  FiniteRows MakeFiniteRows() const;
  PushInput Input(const double* hyperparameters, int64_t step) const;

  const RuleConfig config_;
  const int64_t dim_;
  const std::optional<NarrowRows> narrow_;
  const std::vector<FieldOffset> offsets_;  // as the rule sees them
  const SimdLevel simd_;                    // picked for this CPU once
  const FiniteRows finite_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_UPDATE_RULE_H_
