// SPDX-License-Identifier: Apache-2.0
// Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms"):
// each weight moves by the learning rate, in the direction of the sign of a
// mean of the momentum and the gradient.
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct LionArgs : RowArgs {
  // Keras rounds the betas to float32 before it subtracts them from 1; a sign
  // shows the difference.
  explicit LionArgs(const PushInput& push)
      : RowArgs(push),
        momentum(push.Offset("momentum")),
        beta_1(push.Float("beta_1")),
        beta_2(push.Float("beta_2")),
        one_minus_beta_1(1.0f - beta_1),
        one_minus_beta_2(1.0f - beta_2) {}

  int64_t momentum;
  float beta_1;
  float beta_2;
  float one_minus_beta_1;
  float one_minus_beta_2;
};

struct Lion {
  using Args = LionArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict momentum = Floats(row.slots, args.momentum);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float m = momentum[j];
      const float direction = m * args.beta_1 + g[j] * args.one_minus_beta_1;
      momentum[j] = m * args.beta_2 + g[j] * args.one_minus_beta_2;
      const float up = direction > 0.0f ? args.learning_rate : 0.0f;
      const float down = direction < 0.0f ? args.learning_rate : 0.0f;
      w[j] = Decayed(args, w[j]) - (up - down);
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& /*config*/, int64_t dim) {
  return {{"momentum", FieldType::kFloat32, dim, 0}};
}

PreparedPush Prepare(const PushInput& push) {
  return Prepared<Lion>(push, LionArgs(push));
}

}  // namespace

const RuleSpec& LionRule() {
  static const RuleSpec spec = {"lion",
                                {},
                                {kLearningRate,
                                 kWeightDecay,
                                 {"beta_1", kBelowOne, 0.9},
                                 {"beta_2", kBelowOne, 0.99}},
                                Slots,
                                nullptr,
                                Prepare};
  return spec;
}

}  // namespace tf_ext
