// SPDX-License-Identifier: Apache-2.0
// The kernel that sums gradients by row.

#include <cstdint>

#include "cc/core/bags/gradient_sum.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

absl::Status RunSumSegments(OpKernelContext* ctx) {
  const Tensor& values = ctx->input(0);
  const Tensor& segments = ctx->input(1);
  int64_t count;
  TF_RETURN_IF_ERROR(CheckMatrix("values", values));
  TF_RETURN_IF_ERROR(CheckVector("segments", segments));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "count", 2, &count));
  const int64_t n = values.dim_size(0);
  const int64_t dim = values.dim_size(1);
  if (segments.dim_size(0) != n) {
    return InvalidArgument("segments must be of shape [", n,
                           "] (as many as values has rows), but its shape is ",
                           segments.shape().DebugString(), ".");
  }
  TensorShape shape;
  float* sums = nullptr;
  TF_RETURN_IF_ERROR(MakeShape("sums", {count, dim}, &shape));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, shape, &sums));
  return ToTf(SumSegments({{values.flat<float>().data(), n}},
                          segments.flat<int32_t>().data(), dim, count,
                          MakeParallelFor(ctx), sums));
}

TF_EXT_REGISTER_FUNCTION(SumSegments);

}  // namespace
}  // namespace tf_ext
