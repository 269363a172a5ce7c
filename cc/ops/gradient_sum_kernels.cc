// Kernels that add gradients up by row, and look whether they may be.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/gradient_sum.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpInputList;
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
    OP_REQUIRES_OK(ctx, TensorShape::BuildTensorShape({count, dim}, &shape));
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &sums));
    OP_REQUIRES_OK(ctx, ToTf(SumSegments(values.flat<float>().data(),
                                         segments.flat<int32_t>().data(), n,
                                         dim, count, MakeParallelFor(ctx),
                                         sums->flat<float>().data())));
  }

 private:
  enum Inputs { kValues, kSegments, kCount };
};

class AllWithinOp : public OpKernel {
 public:
  explicit AllWithinOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("limit", &limit_));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList values;
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    const ParallelFor parallel_for = MakeParallelFor(ctx);
    bool within = true;
    for (const Tensor& tensor : values) {
      within = within && AllWithin(tensor.flat<float>().data(),
                                   tensor.NumElements(), limit_, parallel_for);
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<bool>()() = within;
  }

 private:
  float limit_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SumSegments").Device(tensorflow::DEVICE_CPU), SumSegmentsOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>AllWithin").Device(tensorflow::DEVICE_CPU),
                        AllWithinOp);

}  // namespace
}  // namespace tf_ext
