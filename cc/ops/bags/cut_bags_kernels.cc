// SPDX-License-Identifier: Apache-2.0
// The kernel that divides the bags of a batch among tables.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

class CutBagsOp : public OpKernel {
 public:
  explicit CutBagsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int count = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("begins", &begins_));
    OP_REQUIRES_OK(ctx, CheckListSize("begins", begins_.size(), count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ends", &ends_));
    OP_REQUIRES_OK(ctx, CheckListSize("ends", ends_.size(), count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(ctx, CheckListSize("weighted", weighted_.size(), count));
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES_OK(ctx, CheckColumns(i, begins_[i], ends_[i], columns_));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Check(ctx));
    const int64_t* const splits = ctx->input(kRowSplits).flat<int64_t>().data();
    const int64_t batch = (ctx->input(kRowSplits).dim_size(0) - 1) / columns_;
    // A batch in which all weighted bags are empty has none.
    const bool has_weights = ctx->input(kWeights).dim_size(0) > 0;
    for (size_t i = 0; i < begins_.size(); ++i) {
      const int64_t* const first = splits + begins_[i] * batch;
      const int64_t* const last = splits + ends_[i] * batch;
      OP_REQUIRES_OK(ctx, CheckRange(ctx, i, *first, *last));
      int64_t* its_splits = nullptr;
      OP_REQUIRES_OK(
          ctx, Allocate(ctx, kRowSplits, i, last - first + 1, &its_splits));
      const int64_t start = *first;
      std::transform(first, last + 1, its_splits,
                     [start](int64_t split) { return split - start; });
      OP_REQUIRES_OK(ctx, Copy<int64_t>(ctx, kSigns, i, start, *last));
      OP_REQUIRES_OK(ctx,
                     Copy<float>(ctx, kWeights, i, start,
                                 weighted_[i] && has_weights ? *last : start));
    }
  }

 private:
  // Each output is a list of one tensor for each table.
  enum Tensors { kSigns, kRowSplits, kWeights };

  absl::Status Check(OpKernelContext* ctx) const {
    TF_RETURN_IF_ERROR(CheckVector("signs", ctx->input(kSigns)));
    const Tensor& splits = ctx->input(kRowSplits);
    TF_RETURN_IF_ERROR(CheckVector("row_splits", splits));
    const int64_t bags = splits.dim_size(0) - 1;
    if (bags < 0 || bags % columns_ != 0) {
      return InvalidArgument("row_splits must have ", columns_,
                             " * batch_size + 1 values (there are ", columns_,
                             " columns), but its shape is ",
                             splits.shape().DebugString(), ".");
    }
    const bool any =
        std::find(weighted_.begin(), weighted_.end(), true) != weighted_.end();
    if (!any) return CheckVector("weights", ctx->input(kWeights));
    return CheckOptionalVectorOf("weights", ctx->input(kWeights),
                                 ctx->input(kSigns).dim_size(0), "as signs");
  }

  absl::Status CheckRange(OpKernelContext* ctx, size_t i, int64_t start,
                          int64_t end) const {
    const int64_t n = ctx->input(kSigns).dim_size(0);
    if (0 <= start && start <= end && end <= n) return absl::OkStatus();
    return InvalidArgument("row_splits must not decrease, and be from 0 to ", n,
                           ", the number of signs, but columns ", begins_[i],
                           " to ", ends_[i], " are from ", start, " to ", end,
                           ".");
  }

  template <typename T>
  absl::Status Allocate(OpKernelContext* ctx, Tensors list, size_t i,
                        int64_t size, T** data) const {
    const int index = static_cast<int>(list * begins_.size() + i);
    return AllocateOutput(ctx, index, TensorShape({size}), data);
  }

  // The values of input `list` from `start` up to, but not including, `end`.
  template <typename T>
  absl::Status Copy(OpKernelContext* ctx, Tensors list, size_t i, int64_t start,
                    int64_t end) const {
    T* data = nullptr;
    TF_RETURN_IF_ERROR(Allocate(ctx, list, i, end - start, &data));
    std::copy_n(ctx->input(list).flat<T>().data() + (end > start ? start : 0),
                end - start, data);
    return absl::OkStatus();
  }

  int64_t columns_ = 1;
  std::vector<int64_t> begins_;
  std::vector<int64_t> ends_;
  std::vector<bool> weighted_;
};

TF_EXT_REGISTER_KERNEL(CutBags, CutBagsOp);

}  // namespace
}  // namespace tf_ext
