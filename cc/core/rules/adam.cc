// SPDX-License-Identifier: Apache-2.0
// Adam (Kingma and Ba, 2014). The lazy one does not touch absent rows, and its
// bias correction counts the updates of each row, or takes the step that is
// sent with the push. The dense one is that of a matrix: see absent_history.h.
#include <cmath>

#include "cc/core/rules/absent_history.h"
#include "cc/core/rules/adam_powers.h"
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct AdamArgs : RowArgs {
  AdamArgs(const PushInput& push, const AdamMoments& moments)
      : RowArgs(push),
        m(push.Offset("m")),
        v(push.Offset("v")),
        one_minus_beta_1(static_cast<float>(1 - moments.beta_1)),
        one_minus_beta_2(static_cast<float>(1 - moments.beta_2)),
        epsilon(static_cast<float>(moments.epsilon)) {}

  int64_t m;
  int64_t v;
  int64_t step = -1;  // -1: rows have none, and alpha is that of all
  float one_minus_beta_1;
  float one_minus_beta_2;
  float epsilon;

  // alpha = learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) is the same for
  // all rows, or comes from each row's own t and `powers`.
  float alpha = 0;
  double exact_learning_rate = 0;
  const AdamPowers* powers = nullptr;
};

// Counts the update in the row, and the step size that is due to its count.
TF_EXT_INLINE float AdamAlpha(const AdamArgs& args, uint8_t* slots) {
  if (args.step < 0) return args.alpha;
  int32_t* step = reinterpret_cast<int32_t*>(slots + args.step);
  const int32_t before = *step < 0 ? 0 : *step;
  const int32_t t = before == INT32_MAX ? before : before + 1;
  *step = t;
  const double power_1 =
      AdamPowers::Power(args.powers->beta_1, static_cast<uint32_t>(t));
  const double power_2 =
      AdamPowers::Power(args.powers->beta_2, static_cast<uint32_t>(t));
  return static_cast<float>(args.exact_learning_rate *
                            __builtin_sqrt(1.0 - power_2) / (1.0 - power_1));
}

struct Adam {
  using Args = AdamArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    const float alpha = AdamAlpha(args, row.slots);
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict m = Floats(row.slots, args.m);
    float* __restrict v = Floats(row.slots, args.v);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float next_m = m[j] + (g[j] - m[j]) * args.one_minus_beta_1;
      const float next_v = v[j] + (g[j] * g[j] - v[j]) * args.one_minus_beta_2;
      m[j] = next_m;
      v[j] = next_v;
      w[j] = Decayed(args, w[j]) -
             Step(next_m * alpha, Sqrt(next_v) + args.epsilon);
    }
  }
};

// What the args of one push point at lives as long as they do.
struct ArgsAndPowers {
  AdamArgs args;
  AdamPowers powers;
};

bool CountsByRow(const RuleConfig& config) {
  return config.Get("bias_correction") != 0;
}

std::vector<Slot> Slots(const RuleConfig& config, int64_t dim) {
  std::vector<Slot> slots = {{"m", FieldType::kFloat32, dim, 0},
                             {"v", FieldType::kFloat32, dim, 0}};
  if (CountsByRow(config)) slots.push_back({"step", FieldType::kInt32, 1, 0});
  return slots;
}

AdamMoments MomentsOf(const PushInput& push) {
  return {push.Number("beta_1"), push.Number("beta_2"), push.Number("epsilon")};
}

// With the step size of all rows.
PreparedPush PreparedForAll(const PushInput& push, const AdamMoments& moments) {
  AdamArgs args(push, moments);
  args.alpha = static_cast<float>(AdamStepSize(
      push.Number("learning_rate"), moments.beta_1, moments.beta_2, push.step));
  return Prepared<Adam>(push, args);
}

PreparedPush Prepare(const PushInput& push) {
  const AdamMoments moments = MomentsOf(push);
  if (!CountsByRow(push.config)) return PreparedForAll(push, moments);
  AdamArgs args(push, moments);
  args.step = push.Offset("step");
  args.exact_learning_rate = push.Number("learning_rate");
  const auto owner = std::make_shared<ArgsAndPowers>(
      ArgsAndPowers{args, {moments.beta_1, moments.beta_2}});
  owner->args.powers = &owner->powers;
  return {std::shared_ptr<const void>(owner, &owner->args),
          UpdateOf<Adam>(push)};
}

// What decides how absent rows move cannot change from push to push.
AdamMoments DenseMoments(const RuleConfig& config) {
  return {config.Number("beta_1"), config.Number("beta_2"),
          config.Number("epsilon"), CountsByRow(config)};
}

std::vector<Slot> DenseSlots(const RuleConfig&, int64_t dim) {
  return {{"m", FieldType::kFloat32, dim, 0},
          {"v", FieldType::kFloat32, dim, 0}};
}

Status CheckDense(const RuleConfig& config) {
  return AbsentWeights::Check(DenseMoments(config));
}

PreparedPush PrepareDense(const PushInput& push) {
  return PreparedForAll(push, DenseMoments(push.config));
}

}  // namespace

const RuleSpec& AdamRule() {
  static const RuleSpec spec = {"adam",
                                {{"bias_correction", 1, "global", "row"}},
                                {kLearningRate,
                                 kWeightDecay,
                                 {"beta_1", kBelowOne, 0.9},
                                 {"beta_2", kBelowOne, 0.999},
                                 {"epsilon", kNotNegative, 1e-7}},
                                Slots,
                                nullptr,
                                Prepare};
  return spec;
}

const RuleSpec& DenseAdamRule() {
  static const RuleSpec spec = [] {
    RuleSpec dense = {"dense_adam",
                      {{"bias_correction", 1, "global", "row"},
                       {"beta_1", 0.9, nullptr, nullptr, &kBelowOne},
                       {"beta_2", 0.999, nullptr, nullptr, &kBelowOne},
                       {"epsilon", 1e-7, nullptr, nullptr, &kNotNegative}},
                      {kLearningRate, {"weight_decay", kZero, 0}},
                      DenseSlots,
                      nullptr,
                      PrepareDense};
    dense.check_config = CheckDense;
    dense.absent = DenseMoments;
    return dense;
  }();
  return spec;
}

}  // namespace tf_ext
