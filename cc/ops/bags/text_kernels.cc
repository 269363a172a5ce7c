// SPDX-License-Identifier: Apache-2.0
// The kernel that makes string tensors of columns of text.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_ext {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

class StringsOfColumnsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& text = ctx->input(0);
    const Tensor& offsets = ctx->input(1);
    const Tensor& rows = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckVector("text", text));
    OP_REQUIRES_OK(ctx, CheckMatrix("offsets", offsets));
    OP_REQUIRES_OK(ctx, CheckVector("rows", rows));
    OP_REQUIRES(ctx,
                offsets.dim_size(0) == num_outputs() && offsets.dim_size(1) > 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "offsets must be of shape [", num_outputs(),
                    ", n + 1] (columns, values), but its shape is ",
                    offsets.shape().DebugString(), ".")));
    const int64_t n = offsets.dim_size(1) - 1;
    for (int column = 0; column < num_outputs(); ++column) {
      Tensor* strings = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(column, rows.shape(), &strings));
      OP_REQUIRES_OK(ctx, Copy(text, &offsets.matrix<int64_t>()(column, 0), n,
                               rows, strings->flat<tstring>().data()));
    }
  }

 private:
  static absl::Status Copy(const Tensor& text, const int64_t* offsets,
                           int64_t n, const Tensor& rows, tstring* out) {
    const char* begin =
        reinterpret_cast<const char*>(text.flat<uint8_t>().data());
    const auto wanted = rows.flat<int64_t>();
    for (int64_t i = 0; i < wanted.size(); ++i) {
      const int64_t row = wanted(i);
      if (row < 0 || row >= n) {
        return absl::InvalidArgumentError(
            absl::StrCat("rows[", i, "] is ", row, "; allowed are 0 to ", n - 1,
                         " for offsets of ", n, " values."));
      }
      const int64_t first = offsets[row], end = offsets[row + 1];
      if (first < 0 || end < first || end > text.dim_size(0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("offsets must increase from at least 0 to at most ",
                         text.dim_size(0), ", the size of text, but value ",
                         row, " is from ", first, " up to ", end, "."));
      }
      out[i].assign(begin + first, end - first);
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>StringsOfColumns").Device(tensorflow::DEVICE_CPU),
    StringsOfColumnsOp);
}  // namespace
}  // namespace tf_ext
