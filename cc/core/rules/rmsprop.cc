// SPDX-License-Identifier: Apache-2.0
// RMSprop (Tieleman and Hinton, 2012), centered and with momentum on request.
#include "cc/core/rules/row_loop.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

bool IsCentered(const RuleConfig& config) {
  return config.Get("centered") != 0;
}

bool HasMomentum(const RuleConfig& config) {
  return config.Get("momentum_field") != 0;
}

struct RmspropArgs : RowArgs {
  explicit RmspropArgs(const PushInput& push)
      : RowArgs(push),
        velocity(push.Offset("velocity")),
        momentum_field(HasMomentum(push.config) ? push.Offset("momentum") : -1),
        average_gradient(
            IsCentered(push.config) ? push.Offset("average_gradient") : -1),
        rho(push.Float("rho")),
        one_minus_rho(static_cast<float>(1 - push.Number("rho"))),
        momentum(push.Float("momentum")),
        epsilon(push.Float("epsilon")) {}

  int64_t velocity;
  int64_t momentum_field;    // -1: rows have none
  int64_t average_gradient;  // the same
  float rho;
  float one_minus_rho;
  float momentum;
  float epsilon;
};

template <bool kCentered, bool kMomentum>
struct Rmsprop {
  using Args = RmspropArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* __restrict velocity = Floats(row.slots, args.velocity);
    float* __restrict average =
        kCentered ? Floats(row.slots, args.average_gradient) : nullptr;
    float* __restrict momentum =
        kMomentum ? Floats(row.slots, args.momentum_field) : nullptr;
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      const float next =
          args.rho * velocity[j] + args.one_minus_rho * (g[j] * g[j]);
      velocity[j] = next;
      float variance = next;
      if (kCentered) {
        const float mean = args.rho * average[j] + args.one_minus_rho * g[j];
        average[j] = mean;
        variance = next - mean * mean;
      }
      float step =
          Step(args.learning_rate * g[j], Sqrt(variance + args.epsilon));
      if (kMomentum) {
        step = args.momentum * momentum[j] + step;
        momentum[j] = step;
      }
      w[j] = Decayed(args, w[j]) - step;
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& config, int64_t dim) {
  constexpr FieldType kFloat = FieldType::kFloat32;
  std::vector<Slot> slots = {{"velocity", kFloat, dim, 0}};
  if (HasMomentum(config)) slots.push_back({"momentum", kFloat, dim, 0});
  if (IsCentered(config)) slots.push_back({"average_gradient", kFloat, dim, 0});
  return slots;
}

Status CheckMomentum(const PushInput& push) {
  const double momentum = push.Number("momentum");
  if (HasMomentum(push.config) || momentum == 0) return Status::Ok();
  return Invalid(
      "momentum of rmsprop must be 0 in a table whose rows have no momentum "
      "field, found ",
      NumberText(momentum),
      "; create the table with momentum_field=1 to use momentum");
}

PreparedPush Prepare(const PushInput& push) {
  const RmspropArgs args(push);
  if (IsCentered(push.config)) {
    if (HasMomentum(push.config)) {
      return Prepared<Rmsprop<true, true>>(push, args);
    }
    return Prepared<Rmsprop<true, false>>(push, args);
  }
  if (HasMomentum(push.config)) {
    return Prepared<Rmsprop<false, true>>(push, args);
  }
  return Prepared<Rmsprop<false, false>>(push, args);
}

}  // namespace

const RuleSpec& RmspropRule() {
  static const RuleSpec spec = {
      "rmsprop",
      {{"centered", 0, "0", "1"}, {"momentum_field", 0, "0", "1"}},
      {kLearningRate,
       kWeightDecay,
       {"rho", kBelowOne, 0.9},
       {"momentum", kBelowOne, 0},
       {"epsilon", kNotNegative, 1e-7}},
      Slots,
      CheckMomentum,
      Prepare};
  return spec;
}

}  // namespace tf_ext
