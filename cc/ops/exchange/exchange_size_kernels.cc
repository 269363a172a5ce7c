// SPDX-License-Identifier: Apache-2.0
// Kernels by which peers agree on the sizes of the data that they exchange.
// Each replaces a dozen of TensorFlow's kernels, at a few microseconds apiece.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/support/checked_math.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

// Columns of a header after the sizes.
enum HeaderColumns { kSignsWidth, kValuesWidth, kFlag, kHeaderColumns };

class ExchangeHeaderOp : public OpKernel {
 public:
  explicit ExchangeHeaderOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int count = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lengths", &lengths_));
    OP_REQUIRES_OK(ctx, CheckListSize("lengths", lengths_.size(), count));
    for (size_t i = 0; i < lengths_.size(); ++i) {
      OP_REQUIRES(
          ctx, lengths_[i] >= 0,
          InvalidArgument("lengths[", i, "] must be at least 0, but is ",
                          lengths_[i], "."));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList split_sizes;
    OP_REQUIRES_OK(ctx, ctx->input_list("split_sizes", &split_sizes));
    const int count = split_sizes.size();
    const Tensor& flag = ctx->input(count);
    OP_REQUIRES_OK(ctx, CheckScalar("flag", flag));
    const int64_t peers = split_sizes[0].NumElements();
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES(ctx, split_sizes[i].shape() == TensorShape({peers}),
                  InvalidArgument("split_sizes[", i, "] must be of shape [",
                                  peers, "], but its shape is ",
                                  split_sizes[i].shape().DebugString(), "."));
    }
    int64_t signs_width = 0, values_width = 0;
    for (int64_t peer = 0; peer < peers; ++peer) {
      OP_REQUIRES_OK(ctx,
                     AddWidths(split_sizes, peer, &signs_width, &values_width));
    }
    TensorShape shape;
    OP_REQUIRES_OK(
        ctx, MakeShape("header", {peers, count + kHeaderColumns}, &shape));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    auto header = output->matrix<int64_t>();
    for (int64_t peer = 0; peer < peers; ++peer) {
      for (int i = 0; i < count; ++i) {
        header(peer, i) = split_sizes[i].vec<int64_t>()(peer);
      }
      header(peer, count + kSignsWidth) = signs_width;
      header(peer, count + kValuesWidth) = values_width;
      header(peer, count + kFlag) = flag.scalar<int64_t>()();
    }
  }

 private:
  // Raises the widths to those that the rows of a peer need.
  absl::Status AddWidths(const OpInputList& split_sizes, int64_t peer,
                         int64_t* signs_width, int64_t* values_width) const {
    int64_t signs = split_sizes.size() + kHeaderColumns, values = 1;
    for (int i = 0; i < split_sizes.size(); ++i) {
      const int64_t size = split_sizes[i].vec<int64_t>()(peer);
      if (size < 0) {
        return InvalidArgument("split_sizes[", i, "][", peer,
                               "] must be at least 0, but is ", size, ".");
      }
      signs = SaturatedAdd(signs, size);
      values = SaturatedAdd(values, SaturatedMultiply(size, lengths_[i]));
    }
    if (signs == kBeyondInt64 || values == kBeyondInt64) {
      return InvalidArgument(
          "split_sizes must name signs, and lengths values of "
          "them, whose numbers fit int64, but those of peer ",
          peer, " do not.");
    }
    *signs_width = std::max(*signs_width, signs);
    *values_width = std::max(*values_width, values);
    return absl::OkStatus();
  }

  std::vector<int64_t> lengths_;
};

class ExchangeAgreeOp : public OpKernel {
 public:
  explicit ExchangeAgreeOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& received = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckMatrix("received", received));
    const int64_t peers = received.dim_size(0);
    const int64_t columns = SaturatedAdd(count_, kHeaderColumns);
    OP_REQUIRES(ctx, peers > 0 && received.dim_size(1) >= columns,
                InvalidArgument("received must have a row at least, and ",
                                columns, " columns, but its shape is ",
                                received.shape().DebugString(), "."));
    const auto rows = received.matrix<int64_t>();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({count_, peers}), &output));
    auto counts = output->matrix<int64_t>();
    int64_t most[kHeaderColumns];
    for (int i = 0; i < kHeaderColumns; ++i) most[i] = rows(0, count_ + i);
    for (int64_t peer = 0; peer < peers; ++peer) {
      for (int64_t i = 0; i < count_; ++i) counts(i, peer) = rows(peer, i);
      for (int i = 0; i < kHeaderColumns; ++i) {
        most[i] = std::max<int64_t>(most[i], rows(peer, count_ + i));
      }
    }
    for (int i = 0; i < kHeaderColumns; ++i) {
      OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, 1 + i, most[i]));
    }
  }

 private:
  int64_t count_ = 0;
};

absl::Status RunExchangeWidth(OpKernelContext* ctx) {
  constexpr int64_t kMost = int64_t{1} << 40;
  constexpr int64_t kSteps = 8;  // in an octave
  int64_t wanted;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "wanted", 0, &wanted));
  const int64_t least = std::max<int64_t>(1, wanted);
  if (least > kMost) {
    return InvalidArgument("wanted must be at most ", kMost, ", but is ", least,
                           ".");
  }
  int64_t unit = 1, index = -1;
  while (least > unit * (2 * kSteps - 1)) {
    unit *= 2;
    index += kSteps;
  }
  const int64_t units = (least + unit - 1) / unit;
  TF_RETURN_IF_ERROR(SetScalarOutput(ctx, 0, units * unit));
  return SetScalarOutput(ctx, 1, static_cast<int32_t>(index + units));
}

TF_EXT_REGISTER_KERNEL(ExchangeHeader, ExchangeHeaderOp);
TF_EXT_REGISTER_KERNEL(ExchangeAgree, ExchangeAgreeOp);
TF_EXT_REGISTER_FUNCTION(ExchangeWidth);

}  // namespace
}  // namespace tf_ext
