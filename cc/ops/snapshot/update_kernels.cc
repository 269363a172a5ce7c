// SPDX-License-Identifier: Apache-2.0
// Kernels that end saves, and begin and end updates of a table in place.

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

// The scalar `input`, which may be '' or the id of a snapshot.
absl::Status IdInput(OpKernelContext* ctx, const char* name, int input,
                     std::string* id) {
  TF_RETURN_IF_ERROR(ScalarInput(ctx, name, input, id));
  return id->empty() ? absl::OkStatus() : CheckSnapshotId(name, *id);
}

absl::Status RunSparseTableEndSave(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  std::string id;
  bool committed;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "id", 1, &id));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "committed", 2, &committed));
  return ToTf(table->EndChainSave(id, committed));
}

absl::Status RunSparseTableSetChain(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  std::string id;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(IdInput(ctx, "id", 1, &id));
  return ToTf(table->SetChain(id));
}

absl::Status RunSparseTableHeld(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  return SetScalarOutput<tstring>(ctx, 0, table->Held());
}

absl::Status RunSparseTableBeginUpdate(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  std::string base;
  bool whole;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(IdInput(ctx, "base", 1, &base));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "whole", 2, &whole));
  int64_t number;
  TF_RETURN_IF_ERROR(ToTf(table->BeginUpdate(base, whole, &number)));
  return SetScalarOutput(ctx, 0, number);
}

absl::Status RunSparseTableEndUpdate(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  int64_t number;
  bool completed;
  std::string id;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "number", 1, &number));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "completed", 2, &completed));
  TF_RETURN_IF_ERROR(IdInput(ctx, "id", 3, &id));
  bool held;
  TF_RETURN_IF_ERROR(ToTf(table->EndUpdate(number, completed, id, &held)));
  return SetScalarOutput(ctx, 0, held);
}

TF_EXT_REGISTER_FUNCTION(SparseTableEndSave);
TF_EXT_REGISTER_FUNCTION(SparseTableSetChain);
TF_EXT_REGISTER_FUNCTION(SparseTableHeld);
TF_EXT_REGISTER_FUNCTION(SparseTableBeginUpdate);
TF_EXT_REGISTER_FUNCTION(SparseTableEndUpdate);

}  // namespace
}  // namespace tf_ext
