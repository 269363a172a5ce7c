// SPDX-License-Identifier: Apache-2.0
// Kernels that release the tables that a killed run left on a server.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_ext {
namespace {

using tensorflow::core::RefCountPtr;

absl::Status GetText(OpKernelContext* ctx, const char* name, int input,
                     std::string* text) {
  TF_RETURN_IF_ERROR(ScalarInput(ctx, name, input, text));
  if (!text->empty()) return absl::OkStatus();
  return InvalidArgument(name, " must not be empty.");
}

absl::Status GetOwner(OpKernelContext* ctx, int address, int run,
                      TableResource::Owner* owner) {
  TF_RETURN_IF_ERROR(GetText(ctx, "owner", address, &owner->address));
  return GetText(ctx, "run", run, &owner->run);
}

absl::Status RunSparseTableSetOwner(OpKernelContext* ctx) {
  RefCountPtr<TableResource> resource;
  TF_RETURN_IF_ERROR(LookupTableResource(ctx, 0, &resource));
  TableResource::Owner owner;
  TF_RETURN_IF_ERROR(GetOwner(ctx, 1, 2, &owner));
  resource->SetOwner(std::move(owner));
  return absl::OkStatus();
}

absl::Status RunReleaseSparseTables(OpKernelContext* ctx) {
  TableResource::Owner owner;
  TF_RETURN_IF_ERROR(GetOwner(ctx, 0, 1, &owner));
  int64_t* counts = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({2}), &counts));
  counts[0] = counts[1] = 0;
  for (const auto& resource : TableResource::Live()) {
    const TableResource::Owner found = resource->owner();
    if (found.address != owner.address || found.run == owner.run) continue;
    const std::shared_ptr<Table> table = resource->Release();
    if (table == nullptr) continue;  // by another call
    const TableStats stats = table->Stats(/*with_probes=*/false);
    counts[0] += 1;
    counts[1] += stats.slab_bytes + stats.index_bytes;
  }
  return absl::OkStatus();
}

TF_EXT_REGISTER_FUNCTION(SparseTableSetOwner);
TF_EXT_REGISTER_FUNCTION(ReleaseSparseTables);

}  // namespace
}  // namespace tf_ext
