// Update rules: what a push does to a row.
//
// All formulas are those of the Keras optimizer of the same name, applied
// lazily: a row that is not pushed does not change. `gradients` of a sign are
// summed before they come here, so a row is updated once a push.
//
// Hyperparameters come with each push as doubles, in this order:
//   sgd               learning_rate, weight_decay
//   momentum          learning_rate, weight_decay, momentum, nesterov (0 or 1)
//   adagrad           learning_rate, weight_decay, epsilon
//   row_wise_adagrad  learning_rate, weight_decay, epsilon
//   adam              learning_rate, weight_decay, beta_1, beta_2, epsilon
//   ftrl              learning_rate, weight_decay, learning_rate_power,
//                     l1_regularization_strength, l2_regularization_strength,
//                     l2_shrinkage_regularization_strength, beta
//   rmsprop           learning_rate, weight_decay, rho, momentum, epsilon
//   none              Check refuses every push: the table is not for training
// weight_decay 0 is none; otherwise w -= w * weight_decay * learning_rate
// before the rule, as Keras does, on pushed rows only.
#ifndef TF_EXT_CC_CORE_UPDATE_RULE_H_
#define TF_EXT_CC_CORE_UPDATE_RULE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/config.h"
#include "cc/core/row_layout.h"
#include "cc/core/status.h"

namespace tf_ext {

// Plain data that the compiled loops share: update_args.h.
struct UpdateArgs;
struct UpdateLoops;

class UpdateRule {
 public:
  UpdateRule(const TableConfig& config, const RowLayout& layout);
  ~UpdateRule();

  // Number and range of the hyperparameters, finite, step >= 0; an error names
  // the hyperparameter, what was found and what is allowed.
  Status Check(const double* hyperparameters, int64_t count,
               int64_t step) const;

  // A push with these hyperparameters. `step` counts from 1 (it is only used
  // by adam with bias_correction "global"; 0 is taken as 1).
  class Push {
   public:
    // Updates rows[i] with the gradient gradients + gradient_index[i] * dim,
    // for i in [0, count). Rows are distinct and locked by the caller.
    void Update(uint8_t* const* rows, const float* gradients,
                const int64_t* gradient_index, int64_t count) const;

   private:
    friend class UpdateRule;
    std::shared_ptr<const UpdateArgs> args_;
    void (*update_)(const UpdateArgs& args, uint8_t* const* rows,
                    const float* gradients, const int64_t* gradient_index,
                    int64_t count) = nullptr;
  };
  Push Prepare(const double* hyperparameters, int64_t count,
               int64_t step) const;

  // Names of the hyperparameters, in order.
  static const std::vector<const char*>& HyperparameterNames(RuleKind kind);

 private:
  const RuleConfig config_;
  const std::unique_ptr<const UpdateArgs> fields_;  // dim and offsets
  const UpdateLoops& loops_;                        // picked for this CPU once
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_UPDATE_RULE_H_
