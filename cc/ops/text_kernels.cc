// The kernel that makes string tensors of columns of text.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_ext {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

absl::Status CheckColumn(int column, const Tensor& text, const Tensor& offsets,
                         int64_t rows) {
  TF_RETURN_IF_ERROR(CheckVector(absl::StrCat("text[", column, "]"), text));
  TF_RETURN_IF_ERROR(
      CheckVector(absl::StrCat("offsets[", column, "]"), offsets));
  if (offsets.dim_size(0) != rows + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offsets must be of one size, at least 1, but offsets[", column,
        "] is of size ", offsets.dim_size(0), ", offsets[0] of size ", rows + 1,
        "."));
  }
  const auto ends = offsets.vec<int32_t>();
  const bool rises =
      ends(0) >= 0 && std::is_sorted(ends.data(), ends.data() + ends.size());
  if (!rises || ends(rows) > text.dim_size(0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offsets[", column, "] must rise from at least 0 to at most ",
        text.dim_size(0), ", the size of text[", column, "]."));
  }
  return absl::OkStatus();
}

class StringsOfColumnsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OpInputList texts, offsets;
    OP_REQUIRES_OK(ctx, ctx->input_list("text", &texts));
    OP_REQUIRES_OK(ctx, ctx->input_list("offsets", &offsets));
    OP_REQUIRES_OK(ctx, CheckVector("offsets[0]", offsets[0]));
    const int64_t rows = std::max<int64_t>(offsets[0].dim_size(0) - 1, 0);
    for (int i = 0; i < texts.size(); ++i) {
      OP_REQUIRES_OK(ctx, CheckColumn(i, texts[i], offsets[i], rows));
    }
    Tensor* strings = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({texts.size(), rows}),
                                  &strings));
    tstring* out = strings->flat<tstring>().data();
    for (int i = 0; i < texts.size(); ++i) {
      const char* text =
          reinterpret_cast<const char*>(texts[i].flat<uint8_t>().data());
      const int32_t* ends = offsets[i].flat<int32_t>().data();
      for (int64_t row = 0; row < rows; ++row) {
        (out++)->assign(text + ends[row], ends[row + 1] - ends[row]);
      }
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("TfExt>StringsOfColumns").Device(tensorflow::DEVICE_CPU),
    StringsOfColumnsOp);
}  // namespace
}  // namespace tf_ext
