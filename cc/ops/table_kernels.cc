// Kernels that create, read and train a table.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/config.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
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
    const std::lock_guard<std::mutex> lock(mutex_);
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
  std::mutex mutex_;
  std::map<std::pair<const tensorflow::ResourceMgr*, std::string>,
           WeakPtr<TableResource>>
      tables_;
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
    const std::lock_guard<std::mutex> lock(mutex_);
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
  std::mutex mutex_;
  RefCountPtr<TableResource> resource_;  // null before the first run
};

// Rows are in memory, so the calling thread reads them. The kernel is
// asynchronous so that storage on disk or behind a network could call `done`
// later.
class SparseTablePullOp : public AsyncOpKernel {
 public:
  explicit SparseTablePullOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("statistics", &statistics_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(ctx, Pull(ctx), done);
    done();
  }

 private:
  enum Inputs { kHandle, kSigns, kTraining };

  absl::Status Pull(OpKernelContext* ctx) {
    const auto begin = OpCounts::Clock::now();
    std::shared_ptr<Table> held;
    TableCounts* counts = nullptr;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &held, &counts));
    Table& table = *held;
    const Tensor& signs = ctx->input(kSigns);
    const Tensor& training = ctx->input(kTraining);
    TF_RETURN_IF_ERROR(CheckVector("signs", signs));
    const int64_t n = signs.dim_size(0);
    TF_RETURN_IF_ERROR(CheckScalar("training", training));
    if (dim_ != table.config().dim) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dim is ", dim_, ", but the rows of the table '", table.config().name,
          "' have ", table.config().dim, " weights."));
    }
    TF_RETURN_IF_ERROR(
        CheckPulledStatistics("statistics", statistics_, table.config()));
    TensorShape shape;
    TF_RETURN_IF_ERROR(MakeShape("rows", {n, dim_ + statistics_}, &shape));
    Tensor* rows = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &rows));
    TF_RETURN_IF_ERROR(ToTf(table.Pull(
        signs.flat<int64_t>().data(), n, training.scalar<bool>()(),
        rows->flat<float>().data(), MakeParallelFor(ctx), statistics_ > 0)));
    counts->pull.Add(n, begin);
    return absl::OkStatus();
  }

  int64_t dim_ = 0;
  int64_t statistics_ = 0;
};

class SparseTablePushOp : public AsyncOpKernel {
 public:
  explicit SparseTablePushOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(ctx, Push(ctx), done);
    done();
  }

 private:
  enum Inputs {
    kHandle,
    kSigns,
    kGradients,
    kStatistics,
    kHyperparameters,
    kStep,
    kTime
  };

  static absl::Status CheckShapes(OpKernelContext* ctx, int64_t dim) {
    TF_RETURN_IF_ERROR(CheckVector("signs", ctx->input(kSigns)));
    const int64_t n = ctx->input(kSigns).dim_size(0);
    const Tensor& gradients = ctx->input(kGradients);
    TF_RETURN_IF_ERROR(CheckMatrix("gradients", gradients));
    if (gradients.dim_size(0) != n || gradients.dim_size(1) != dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradients must be of shape [", n, ",", dim,
                       "] (as signs, the table's dim), but its shape is ",
                       gradients.shape().DebugString(), "."));
    }
    const Tensor& statistics = ctx->input(kStatistics);
    TF_RETURN_IF_ERROR(CheckMatrix("statistics", statistics));
    if (statistics.dim_size(0) != n &&
        statistics.shape() != TensorShape({0, 0})) {
      return absl::InvalidArgumentError(absl::StrCat(
          "statistics must be of shape [", n,
          ",s] (a row for each of the signs) or [0,0], but its shape is ",
          statistics.shape().DebugString(), "."));
    }
    TF_RETURN_IF_ERROR(
        CheckVector("hyperparameters", ctx->input(kHyperparameters)));
    TF_RETURN_IF_ERROR(CheckScalar("step", ctx->input(kStep)));
    return CheckScalar("time", ctx->input(kTime));
  }

  absl::Status Push(OpKernelContext* ctx) {
    const auto begin = OpCounts::Clock::now();
    std::shared_ptr<Table> held;
    TableCounts* counts = nullptr;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &held, &counts));
    Table& table = *held;
    TF_RETURN_IF_ERROR(CheckShapes(ctx, table.config().dim));
    const Tensor& signs = ctx->input(kSigns);
    const Tensor& hyperparameters = ctx->input(kHyperparameters);
    const Tensor& statistics = ctx->input(kStatistics);
    const bool counted = statistics.dim_size(1) > 0;
    const int64_t step = ctx->input(kStep).scalar<int64_t>()();
    Tensor* updated = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &updated));
    TF_RETURN_IF_ERROR(ToTf(table.Push(
        signs.flat<int64_t>().data(),
        ctx->input(kGradients).flat<float>().data(), signs.dim_size(0),
        hyperparameters.flat<double>().data(), hyperparameters.dim_size(0),
        step, MakeParallelFor(ctx), &updated->scalar<int64_t>()(),
        ctx->input(kTime).scalar<int64_t>()(),
        counted ? statistics.flat<float>().data() : nullptr,
        statistics.dim_size(1))));
    counts->push.Add(signs.dim_size(0), begin);
    counts->step.store(step, std::memory_order_relaxed);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableHandle").Device(tensorflow::DEVICE_CPU),
    SparseTableHandleOp);
REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableServingHandle").Device(tensorflow::DEVICE_CPU),
    SparseTableServingHandleOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>SparseTablePull")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<float>("dtype"),
                        SparseTablePullOp);
REGISTER_KERNEL_BUILDER(Name("TfExt>SparseTablePush")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<float>("dtype"),
                        SparseTablePushOp);

}  // namespace
}  // namespace tf_ext
