// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/table/table_resource.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/mutex.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/type_index.h"
#include "tensorflow/core/platform/demangle.h"

namespace tf_ext {
namespace {

using tensorflow::ResourceHandle;
using tensorflow::TypeIndex;
using tensorflow::core::RefCountPtr;
using tensorflow::core::WeakPtr;

constexpr char kWanted[] =
    "handle must be that of a sparse table (a tf_ext::TableResource)";

absl::Status CheckType(const ResourceHandle& handle) {
  const TypeIndex wanted = TypeIndex::Make<TableResource>();
  if (handle.hash_code() == wanted.hash_code()) return absl::OkStatus();
  if (handle.hash_code() == 0) {
    return InvalidArgument(kWanted, ", but it is an uninitialised handle.");
  }
  return InvalidArgument(
      kWanted, ", but it is of the resource '", handle.name(), "', a ",
      tensorflow::port::Demangle(handle.maybe_type_name().c_str()), ".");
}

// A table is here from its creation to its end.
class LiveTables {
 public:
  static LiveTables& Get() {
    static LiveTables* const tables = new LiveTables;
    return *tables;
  }

  void Add(TableResource* table) {
    const ExclusiveLock lock(mutex_);
    tables_.emplace(table, WeakPtr<TableResource>(table));
  }

  void Remove(const TableResource* table) {
    const ExclusiveLock lock(mutex_);
    tables_.erase(table);
  }

  std::vector<RefCountPtr<TableResource>> All() {
    std::vector<RefCountPtr<TableResource>> found;
    const ExclusiveLock lock(mutex_);
    for (const auto& [unused, weak] : tables_) {
      RefCountPtr<TableResource> table = weak.GetNewRef();
      if (table != nullptr) found.push_back(std::move(table));
    }
    return found;
  }

 private:
  Mutex mutex_;
  std::map<const TableResource*, WeakPtr<TableResource>> tables_
      TF_EXT_GUARDED_BY(mutex_);
};

}  // namespace

TableResource::TableResource(std::unique_ptr<Table> table)
    : counts_(CountsOfTable(table->config().name)), table_(std::move(table)) {}

TableResource::~TableResource() { LiveTables::Get().Remove(this); }

std::vector<RefCountPtr<TableResource>> TableResource::Live() {
  return LiveTables::Get().All();
}

void TableResource::SetOwner(Owner owner) {
  const ExclusiveLock lock(mutex_);
  owner_ = std::move(owner);
}

TableResource::Owner TableResource::owner() const {
  const ExclusiveLock lock(mutex_);
  return owner_;
}

absl::Status TableResource::Create(const TableConfig& config,
                                   RefCountPtr<TableResource>* resource) {
  std::unique_ptr<Table> table;
  TF_RETURN_IF_ERROR(ToTf(Table::Create(config, &table)));
  resource->reset(new TableResource(std::move(table)));
  LiveTables::Get().Add(resource->get());
  return absl::OkStatus();
}

std::string TableResource::DebugString() const {
  const std::shared_ptr<Table> table = GetOrNull();
  if (table == nullptr) return "tf_ext::TableResource(released)";
  const TableConfig& config = table->config();
  return absl::StrCat("tf_ext::TableResource(name='", config.name,
                      "', dim=", config.dim, ", rows=", table->Size(), ")");
}

int64_t TableResource::MemoryUsed() const {
  const std::shared_ptr<Table> table = GetOrNull();
  if (table == nullptr) return static_cast<int64_t>(sizeof(*this));
  const TableStats stats = table->Stats(/*with_probes=*/false);
  return static_cast<int64_t>(sizeof(*this)) + stats.slab_bytes +
         stats.index_bytes;
}

std::shared_ptr<Table> TableResource::GetOrNull() const {
  const ExclusiveLock lock(mutex_);
  return table_;
}

absl::Status TableResource::Get(std::shared_ptr<Table>* table) const {
  *table = GetOrNull();
  if (*table != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "handle is of a table that was released: a newer run was started at the "
      "address of the chief that created it, and a run releases the tables "
      "that earlier runs left behind. Create the table again in the newer "
      "run.");
}

std::shared_ptr<Table> TableResource::Release() {
  const ExclusiveLock lock(mutex_);
  return std::exchange(table_, nullptr);
}

absl::Status LookupTableResource(OpKernelContext* ctx, int input,
                                 RefCountPtr<TableResource>* resource) {
  const Tensor& tensor = ctx->input(input);
  if (tensor.dims() != 0) {
    return InvalidArgument(kWanted, ", a scalar, but its shape is ",
                           tensor.shape().DebugString(), ".");
  }
  const ResourceHandle& handle = tensor.scalar<ResourceHandle>()();
  TF_RETURN_IF_ERROR(CheckType(handle));
  const absl::Status status = tensorflow::LookupResource(ctx, handle, resource);
  if (absl::IsNotFound(status)) {
    return absl::NotFoundError(absl::StrCat(
        "handle is of the table '", handle.name(), "' in the container '",
        handle.container(), "', which is not (or no longer) on ",
        ctx->device()->name(), ". Create it again with SparseTableHandle. (",
        status.message(), ")"));
  }
  return status;
}

absl::Status LookupTable(OpKernelContext* ctx, int input,
                         std::shared_ptr<Table>* table, TableCounts** counts) {
  RefCountPtr<TableResource> resource;
  TF_RETURN_IF_ERROR(LookupTableResource(ctx, input, &resource));
  if (counts != nullptr) *counts = &resource->counts();
  return resource->Get(table);
}

}  // namespace tf_ext
