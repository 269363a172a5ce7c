// SPDX-License-Identifier: Apache-2.0
// Kernels that release the tables that a killed run left on a server.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::core::RefCountPtr;

absl::Status GetText(OpKernelContext* ctx, const char* name, int input,
                     std::string* text) {
  TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(input)));
  *text = ctx->input(input).scalar<tstring>()();
  if (!text->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must not be empty."));
}

absl::Status GetOwner(OpKernelContext* ctx, int address, int run,
                      TableResource::Owner* owner) {
  TF_RETURN_IF_ERROR(GetText(ctx, "owner", address, &owner->address));
  return GetText(ctx, "run", run, &owner->run);
}

class SparseTableSetOwnerOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    RefCountPtr<TableResource> resource;
    OP_REQUIRES_OK(ctx, LookupTableResource(ctx, kHandle, &resource));
    TableResource::Owner owner;
    OP_REQUIRES_OK(ctx, GetOwner(ctx, kOwner, kRun, &owner));
    resource->SetOwner(std::move(owner));
  }

 private:
  enum Inputs { kHandle, kOwner, kRun };
};

class ReleaseSparseTablesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    TableResource::Owner owner;
    OP_REQUIRES_OK(ctx, GetOwner(ctx, kOwner, kRun, &owner));
    Tensor* released = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2}), &released));
    auto counts = released->vec<int64_t>();
    counts.setZero();
    for (const auto& resource : TableResource::Live()) {
      const TableResource::Owner found = resource->owner();
      if (found.address != owner.address || found.run == owner.run) continue;
      const std::shared_ptr<Table> table = resource->Release();
      if (table == nullptr) continue;  // by another call
      const TableStats stats = table->Stats(/*with_probes=*/false);
      counts(0) += 1;
      counts(1) += stats.slab_bytes + stats.index_bytes;
    }
  }

 private:
  enum Inputs { kOwner, kRun };
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableSetOwner").Device(tensorflow::DEVICE_CPU),
    SparseTableSetOwnerOp);
REGISTER_KERNEL_BUILDER(
    Name("TfExt>ReleaseSparseTables").Device(tensorflow::DEVICE_CPU),
    ReleaseSparseTablesOp);

}  // namespace
}  // namespace tf_ext
