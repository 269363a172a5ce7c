// SPDX-License-Identifier: Apache-2.0
// Kernels that find the distinct signs of a batch and combine bags of rows.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/bags/combine.h"
#include "cc/core/bags/unique.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
#include "cc/ops/bags/bag_inputs.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

// Of one vector of signs, or of several.
class UniqueByShardOp : public OpKernel {
 public:
  explicit UniqueByShardOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_shards", &num_shards_));
    several_ = ctx->HasAttr("N");
  }

  void Compute(OpKernelContext* ctx) override {
    const int count = ctx->num_inputs();
    std::vector<int32_t*> inverse(count);
    int64_t signs = 0;
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES_OK(ctx, AllocateInverse(ctx, i, &inverse[i]));
      signs += ctx->input(i).dim_size(0);
    }
    std::vector<UniqueSigns> unique(count);
    std::vector<Status> statuses(count);
    RunBlocks(count, signs < kWorthThreads ? SerialFor : MakeParallelFor(ctx),
              [&](int64_t i) {
                const Tensor& input = ctx->input(i);
                statuses[i] = UniqueByShard(input.flat<int64_t>().data(),
                                            input.dim_size(0), num_shards_,
                                            &unique[i], inverse[i]);
              });
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES_OK(ctx, ToTf(statuses[i]));
      OP_REQUIRES_OK(ctx, Output(ctx, kUnique, i, unique[i].signs));
      OP_REQUIRES_OK(ctx, Output(ctx, kCounts, i, unique[i].counts));
      OP_REQUIRES_OK(ctx, Output(ctx, kSplitSizes, i, unique[i].split_sizes));
    }
  }

 private:
  // Each is a list of one tensor for each input.
  enum Outputs { kUnique, kCounts, kInverse, kSplitSizes };

  // Fewer signs take less than 50 microseconds.
  static constexpr int64_t kWorthThreads = 4096;

  absl::Status AllocateInverse(OpKernelContext* ctx, int i,
                               int32_t** inverse) const {
    const Tensor& signs = ctx->input(i);
    TF_RETURN_IF_ERROR(CheckVector(
        several_ ? absl::StrCat("signs[", i, "]") : "signs", signs));
    return AllocateOutput(ctx, kInverse * ctx->num_inputs() + i, signs.shape(),
                          inverse);
  }

  static absl::Status Output(OpKernelContext* ctx, Outputs list, int i,
                             const std::vector<int64_t>& values) {
    int64_t* output = nullptr;
    const int64_t size = static_cast<int64_t>(values.size());
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, list * ctx->num_inputs() + i,
                                      TensorShape({size}), &output));
    std::copy(values.begin(), values.end(), output);
    return absl::OkStatus();
  }

  int64_t num_shards_ = 1;
  bool several_ = false;
};

// The bags, which the forward and the backward op have in common. Their inputs
// are the same and in the same order, but start at different indices.
class BagOp : public OpKernel {
 public:
  explicit BagOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCombiners(ctx, &combiners_));
  }

 protected:
  // Makes the bags of the inputs that start at `first`, and sets the shape of
  // the combined bags, `combined`.
  absl::Status GetBags(OpKernelContext* ctx, int first, Bags* bags,
                       TensorShape* combined) const {
    TF_RETURN_IF_ERROR(MakeBags({ctx->input(first), ctx->input(first + 1),
                                 ctx->input(first + 2), ctx->input(first + 3)},
                                "", combiners_, bags));
    int64_t width = 0;
    TF_RETURN_IF_ERROR(CombinedWidth(*bags, &width));
    return MakeShape("combined", {bags->batch, width}, combined);
  }

 private:
  std::vector<Combiner> combiners_;
};

class CombineBagsOp : public BagOp {
 public:
  using BagOp::BagOp;

  void Compute(OpKernelContext* ctx) override {
    Bags bags;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, GetBags(ctx, /*first=*/0, &bags, &shape));
    float* combined = nullptr;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, shape, &combined));
    if (shape.num_elements() == 0) return;
    CombineBags(bags, MakeParallelFor(ctx), combined);
  }
};

class CombineBagsGradOp : public BagOp {
 public:
  using BagOp::BagOp;

  void Compute(OpKernelContext* ctx) override {
    Bags bags;
    TensorShape shape;
    OP_REQUIRES_OK(ctx, GetBags(ctx, /*first=*/kRows, &bags, &shape));
    const Tensor& gradient = ctx->input(kGradient);
    OP_REQUIRES(
        ctx, gradient.shape() == shape,
        InvalidArgument("gradient must be of shape ", shape.DebugString(),
                        " (batch_size, combiners * dim), but its shape is ",
                        gradient.shape().DebugString(), "."));
    float* rows_gradient = nullptr;
    float* weights_gradient = nullptr;
    OP_REQUIRES_OK(
        ctx, AllocateOutput(ctx, 0, ctx->input(kRows).shape(), &rows_gradient));
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 1, ctx->input(kWeights).shape(),
                                       &weights_gradient));
    if (bags.weights == nullptr) weights_gradient = nullptr;
    OP_REQUIRES_OK(ctx,
                   ToTf(CombineBagsGradient(bags, gradient.flat<float>().data(),
                                            MakeParallelFor(ctx), rows_gradient,
                                            weights_gradient)));
  }

 private:
  enum Inputs { kGradient, kRows, kInverse, kRowSplits, kWeights };
};

absl::Status RunRouteGradient(OpKernelContext* ctx) {
  const Tensor& rows = ctx->input(0);
  const Tensor& shadow = ctx->input(1);
  const Tensor& signs = ctx->input(2);
  TF_RETURN_IF_ERROR(CheckMatrix("rows", rows));
  TF_RETURN_IF_ERROR(CheckMatrix("shadow", shadow));
  TF_RETURN_IF_ERROR(CheckVector("signs", signs));
  const int64_t n = signs.dim_size(0);
  const int64_t dim = shadow.dim_size(1);
  // A TensorShape of the two could overflow.
  if (rows.dim_size(0) != n || rows.dim_size(1) != dim) {
    return InvalidArgument(
        "rows must be of shape [", n, ",", dim,
        "] (as signs, as a row of shadow), but its shape is ",
        rows.shape().DebugString(), ".");
  }
  ctx->set_output(0, rows);
  return absl::OkStatus();
}

TF_EXT_REGISTER_FUNCTION(RouteGradient);
TF_EXT_REGISTER_KERNEL(UniqueByShard, UniqueByShardOp);
TF_EXT_REGISTER_KERNEL(UniqueByShardEach, UniqueByShardOp);
TF_EXT_REGISTER_KERNEL(CombineBags, CombineBagsOp);
TF_EXT_REGISTER_KERNEL(CombineBagsGrad, CombineBagsGradOp);

}  // namespace
}  // namespace tf_ext
