// SPDX-License-Identifier: Apache-2.0
// The kernel that sums gradients by row.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/bags/gradient_sum.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class SumSegmentsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& values = ctx->input(kValues);
    const Tensor& segments = ctx->input(kSegments);
    const Tensor& count_tensor = ctx->input(kCount);
    OP_REQUIRES_OK(ctx, CheckMatrix("values", values));
    OP_REQUIRES_OK(ctx, CheckVector("segments", segments));
    OP_REQUIRES_OK(ctx, CheckScalar("count", count_tensor));
    const int64_t n = values.dim_size(0);
    const int64_t dim = values.dim_size(1);
    OP_REQUIRES(ctx, segments.dim_size(0) == n,
                absl::InvalidArgumentError(absl::StrCat(
                    "segments must be of shape [", n,
                    "] (as many as values has rows), but its shape is ",
                    segments.shape().DebugString(), ".")));
    const int64_t count = count_tensor.scalar<int64_t>()();
    TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape("sums", {count, dim}, &shape));
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    OP_REQUIRES_OK(ctx, ToTf(SumSegments({{values.flat<float>().data(), n}},
                                         segments.flat<int32_t>().data(), dim,
                                         count, MakeParallelFor(ctx),
                                         sums->flat<float>().data())));
  }

 private:
  enum Inputs { kValues, kSegments, kCount };
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SumSegments").Device(tensorflow::DEVICE_CPU), SumSegmentsOp);
}  // namespace
}  // namespace tf_ext
