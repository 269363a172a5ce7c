// SPDX-License-Identifier: Apache-2.0
// Lazy Adam (Kingma and Ba, 2014), whose bias correction counts the updates of
// each row, or takes the step that is sent with the push.
#include <algorithm>
#include <cmath>

#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

// beta_1^t and beta_2^t for every t below 2^32, by the digits of t in base
// 256: beta^t is the product of by_digit[i][digit i of t].
struct AdamPowers {
  double beta_1[4][256];
  double beta_2[4][256];
};

struct AdamArgs : RowArgs {
  explicit AdamArgs(const PushInput& push)
      : RowArgs(push),
        m(push.Offset("m")),
        v(push.Offset("v")),
        one_minus_beta_1(static_cast<float>(1 - push.Number("beta_1"))),
        one_minus_beta_2(static_cast<float>(1 - push.Number("beta_2"))),
        epsilon(push.Float("epsilon")) {}

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

TF_EXT_INLINE double Power(const double (&by_digit)[4][256], uint32_t t) {
  return by_digit[0][t & 255] * by_digit[1][t >> 8 & 255] *
         (by_digit[2][t >> 16 & 255] * by_digit[3][t >> 24]);
}

// Counts the update in the row, and the step size that is due to its count.
TF_EXT_INLINE float AdamAlpha(const AdamArgs& args, uint8_t* slots) {
  if (args.step < 0) return args.alpha;
  int32_t* step = reinterpret_cast<int32_t*>(slots + args.step);
  const int32_t before = *step < 0 ? 0 : *step;
  const int32_t t = before == INT32_MAX ? before : before + 1;
  *step = t;
  const double power_1 = Power(args.powers->beta_1, static_cast<uint32_t>(t));
  const double power_2 = Power(args.powers->beta_2, static_cast<uint32_t>(t));
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

void SetPowers(double base, double (*by_digit)[256]) {
  for (int digit = 0; digit < 4; ++digit) {
    by_digit[digit][0] = 1;
    for (int i = 1; i < 256; ++i) {
      by_digit[digit][i] = by_digit[digit][i - 1] * base;
    }
    base *= by_digit[digit][255];
  }
}

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

PreparedPush Prepare(const PushInput& push) {
  AdamArgs args(push);
  const double rate = push.Number("learning_rate");
  const double beta_1 = push.Number("beta_1");
  const double beta_2 = push.Number("beta_2");
  if (!CountsByRow(push.config)) {
    const double t = static_cast<double>(std::max<int64_t>(push.step, 1));
    args.alpha = static_cast<float>(rate * std::sqrt(1 - std::pow(beta_2, t)) /
                                    (1 - std::pow(beta_1, t)));
    return Prepared<Adam>(push, args);
  }
  args.step = push.Offset("step");
  args.exact_learning_rate = rate;
  const auto owner = std::make_shared<ArgsAndPowers>(ArgsAndPowers{args, {}});
  SetPowers(beta_1, owner->powers.beta_1);
  SetPowers(beta_2, owner->powers.beta_2);
  owner->args.powers = &owner->powers;
  return {std::shared_ptr<const void>(owner, &owner->args),
          UpdateOf<Adam>(push)};
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

}  // namespace tf_ext
