// SPDX-License-Identifier: Apache-2.0
// Adagrad with one accumulator a row, of the mean square: the row-wise Adagrad
// of FBGEMM and TorchRec, with epsilon where Keras's Adagrad has it.
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct RowWiseAdagradArgs : RowArgs {
  explicit RowWiseAdagradArgs(const PushInput& push)
      : RowArgs(push),
        accumulator(push.Offset("accumulator")),
        epsilon(push.Float("epsilon")) {}

  int64_t accumulator;
  float epsilon;
};

// Sum of squares in a fixed order: 16 partial sums, then halves onto halves.
TF_EXT_INLINE float SumOfSquares(const float* __restrict g, int64_t dim) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t begin = 0;
  for (; begin + kLanes <= dim; begin += kLanes) {
    TF_EXT_ROW_LOOP(int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += g[begin + l] * g[begin + l];
    }
  }
  for (int64_t l = 0; l < dim - begin; ++l) {
    lanes[l] += g[begin + l] * g[begin + l];
  }
  for (int64_t l = 0; l < 8; ++l) lanes[l] += lanes[l + 8];
  for (int64_t l = 0; l < 4; ++l) lanes[l] += lanes[l + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

struct RowWiseAdagrad {
  using Args = RowWiseAdagradArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    float* accumulator = Floats(row.slots, args.accumulator);
    const float sum =
        *accumulator + SumOfSquares(g, dim) / static_cast<float>(dim);
    *accumulator = sum;
    const float rate = Step(args.learning_rate, Sqrt(sum + args.epsilon));
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      w[j] = Decayed(args, w[j]) - rate * g[j];
    }
  }
};

std::vector<Slot> Slots(const RuleConfig& config, int64_t /*dim*/) {
  return {{"accumulator", FieldType::kFloat32, 1,
           config.Get("initial_accumulator_value")}};
}

PreparedPush Prepare(const PushInput& push) {
  return Prepared<RowWiseAdagrad>(push, RowWiseAdagradArgs(push));
}

}  // namespace

const RuleSpec& RowWiseAdagradRule() {
  static const RuleSpec spec = {
      "row_wise_adagrad",
      {{"initial_accumulator_value", 0.1}},
      {kLearningRate, kWeightDecay, {"epsilon", kNotNegative, 1e-7}},
      Slots,
      nullptr,
      Prepare};
  return spec;
}

}  // namespace tf_ext
