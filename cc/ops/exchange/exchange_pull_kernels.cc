// SPDX-License-Identifier: Apache-2.0
// The kernel that reads rows into the send buffer of a collective.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_access.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

class ExchangePullOp : public OpKernel {
 public:
  explicit ExchangePullOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    int count = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES_OK(ctx, CheckListSize("dims", dims_.size(), count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("statistics", &statistics_));
    if (statistics_.empty()) statistics_.resize(dims_.size());
    OP_REQUIRES_OK(ctx, CheckListSize("statistics", statistics_.size(), count));
  }

  void Compute(OpKernelContext* ctx) override {
    Inputs inputs;
    std::vector<TablePull> pulls(dims_.size());
    OP_REQUIRES_OK(ctx, GetInputs(ctx, &inputs, &pulls));
    TensorShape shape;
    OP_REQUIRES_OK(ctx,
                   MakeShape("packed", {inputs.peers, inputs.width}, &shape));
    float* packed = nullptr;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, shape, &packed));
    LayOut(inputs, packed, &pulls);
    OP_REQUIRES_OK(ctx, PullTables(pulls, MakeParallelFor(ctx)));
  }

 private:
  struct Inputs {
    OpInputList signs, split_sizes, training;
    int64_t peers;
    int64_t width;
  };

  absl::Status GetInputs(OpKernelContext* ctx, Inputs* inputs,
                         std::vector<TablePull>* pulls) const {
    TF_RETURN_IF_ERROR(ctx->input_list("signs", &inputs->signs));
    TF_RETURN_IF_ERROR(ctx->input_list("split_sizes", &inputs->split_sizes));
    TF_RETURN_IF_ERROR(ctx->input_list("training", &inputs->training));
    TF_RETURN_IF_ERROR(
        ScalarInput(ctx, "width", ctx->num_inputs() - 1, &inputs->width));
    inputs->peers = inputs->split_sizes[0].NumElements();
    for (int i = 0; i < inputs->signs.size(); ++i) {
      const std::string name = absl::StrCat("split_sizes[", i, "]");
      const Tensor& sizes = inputs->split_sizes[i];
      TF_RETURN_IF_ERROR(
          CheckVector(absl::StrCat("signs[", i, "]"), inputs->signs[i]));
      TF_RETURN_IF_ERROR(
          CheckScalar(absl::StrCat("training[", i, "]"), inputs->training[i]));
      if (sizes.shape() != TensorShape({inputs->peers})) {
        return InvalidArgument(name, " must be of shape [", inputs->peers,
                               "], but its shape is ",
                               sizes.shape().DebugString(), ".");
      }
      TF_RETURN_IF_ERROR(
          CheckSplitSizes(name, sizes, inputs->signs[i].dim_size(0),
                          absl::StrCat("the number of signs[", i, "]")));
      TablePull& pull = (*pulls)[i];
      TF_RETURN_IF_ERROR(
          LookupTable(ctx, i, &pull.held.table, &pull.held.counts));
      TF_RETURN_IF_ERROR(
          CheckPulledValues(absl::StrCat("dims[", i, "]"), dims_[i],
                            absl::StrCat("statistics[", i, "]"), statistics_[i],
                            pull.held.table->config()));
      pull.insert = inputs->training[i].scalar<bool>()();
      pull.with_statistics = statistics_[i] > 0;
    }
    return CheckWidth(inputs->width, Needed(*inputs));
  }

  // The number of values that are read of each sign.
  int64_t RowLength(size_t i) const { return dims_[i] + statistics_[i]; }

  // The number of columns of each peer's row.
  std::vector<int64_t> Needed(const Inputs& inputs) const {
    std::vector<int64_t> needed(inputs.peers, 0);
    for (size_t i = 0; i < dims_.size(); ++i) {
      const auto sizes = inputs.split_sizes[i].vec<int64_t>();
      for (int64_t peer = 0; peer < inputs.peers; ++peer) {
        needed[peer] += sizes(peer) * RowLength(i);
      }
    }
    return needed;
  }

  // The destinations of the rows; the rest is filled with zeros.
  void LayOut(const Inputs& inputs, float* packed,
              std::vector<TablePull>* pulls) const {
    std::vector<const int64_t*> signs;
    for (const Tensor& each : inputs.signs) {
      signs.push_back(each.flat<int64_t>().data());
    }
    for (int64_t peer = 0; peer < inputs.peers; ++peer) {
      int64_t column = 0;
      for (size_t i = 0; i < signs.size(); ++i) {
        const int64_t n = inputs.split_sizes[i].vec<int64_t>()(peer);
        (*pulls)[i].parts.push_back({signs[i], n, packed + column});
        signs[i] += n;
        column += n * RowLength(i);
      }
      std::fill(packed + column, packed + inputs.width, 0.0f);
      packed += inputs.width;
    }
  }

  std::vector<int64_t> dims_;
  std::vector<int64_t> statistics_;
};

TF_EXT_REGISTER_KERNEL(ExchangePull, ExchangePullOp);

}  // namespace
}  // namespace tf_ext
