// SPDX-License-Identifier: Apache-2.0
// Kernels that begin and end updates of a table in place.

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::tstring;

// The scalar `input`, which may be '' or the id of a snapshot.
absl::Status IdInput(OpKernelContext* ctx, const char* name, int input,
                     std::string* id) {
  TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(input)));
  *id = std::string(ctx->input(input).scalar<tstring>()());
  return id->empty() ? absl::OkStatus() : CheckSnapshotId(name, *id);
}

class SparseTableHeldOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, 0, &table));
    OP_REQUIRES_OK(ctx, SetScalarOutput<tstring>(ctx, 0, table->Held()));
  }
};

class SparseTableBeginUpdateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    std::string base;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, IdInput(ctx, "base", kBase, &base));
    OP_REQUIRES_OK(ctx, CheckScalar("whole", ctx->input(kWhole)));
    int64_t number;
    OP_REQUIRES_OK(
        ctx, ToTf(table->BeginUpdate(base, ctx->input(kWhole).scalar<bool>()(),
                                     &number)));
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, number));
  }

 private:
  enum Inputs { kHandle, kBase, kWhole };
};

class SparseTableEndUpdateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    std::string id;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, CheckScalar("number", ctx->input(kNumber)));
    OP_REQUIRES_OK(ctx, IdInput(ctx, "id", kId, &id));
    bool held;
    OP_REQUIRES_OK(
        ctx, ToTf(table->EndUpdate(ctx->input(kNumber).scalar<int64_t>()(), id,
                                   &held)));
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 0, held));
  }

 private:
  enum Inputs { kHandle, kNumber, kId };
};

#define REGISTER_UPDATE_KERNEL(name)                                           \
  REGISTER_KERNEL_BUILDER(Name("TfExt>" #name).Device(tensorflow::DEVICE_CPU), \
                          name##Op)

REGISTER_UPDATE_KERNEL(SparseTableHeld);
REGISTER_UPDATE_KERNEL(SparseTableBeginUpdate);
REGISTER_UPDATE_KERNEL(SparseTableEndUpdate);

#undef REGISTER_UPDATE_KERNEL

}  // namespace
}  // namespace tf_ext
