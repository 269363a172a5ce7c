// SPDX-License-Identifier: Apache-2.0
// Kernels that read and train tables: one, or all of a step.
//
// The ops on several tables have the inputs of those on one, each as a list;
// but what is not as long as a batch is one tensor for all of them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_access.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

// The tables of an op, and the names of its inputs.
class TablesOp : public AsyncOpKernel {
 public:
  explicit TablesOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx), several_(ctx->HasAttr("N")) {
    if (several_) OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count_));
  }

 protected:
  bool several() const { return several_; }
  int count() const { return count_; }

  // Of what belongs to table `i`.
  std::string NameOf(absl::string_view name, int i) const {
    return several_ ? absl::StrCat(name, "[", i, "]") : std::string(name);
  }

  // Handles are the first inputs.
  absl::Status Hold(OpKernelContext* ctx, int i, HeldTable* held) const {
    const absl::Status status =
        LookupTable(ctx, i, &held->table, &held->counts);
    if (status.ok() || !several_) return status;
    return absl::Status(status.code(),
                        absl::StrCat("handles[", i, "]: ", status.message()));
  }

 private:
  const bool several_;
  int count_ = 1;
};

// Rows are in memory, so the calling thread reads them. The kernel is
// asynchronous so that storage on disk or behind a network could call `done`
// later.
class SparseTablePullOp : public TablesOp {
 public:
  explicit SparseTablePullOp(OpKernelConstruction* ctx) : TablesOp(ctx) {
    if (several()) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
      OP_REQUIRES_OK(ctx, CheckListSize("dims", dims_.size(), count()));
      OP_REQUIRES_OK(ctx, ctx->GetAttr("statistics", &statistics_));
      OP_REQUIRES_OK(ctx,
                     CheckListSize("statistics", statistics_.size(), count()));
    } else {
      dims_.resize(1);
      OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dims_[0]));
      statistics_.resize(1);
      OP_REQUIRES_OK(ctx, ctx->GetAttr("statistics", &statistics_[0]));
    }
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(ctx, Pull(ctx), done);
    done();
  }

 private:
  absl::Status Pull(OpKernelContext* ctx) const {
    std::vector<TablePull> pulls(count());
    TF_RETURN_IF_ERROR(CheckTraining(ctx));
    for (int i = 0; i < count(); ++i) {
      TF_RETURN_IF_ERROR(Check(ctx, i, &pulls[i]));
    }
    for (int i = 0; i < count(); ++i) {
      const Tensor& signs = Signs(ctx, i);
      const int64_t n = signs.dim_size(0);
      TensorShape shape;
      TF_RETURN_IF_ERROR(
          MakeShape(NameOf("rows", i), {n, dims_[i] + statistics_[i]}, &shape));
      Tensor* rows = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &rows));
      pulls[i].parts = {
          {signs.flat<int64_t>().data(), n, rows->flat<float>().data()}};
    }
    return PullTables(pulls, MakeParallelFor(ctx));
  }

  const Tensor& Signs(OpKernelContext* ctx, int i) const {
    return ctx->input(count() + i);
  }

  const Tensor& Training(OpKernelContext* ctx) const {
    return ctx->input(2 * count());
  }

  absl::Status CheckTraining(OpKernelContext* ctx) const {
    const Tensor& training = Training(ctx);
    if (!several()) return CheckScalar("training", training);
    return CheckVectorOf("training", training, count(), "one for each table");
  }

  // What does not depend on the outputs.
  absl::Status Check(OpKernelContext* ctx, int i, TablePull* pull) const {
    TF_RETURN_IF_ERROR(Hold(ctx, i, &pull->held));
    TF_RETURN_IF_ERROR(CheckVector(NameOf("signs", i), Signs(ctx, i)));
    TF_RETURN_IF_ERROR(CheckPulledValues(
        several() ? NameOf("dims", i) : "dim", dims_[i],
        NameOf("statistics", i), statistics_[i], pull->held.table->config()));
    pull->insert = Training(ctx).flat<bool>()(i);
    pull->with_statistics = statistics_[i] > 0;
    return absl::OkStatus();
  }

  std::vector<int64_t> dims_;
  std::vector<int64_t> statistics_;
};

class SparseTablePushOp : public TablesOp {
 public:
  explicit SparseTablePushOp(OpKernelConstruction* ctx) : TablesOp(ctx) {
    if (!several()) return;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counts", &counts_));
    OP_REQUIRES_OK(ctx, CheckListSize("counts", counts_.size(), count()));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("starts_of", &starts_of_));
    int starts;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &starts));
    OP_REQUIRES_OK(ctx, CheckListSize("starts_of", starts_of_.size(), starts));
    OP_REQUIRES_OK(ctx, CheckStartsOf(starts_of_, count()));
    int numbered;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("K", &numbered));
    OP_REQUIRES_OK(ctx, CheckNumbered(numbered));
    is_numbered_ = numbered > 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("part", &part_));
    for (int i = 0; i < count(); ++i) {
      OP_REQUIRES(ctx, counts_[i] >= 0,
                  InvalidArgument("counts[", i, "] must be at least 0, but is ",
                                  counts_[i], "."));
    }
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_OK_ASYNC(ctx, Push(ctx), done);
    done();
  }

 private:
  // Lists, of one tensor for each table; then tensors for all of them.
  enum Lists { kHandles, kSigns, kGradients, kStatistics, kLists };
  enum Shared { kHyperparameters, kStep, kTime, kShared };

  const Tensor& Of(OpKernelContext* ctx, Lists list, int i) const {
    return ctx->input(list * count() + i);
  }
  const Tensor& ForAll(OpKernelContext* ctx, Shared shared) const {
    return ctx->input(kLists * count() + shared);
  }

  absl::Status Push(OpKernelContext* ctx) const {
    std::vector<int64_t> counts = counts_;
    TF_RETURN_IF_ERROR(CheckShared(ctx, &counts));
    std::vector<TablePush> pushes(count());
    const double* hyperparameters =
        ForAll(ctx, kHyperparameters).flat<double>().data();
    for (int i = 0; i < count(); ++i) {
      TablePush& push = pushes[i];
      TF_RETURN_IF_ERROR(Hold(ctx, i, &push.held));
      TF_RETURN_IF_ERROR(CheckShapes(ctx, i, push.held.table->config().dim));
      push.batch = MakeBatch(ctx, i, hyperparameters, counts[i]);
      hyperparameters += counts[i];
    }
    for (size_t j = 0; j < starts_of_.size(); ++j) {
      TablePush& push = pushes[starts_of_[j]];
      TF_RETURN_IF_ERROR(AddStarts(ctx, static_cast<int>(j),
                                   push.held.table->config(), &push.batch));
    }
    std::optional<StepPush> step;
    TF_RETURN_IF_ERROR(GetStep(ctx, &step));
    Tensor* updated = nullptr;
    const TensorShape shape =
        several() ? TensorShape({count()}) : TensorShape({});
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &updated));
    for (int i = 0; i < count(); ++i) {
      pushes[i].updated = updated->flat<int64_t>().data() + i;
    }
    return PushTables(pushes, step, MakeParallelFor(ctx));
  }

  absl::Status GetStep(OpKernelContext* ctx,
                       std::optional<StepPush>* step) const {
    if (!is_numbered_) return absl::OkStatus();
    const Tensor& numbers = ctx->input(ctx->num_inputs() - 1);
    TF_RETURN_IF_ERROR(
        CheckVectorOf("numbers", numbers, 2, "the step and the oldest one"));
    const auto values = numbers.vec<int64_t>();
    *step = StepPush{values(0), values(1), part_};
    return absl::OkStatus();
  }

  // What new rows of a table start from.
  absl::Status AddStarts(OpKernelContext* ctx, int j, const TableConfig& config,
                         Table::PushBatch* batch) const {
    const int first = kLists * count() + kShared;
    const Tensor& signs = ctx->input(first + j);
    const Tensor& rows =
        ctx->input(first + static_cast<int>(starts_of_.size()) + j);
    const std::string signs_name = NameOf("start_signs", j);
    const std::string rows_name = NameOf("start_rows", j);
    TF_RETURN_IF_ERROR(CheckVector(signs_name, signs));
    TF_RETURN_IF_ERROR(CheckMatrix(rows_name, rows));
    if (!config.unknown.is_shared()) {
      return InvalidArgument("starts_of[", j, "] is ", starts_of_[j],
                             ", but the table '", config.name,
                             "' has no shared rows.");
    }
    if (rows.dim_size(0) != signs.dim_size(0) ||
        rows.dim_size(1) != config.dim) {
      return InvalidArgument(
          rows_name, " must be of shape [", signs.dim_size(0), ",", config.dim,
          "] (as ", signs_name, ", the table's dim), but its shape is ",
          rows.shape().DebugString(), ".");
    }
    batch->start_signs = signs.flat<int64_t>().data();
    batch->start_rows = rows.flat<float>().data();
    batch->start_count = signs.dim_size(0);
    return absl::OkStatus();
  }

  // Checks what all tables share. `*counts`: how many of the hyperparameters
  // each table has; all if there is one.
  absl::Status CheckShared(OpKernelContext* ctx,
                           std::vector<int64_t>* counts) const {
    const Tensor& hyperparameters = ForAll(ctx, kHyperparameters);
    TF_RETURN_IF_ERROR(CheckVector("hyperparameters", hyperparameters));
    int64_t left = hyperparameters.dim_size(0);
    if (!several()) *counts = {left};
    for (const int64_t count : *counts) {
      if (count > left) left = -1;
      if (left < 0) break;
      left -= count;
    }
    if (left != 0) {
      return InvalidArgument(
          "hyperparameters must have as many values as counts says, but their "
          "shape is ",
          hyperparameters.shape().DebugString(), " and counts is [",
          absl::StrJoin(*counts, ","), "].");
    }
    TF_RETURN_IF_ERROR(CheckScalar("step", ForAll(ctx, kStep)));
    return CheckScalar("time", ForAll(ctx, kTime));
  }

  absl::Status CheckShapes(OpKernelContext* ctx, int i, int64_t dim) const {
    const std::string signs_name = NameOf("signs", i);
    const Tensor& signs = Of(ctx, kSigns, i);
    TF_RETURN_IF_ERROR(CheckVector(signs_name, signs));
    const int64_t n = signs.dim_size(0);
    const Tensor& gradients = Of(ctx, kGradients, i);
    TF_RETURN_IF_ERROR(CheckMatrix(NameOf("gradients", i), gradients));
    if (gradients.dim_size(0) != n || gradients.dim_size(1) != dim) {
      return InvalidArgument(NameOf("gradients", i), " must be of shape [", n,
                             ",", dim, "] (as ", signs_name,
                             ", the table's dim), but its shape is ",
                             gradients.shape().DebugString(), ".");
    }
    const Tensor& statistics = Of(ctx, kStatistics, i);
    TF_RETURN_IF_ERROR(CheckMatrix(NameOf("statistics", i), statistics));
    if (statistics.dim_size(0) != n &&
        statistics.shape() != TensorShape({0, 0})) {
      return InvalidArgument(NameOf("statistics", i), " must be of shape [", n,
                             ",s] (a row for each of ",
                             several() ? signs_name : "the signs",
                             ") or [0,0], but its shape is ",
                             statistics.shape().DebugString(), ".");
    }
    return absl::OkStatus();
  }

  Table::PushBatch MakeBatch(OpKernelContext* ctx, int i,
                             const double* hyperparameters,
                             int64_t hyperparameter_count) const {
    const Tensor& signs = Of(ctx, kSigns, i);
    const Tensor& statistics = Of(ctx, kStatistics, i);
    Table::PushBatch batch;
    batch.signs = signs.flat<int64_t>().data();
    batch.gradients = Of(ctx, kGradients, i).flat<float>().data();
    batch.n = signs.dim_size(0);
    batch.hyperparameters = hyperparameters;
    batch.hyperparameter_count = hyperparameter_count;
    batch.step = ForAll(ctx, kStep).scalar<int64_t>()();
    batch.time = ForAll(ctx, kTime).scalar<int64_t>()();
    batch.statistics_width = statistics.dim_size(1);
    if (batch.statistics_width > 0) {
      batch.statistics = statistics.flat<float>().data();
    }
    return batch;
  }

  std::vector<int64_t> counts_;
  std::vector<int64_t> starts_of_;
  bool is_numbered_ = false;
  int64_t part_ = 0;
};

TF_EXT_REGISTER_KERNEL(SparseTablePull, SparseTablePullOp);
TF_EXT_REGISTER_KERNEL(SparseTablePush, SparseTablePushOp);
TF_EXT_REGISTER_KERNEL(SparseTablesPull, SparseTablePullOp);
TF_EXT_REGISTER_KERNEL(SparseTablesPush, SparseTablePushOp);

}  // namespace
}  // namespace tf_ext
