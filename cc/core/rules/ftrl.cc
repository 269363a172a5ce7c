// SPDX-License-Identifier: Apache-2.0
// FTRL-Proximal (McMahan et al., 2013).
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct FtrlArgs : RowArgs {
  explicit FtrlArgs(const PushInput& push)
      : RowArgs(push),
        accumulator(push.Offset("accumulator")),
        linear(push.Offset("linear")),
        minus_learning_rate_power(
            static_cast<float>(-push.Number("learning_rate_power"))),
        l1(push.Float("l1_regularization_strength")),
        two_l2(2.0f * (push.Float("l2_regularization_strength") +
                       push.Float("beta") / (2.0f * learning_rate))),
        two_l2_shrinkage(static_cast<float>(
            2 * push.Number("l2_shrinkage_regularization_strength"))) {}

  int64_t accumulator;
  int64_t linear;
  float minus_learning_rate_power;
  float l1;
  float two_l2;  // beta is in it
  float two_l2_shrinkage;
};

// kSqrt: learning_rate_power is -0.5.
template <bool kSqrt>
struct Ftrl {
  using Args = FtrlArgs;

  static TF_EXT_INLINE float Power(const Args& args, float x) {
    return kSqrt ? Sqrt(x) : __builtin_powf(x, args.minus_learning_rate_power);
  }

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict accumulator = Floats(row.slots, args.accumulator);
    float* __restrict linear = Floats(row.slots, args.linear);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float before = Decayed(args, w[j]);
      const float sum = accumulator[j] + g[j] * g[j];
      const float power = Power(args, sum);
      const float sigma =
          (power - Power(args, accumulator[j])) / args.learning_rate;
      const float z =
          linear[j] + (g[j] + args.two_l2_shrinkage * before - sigma * before);
      const float above = z > -args.l1 ? z : -args.l1;
      const float clipped = above < args.l1 ? above : args.l1;
      accumulator[j] = sum;
      linear[j] = z;
      w[j] = Step(clipped - z, power / args.learning_rate + args.two_l2);
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& config, int64_t dim) {
  return {{"accumulator", FieldType::kFloat32, dim,
           config.Get("initial_accumulator_value")},
          {"linear", FieldType::kFloat32, dim, 0}};
}

PreparedPush Prepare(const PushInput& push) {
  const FtrlArgs args(push);
  if (push.Number("learning_rate_power") == -0.5) {
    return Prepared<Ftrl<true>>(push, args);
  }
  return Prepared<Ftrl<false>>(push, args);
}

}  // namespace

const RuleSpec& FtrlRule() {
  static const RuleSpec spec = {
      "ftrl",
      {{"initial_accumulator_value", 0.1}},
      {{kLearningRate.name, kDivisor, kLearningRate.start},
       kWeightDecay,
       {"learning_rate_power", kNotPositive, -0.5},
       {"l1_regularization_strength", kNotNegative, 0},
       {"l2_regularization_strength", kNotNegative, 0},
       {"l2_shrinkage_regularization_strength", kNotNegative, 0},
       {"beta", kNotNegative, 0}},
      Slots,
      nullptr,
      Prepare};
  return spec;
}

}  // namespace tf_ext
