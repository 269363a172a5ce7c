// SPDX-License-Identifier: Apache-2.0
// Gradient descent with momentum, or Nesterov's: what Keras's SGD does where
// its momentum is above 0.
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct MomentumArgs : RowArgs {
  explicit MomentumArgs(const PushInput& push)
      : RowArgs(push),
        field(push.Offset("momentum")),
        momentum(push.Float("momentum")) {}

  int64_t field;
  float momentum;
};

template <bool kNesterov>
struct Momentum {
  using Args = MomentumArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict momentum = Floats(row.slots, args.field);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float step = g[j] * args.learning_rate;
      const float next = momentum[j] * args.momentum - step;
      momentum[j] = next;
      w[j] = Decayed(args, w[j]) +
             (kNesterov ? next * args.momentum - step : next);
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& /*config*/, int64_t dim) {
  return {{"momentum", FieldType::kFloat32, dim, 0}};
}

PreparedPush Prepare(const PushInput& push) {
  const MomentumArgs args(push);
  if (push.Number("nesterov") != 0) return Prepared<Momentum<true>>(push, args);
  return Prepared<Momentum<false>>(push, args);
}

}  // namespace

const RuleSpec& MomentumRule() {
  static const RuleSpec spec = {"momentum",
                                {},
                                {kLearningRate,
                                 kWeightDecay,
                                 {"momentum", kBelowOne, 0},
                                 {"nesterov", kFlag, 0}},
                                Slots,
                                nullptr,
                                Prepare};
  return spec;
}

}  // namespace tf_ext
