// SPDX-License-Identifier: Apache-2.0
// Adagrad (Duchi et al., 2011).
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct AdagradArgs : RowArgs {
  explicit AdagradArgs(const PushInput& push)
      : RowArgs(push),
        accumulator(push.Offset("accumulator")),
        epsilon(push.Float("epsilon")) {}

  int64_t accumulator;
  float epsilon;
};

struct Adagrad {
  using Args = AdagradArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict accumulator = Floats(row.slots, args.accumulator);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float sum = accumulator[j] + g[j] * g[j];
      accumulator[j] = sum;
      w[j] = Decayed(args, w[j]) -
             Step(args.learning_rate * g[j], Sqrt(sum + args.epsilon));
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& config, int64_t dim) {
  return {{"accumulator", FieldType::kFloat32, dim,
           config.Get("initial_accumulator_value")}};
}

PreparedPush Prepare(const PushInput& push) {
  return Prepared<Adagrad>(push, AdagradArgs(push));
}

}  // namespace

const RuleSpec& AdagradRule() {
  static const RuleSpec spec = {
      "adagrad",
      {{"initial_accumulator_value", 0.1}},
      {kLearningRate, kWeightDecay, {"epsilon", kNotNegative, 1e-7}},
      Slots,
      nullptr,
      Prepare};
  return spec;
}

}  // namespace tf_ext
