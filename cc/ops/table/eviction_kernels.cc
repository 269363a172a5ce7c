// SPDX-License-Identifier: Apache-2.0
// The kernels that evict rows of a table and let their statistics decay.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class SparseTableEvictOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, CheckScalar("now", ctx->input(kNow)));
    OP_REQUIRES_OK(ctx, CheckScalar("unseen", ctx->input(kUnseen)));
    OP_REQUIRES_OK(ctx, CheckScalar("capacity", ctx->input(kCapacity)));
    OP_REQUIRES_OK(ctx, CheckScalar("by_show", ctx->input(kByShow)));
    OP_REQUIRES_OK(ctx, CheckVector("score", ctx->input(kScore)));
    OP_REQUIRES_OK(ctx, CheckScalar("require_all", ctx->input(kRequireAll)));
    Tensor* examined = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(kExamined, TensorShape({}), &examined));
    Tensor* evicted = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(kEvicted, TensorShape({}), &evicted));
    EvictPolicy policy;
    policy.unseen = ctx->input(kUnseen).scalar<int64_t>()();
    policy.capacity = ctx->input(kCapacity).scalar<int64_t>()();
    policy.by_show = ctx->input(kByShow).scalar<bool>()();
    policy.require_all = ctx->input(kRequireAll).scalar<bool>()();
    OP_REQUIRES_OK(ctx, ReadScore(ctx->input(kScore), &policy));
    EvictedRows rows;
    OP_REQUIRES_OK(
        ctx, ToTf(table->Evict(policy, ctx->input(kNow).scalar<int64_t>()(),
                               MakeParallelFor(ctx), &rows)));
    examined->scalar<int64_t>()() = rows.examined;
    evicted->scalar<int64_t>()() = rows.evicted;
  }

 private:
  static absl::Status ReadScore(const Tensor& score, EvictPolicy* policy) {
    const int64_t n = score.dim_size(0);
    if (n == 0) return absl::OkStatus();
    if (n != 3) {
      return absl::InvalidArgumentError(
          absl::StrCat("score must be of shape [0] or [3] (threshold, "
                       "show_weight and click_weight), but its shape is [",
                       n, "]."));
    }
    const auto values = score.vec<double>();
    policy->score = {values(0), values(1), values(2)};
    return absl::OkStatus();
  }

  enum Inputs {
    kHandle,
    kNow,
    kUnseen,
    kCapacity,
    kByShow,
    kScore,
    kRequireAll
  };
  enum Outputs { kExamined, kEvicted };
};

class SparseTableDecayOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, 0, &table));
    const Tensor& factor = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckScalar("factor", factor));
    Tensor* decayed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &decayed));
    OP_REQUIRES_OK(ctx, ToTf(table->DecayStatistics(
                            factor.scalar<double>()(), MakeParallelFor(ctx),
                            &decayed->scalar<int64_t>()())));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableDecay").Device(tensorflow::DEVICE_CPU),
    SparseTableDecayOp);
REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableEvict").Device(tensorflow::DEVICE_CPU),
    SparseTableEvictOp);

}  // namespace
}  // namespace tf_ext
