// SPDX-License-Identifier: Apache-2.0
// The kernel that weighs a worker's gradients.

#include <algorithm>
#include <cstdint>

#include "cc/core/support/parallel.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

// What a thread multiplies at a time: some 20 microseconds of work.
constexpr int64_t kFloatsPerBlock = 64 << 10;

void Weigh(const float* from, float weight, int64_t n,
           const ParallelFor& parallel_for, float* to) {
  const int64_t blocks = std::max<int64_t>(1, n / kFloatsPerBlock);
  RunBlocks(blocks, parallel_for, [=](int64_t block) {
    const int64_t begin = n / blocks * block;
    const int64_t end = block + 1 == blocks ? n : begin + n / blocks;
    // A weight of 0 is that of an empty batch, whose gradients may be NaN.
    if (weight == 0) {
      std::fill(to + begin, to + end, 0.0f);
    } else {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] * weight;
    }
  });
}

absl::Status RunExchangeWeigh(OpKernelContext* ctx) {
  OpInputList values;
  OpOutputList weighted;
  float weight;
  TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
  TF_RETURN_IF_ERROR(ctx->output_list("weighted", &weighted));
  TF_RETURN_IF_ERROR(
      ScalarInput(ctx, "weight", ctx->num_inputs() - 1, &weight));
  for (int i = 0; i < values.size(); ++i) {
    if (weight == 1) {
      weighted.set(i, values[i]);
      continue;
    }
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->forward_input_or_allocate_output(
        {i}, i, values[i].shape(), &output));
    Weigh(values[i].flat<float>().data(), weight, values[i].NumElements(),
          MakeParallelFor(ctx), output->flat<float>().data());
  }
  return absl::OkStatus();
}

TF_EXT_REGISTER_FUNCTION(ExchangeWeigh);

}  // namespace
}  // namespace tf_ext
