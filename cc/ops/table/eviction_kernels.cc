// SPDX-License-Identifier: Apache-2.0
// The kernels that evict rows of a table and let their statistics decay.

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

class SparseTableEvictOp : public OpKernel {
 public:
  explicit SparseTableEvictOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("policy", &policy_));
  }

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    EvictionArgs args;
    int64_t now;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, 0, &table));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "now", 1, &now));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "unseen", 2, &args.unseen));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "capacity", 3, &args.capacity));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "by_show", 4, &args.by_show));
    OP_REQUIRES_OK(ctx, CheckVector("score", ctx->input(5)));
    const auto score = ctx->input(5).vec<double>();
    args.score.assign(score.data(), score.data() + score.size());
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "require_all", 6, &args.require_all));
    args.policy = policy_;
    int64_t* examined = nullptr;
    int64_t* evicted = nullptr;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, TensorShape({}), &examined));
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 1, TensorShape({}), &evicted));
    EvictedRows rows;
    OP_REQUIRES_OK(ctx,
                   ToTf(table->Evict(args, now, MakeParallelFor(ctx), &rows)));
    *examined = rows.examined;
    *evicted = rows.evicted;
  }

 private:
  std::string policy_;
};

absl::Status RunSparseTableDecay(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  double factor;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "factor", 1, &factor));
  int64_t* decayed = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({}), &decayed));
  return ToTf(table->DecayStatistics(factor, MakeParallelFor(ctx), decayed));
}

TF_EXT_REGISTER_FUNCTION(SparseTableDecay);
TF_EXT_REGISTER_KERNEL(SparseTableEvict, SparseTableEvictOp);

}  // namespace
}  // namespace tf_ext
