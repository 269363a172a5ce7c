// SPDX-License-Identifier: Apache-2.0
// The kernels that evict rows of a table and let their statistics decay.

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class SparseTableEvictOp : public OpKernel {
 public:
  explicit SparseTableEvictOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("policy", &policy_));
  }

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
    EvictionArgs args;
    args.unseen = ctx->input(kUnseen).scalar<int64_t>()();
    args.capacity = ctx->input(kCapacity).scalar<int64_t>()();
    args.by_show = ctx->input(kByShow).scalar<bool>()();
    const auto score = ctx->input(kScore).vec<double>();
    args.score.assign(score.data(), score.data() + score.size());
    args.require_all = ctx->input(kRequireAll).scalar<bool>()();
    args.policy = policy_;
    EvictedRows rows;
    OP_REQUIRES_OK(ctx,
                   ToTf(table->Evict(args, ctx->input(kNow).scalar<int64_t>()(),
                                     MakeParallelFor(ctx), &rows)));
    examined->scalar<int64_t>()() = rows.examined;
    evicted->scalar<int64_t>()() = rows.evicted;
  }

 private:
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

  std::string policy_;
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
