// SPDX-License-Identifier: Apache-2.0
// Gradient descent: w -= learning_rate * g.
#include "cc/core/rules/row_loop.h"

namespace tf_ext {
namespace {

struct Sgd {
  using Args = RowArgs;

  static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
                                const float* __restrict g) {
    float* __restrict w = Floats(row.weights, args.weights);
    TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
      w[j] = Decayed(args, w[j]) - g[j] * args.learning_rate;
    }
  }
};

PreparedPush Prepare(const PushInput& push) {
  return Prepared<Sgd>(push, RowArgs(push));
}

}  // namespace

const RuleSpec& SgdRule() {
  static const RuleSpec spec = {"sgd",   {},      {kLearningRate, kWeightDecay},
                                nullptr, nullptr, Prepare};
  return spec;
}

}  // namespace tf_ext
