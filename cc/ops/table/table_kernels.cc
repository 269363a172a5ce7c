// SPDX-License-Identifier: Apache-2.0
// Kernels that create a table, or find it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/config.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_ext {
namespace {

using tensorflow::ResourceHandle;
using tensorflow::core::RefCountPtr;
using tensorflow::core::WeakPtr;

// Fails if the table that was found by its name differs from `config`.
absl::Status CheckFound(const TableResource& resource,
                        const std::string& shared_name,
                        const TableConfig& config) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(resource.Get(&table));
  const absl::Status same = ToTf(CheckSameIdentity(table->config(), config));
  if (same.ok()) return same;
  return absl::Status(
      same.code(),
      absl::StrCat("A table of shared_name '", shared_name,
                   "' exists and differs from config: ", same.message()));
}

class SparseTableHandleOp : public OpKernel {
 public:
  explicit SparseTableHandleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string config;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &config));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("container", &container_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(ctx, ToTf(ParseTableConfig(config, &config_)));
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    ResourceHandle& handle = output->scalar<ResourceHandle>()();
    OP_REQUIRES_OK(ctx, shared_name_.empty() ? MakePrivate(ctx, &handle)
                                             : FindOrMake(ctx, &handle));
  }

 private:
  absl::Status MakePrivate(OpKernelContext* ctx, ResourceHandle* handle) {
    RefCountPtr<TableResource> resource;
    TF_RETURN_IF_ERROR(TableResource::Create(config_, &resource));
    *handle = ResourceHandle::MakeRefCountingHandle(resource.release(),
                                                    ctx->device()->name());
    return absl::OkStatus();
  }

  absl::Status FindOrMake(OpKernelContext* ctx, ResourceHandle* handle) {
    *handle = tensorflow::MakeResourceHandle<TableResource>(ctx, container_,
                                                            shared_name_);
    RefCountPtr<TableResource> resource;
    TF_RETURN_IF_ERROR(tensorflow::LookupOrCreateResource<TableResource>(
        ctx, *handle, &resource, [this](TableResource** created) {
          RefCountPtr<TableResource> made;
          TF_RETURN_IF_ERROR(TableResource::Create(config_, &made));
          *created = made.release();
          return absl::OkStatus();
        }));
    return CheckFound(*resource, shared_name_, config_);
  }

  TableConfig config_;
  std::string container_;
  std::string shared_name_;
};

// The live tables of serving handles, by device and name.
class ServingTables {
 public:
  static ServingTables& Get() {
    static ServingTables* const tables = new ServingTables;
    return *tables;
  }

  // The table of `name` on the device that `device` belongs to.
  absl::Status FindOrMake(const tensorflow::ResourceMgr* device,
                          const std::string& name, const TableConfig& config,
                          RefCountPtr<TableResource>* resource) {
    const ExclusiveLock lock(mutex_);
    const auto key = std::make_pair(device, name);
    const auto found = tables_.find(key);
    if (found != tables_.end()) *resource = found->second.GetNewRef();
    if (*resource != nullptr) {
      return CheckFound(**resource, name, config);
    }
    TF_RETURN_IF_ERROR(TableResource::Create(config, resource));
    for (auto it = tables_.begin(); it != tables_.end();) {
      it = it->second.GetNewRef() == nullptr ? tables_.erase(it) : ++it;
    }
    tables_.emplace(key, WeakPtr<TableResource>(resource->get()));
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  std::map<std::pair<const tensorflow::ResourceMgr*, std::string>,
           WeakPtr<TableResource>>
      tables_ TF_EXT_GUARDED_BY(mutex_);
};

// A session may keep one kernel for a node or one for each of its subgraphs:
// the first creates the table, the others find it. A model that is loaded
// eagerly runs the op once and holds the handle.
class SparseTableServingHandleOp : public OpKernel {
 public:
  explicit SparseTableServingHandleOp(OpKernelConstruction* ctx)
      : OpKernel(ctx) {
    std::string config;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &config));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES(ctx, !shared_name_.empty(),
                absl::InvalidArgumentError("shared_name must not be empty."));
    OP_REQUIRES_OK(ctx, ToTf(ParseTableConfig(config, &config_)));
  }

  void Compute(OpKernelContext* ctx) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    const ExclusiveLock lock(mutex_);
    if (resource_ == nullptr) {
      RefCountPtr<TableResource> found;
      OP_REQUIRES_OK(
          ctx, ServingTables::Get().FindOrMake(ctx->resource_manager(),
                                               shared_name_, config_, &found));
      resource_ = std::move(found);
    }
    output->scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(
        resource_.GetNewRef().release(), ctx->device()->name());
  }

 private:
  TableConfig config_;
  std::string shared_name_;
  Mutex mutex_;
  // Null before the first run.
  RefCountPtr<TableResource> resource_ TF_EXT_GUARDED_BY(mutex_);
};

TF_EXT_REGISTER_KERNEL(SparseTableHandle, SparseTableHandleOp);
TF_EXT_REGISTER_KERNEL(SparseTableServingHandle, SparseTableServingHandleOp);

}  // namespace
}  // namespace tf_ext
