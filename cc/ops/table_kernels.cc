// Kernels that make, read and train a table.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/config.h"
#include "cc/core/table.h"
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
    const absl::Status same =
        ToTf(CheckSameIdentity(resource->table().config(), config_));
    if (same.ok()) return same;
    return absl::Status(
        same.code(),
        absl::StrCat("The table of shared_name '", shared_name_,
                     "' is there already and is another one than config "
                     "asks for: ",
                     same.message()));
  }

  TableConfig config_;
  std::string container_;
  std::string shared_name_;
};

// Rows are read from memory today, so the work is done in the calling thread;
// a tier that waits for a disk or a network would call `done` later.
class SparseTablePullOp : public AsyncOpKernel {
 public:
  explicit SparseTablePullOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(ctx, Pull(ctx), done);
    done();
  }

 private:
  enum Inputs { kHandle, kSigns, kCounts, kTraining };

  absl::Status Pull(OpKernelContext* ctx) {
    RefCountPtr<TableResource> resource;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &resource));
    Table& table = resource->table();
    const Tensor& signs = ctx->input(kSigns);
    const Tensor& training = ctx->input(kTraining);
    TF_RETURN_IF_ERROR(CheckVector("signs", signs));
    const int64_t n = signs.dim_size(0);
    TF_RETURN_IF_ERROR(
        CheckOptionalVectorOf("counts", ctx->input(kCounts), n, "as signs"));
    TF_RETURN_IF_ERROR(CheckScalar("training", training));
    if (dim_ != table.config().dim) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dim is ", dim_, ", but the rows of the table '", table.config().name,
          "' have ", table.config().dim, " weights."));
    }
    Tensor* rows = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({n, dim_}), &rows));
    return ToTf(table.Pull(signs.flat<int64_t>().data(), n,
                           training.scalar<bool>()(),
                           rows->flat<float>().data(), MakeParallelFor(ctx)));
  }

  int64_t dim_ = 0;
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
    kStep
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
    return CheckScalar("step", ctx->input(kStep));
  }

  absl::Status Push(OpKernelContext* ctx) {
    RefCountPtr<TableResource> resource;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &resource));
    Table& table = resource->table();
    TF_RETURN_IF_ERROR(CheckShapes(ctx, table.config().dim));
    const Tensor& signs = ctx->input(kSigns);
    const Tensor& hyperparameters = ctx->input(kHyperparameters);
    Tensor* updated = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &updated));
    return ToTf(table.Push(
        signs.flat<int64_t>().data(),
        ctx->input(kGradients).flat<float>().data(), signs.dim_size(0),
        hyperparameters.flat<double>().data(), hyperparameters.dim_size(0),
        ctx->input(kStep).scalar<int64_t>()(), MakeParallelFor(ctx),
        &updated->scalar<int64_t>()()));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>SparseTableHandle").Device(tensorflow::DEVICE_CPU),
    SparseTableHandleOp);
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
