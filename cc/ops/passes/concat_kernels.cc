// SPDX-License-Identifier: Apache-2.0
// The kernel that combines bags of several tables into parts of longer vectors.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/bags/combine.h"
#include "cc/core/support/checked_math.h"
#include "cc/core/support/parallel.h"
#include "cc/ops/bags/bag_inputs.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

class CombineBagsConcatOp : public OpKernel {
 public:
  explicit CombineBagsConcatOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int tables = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &others_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("out_type", &out_type_));
    OP_REQUIRES_OK(ctx, DealCombiners(ctx, tables));
    std::vector<int32_t> places;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("places", &places));
    OP_REQUIRES_OK(ctx, CheckListSize("places", places.size(), tables));
    is_table_.assign(tables + others_, false);
    int32_t last = -1;
    for (const int32_t place : places) {
      OP_REQUIRES(ctx, place > last && place < tables + others_,
                  InvalidArgument("places must increase, from at least 0 to ",
                                  tables + others_ - 1, " at most, but are ",
                                  absl::StrJoin(places, ", "), "."));
      is_table_[place] = true;
      last = place;
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const int tables = static_cast<int>(combiners_.size());
    std::vector<Bags> bags(tables);
    std::vector<int64_t> widths(tables);
    for (int i = 0; i < tables; ++i) {
      OP_REQUIRES_OK(
          ctx,
          MakeBags({ctx->input(i), ctx->input(tables + i),
                    ctx->input(2 * tables + i), ctx->input(3 * tables + i)},
                   absl::StrCat("[", i, "]"), combiners_[i], &bags[i]));
      OP_REQUIRES_OK(ctx, CombinedWidth(bags[i], &widths[i]));
      OP_REQUIRES_OK(ctx, CheckBatch(absl::StrCat("row_splits[", i, "]"),
                                     bags[i].batch, bags[0].batch));
    }
    std::vector<int64_t> starts;
    int64_t width = 0;
    OP_REQUIRES_OK(ctx,
                   FindStarts(ctx, bags[0].batch, widths, &starts, &width));
    TensorShape shape;
    OP_REQUIRES_OK(ctx,
                   MakeShape("concatenated", {bags[0].batch, width}, &shape));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    for (int i = 0; i < tables; ++i) {
      OP_REQUIRES_OK(ctx, OutputShape(ctx, i, bags[i].batch, widths[i]));
    }
    if (output->NumElements() > 0) Write(ctx, bags, starts, output);
  }

 private:
  // What a thread copies at a time: some 30 microseconds of work.
  static constexpr int64_t kFloatsPerBlock = 64 << 10;

  absl::Status DealCombiners(OpKernelConstruction* ctx, int tables) {
    std::vector<Combiner> all;
    std::vector<int32_t> columns;
    TF_RETURN_IF_ERROR(GetCombiners(ctx, &all));
    TF_RETURN_IF_ERROR(ctx->GetAttr("columns", &columns));
    TF_RETURN_IF_ERROR(CheckListSize("columns", columns.size(), tables));
    auto next = all.begin();
    bool is_valid = true;
    for (const int32_t count : columns) {
      is_valid = count >= 1 && count <= all.end() - next;
      if (!is_valid) break;
      combiners_.emplace_back(next, next + count);
      next += count;
    }
    if (is_valid && next == all.end()) return absl::OkStatus();
    return InvalidArgument("columns must be at least 1 each, and ", all.size(),
                           " together (the number of combiners), but are ",
                           absl::StrJoin(columns, ", "), ".");
  }

  static absl::Status CheckBatch(const std::string& name, int64_t batch,
                                 int64_t wanted) {
    if (batch == wanted) return absl::OkStatus();
    return InvalidArgument(name, " must be of a batch of ", wanted,
                           " (as row_splits[0]), but is of ", batch, ".");
  }

  const Tensor& Other(OpKernelContext* ctx, int i) const {
    return ctx->input(4 * static_cast<int>(combiners_.size()) + i);
  }

  // The first column of each of the tables, then of the others.
  absl::Status FindStarts(OpKernelContext* ctx, int64_t batch,
                          const std::vector<int64_t>& widths,
                          std::vector<int64_t>* starts, int64_t* width) const {
    starts->resize(is_table_.size());
    int table = 0;
    int other = 0;
    for (const bool is_table : is_table_) {
      if (is_table) {
        (*starts)[table] = *width;
        *width = SaturatedAdd(*width, widths[table++]);
        continue;
      }
      const Tensor& tensor = Other(ctx, other);
      const std::string name = absl::StrCat("others[", other, "]");
      TF_RETURN_IF_ERROR(CheckMatrix(name, tensor));
      TF_RETURN_IF_ERROR(CheckBatch(name, tensor.dim_size(0), batch));
      (*starts)[widths.size() + other++] = *width;
      *width = SaturatedAdd(*width, tensor.dim_size(1));
    }
    return absl::OkStatus();
  }

  absl::Status OutputShape(OpKernelContext* ctx, int i, int64_t batch,
                           int64_t width) const {
    Tensor* shape = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(1 + i, TensorShape({2}), &shape));
    if (out_type_ == tensorflow::DT_INT64) {
      shape->flat<int64_t>()(0) = batch;
      shape->flat<int64_t>()(1) = width;
      return absl::OkStatus();
    }
    if (std::max(batch, width) > INT32_MAX) {
      return InvalidArgument("shapes must be int64 for a shape of [", batch,
                             ",", width, "], but are int32.");
    }
    shape->flat<int32_t>()(0) = static_cast<int32_t>(batch);
    shape->flat<int32_t>()(1) = static_cast<int32_t>(width);
    return absl::OkStatus();
  }

  void Write(OpKernelContext* ctx, const std::vector<Bags>& bags,
             const std::vector<int64_t>& starts, Tensor* output) const {
    const ParallelFor parallel_for = MakeParallelFor(ctx);
    const int64_t stride = output->dim_size(1);
    float* const to = output->flat<float>().data();
    std::vector<float*> outs;
    for (size_t i = 0; i < bags.size(); ++i) outs.push_back(to + starts[i]);
    CombineBags(bags, parallel_for, stride, outs);
    for (int i = 0; i < others_; ++i) {
      Copy(Other(ctx, i), stride, parallel_for, to + starts[bags.size() + i]);
    }
  }

  static void Copy(const Tensor& tensor, int64_t stride,
                   const ParallelFor& parallel_for, float* to) {
    const int64_t batch = tensor.dim_size(0);
    const int64_t width = tensor.dim_size(1);
    const float* const from = tensor.flat<float>().data();
    if (tensor.NumElements() == 0) return;
    const int64_t blocks =
        std::clamp<int64_t>(batch * width / kFloatsPerBlock, 1, batch);
    RunBlocks(blocks, parallel_for, [=](int64_t block) {
      const int64_t end = batch * (block + 1) / blocks;
      for (int64_t b = batch * block / blocks; b < end; ++b) {
        std::memcpy(to + b * stride, from + b * width, width * sizeof(float));
      }
    });
  }

  std::vector<std::vector<Combiner>> combiners_;  // of each table
  std::vector<bool> is_table_;                    // of what is at each place
  int others_ = 0;
  DataType out_type_ = tensorflow::DT_INT32;
};

TF_EXT_REGISTER_KERNEL(CombineBagsConcat, CombineBagsConcatOp);

}  // namespace
}  // namespace tf_ext
