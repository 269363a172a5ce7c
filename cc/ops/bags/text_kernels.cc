// SPDX-License-Identifier: Apache-2.0
// The kernel that makes string tensors of columns of text.

#include <cstdint>

#include "cc/ops/kernel_util.h"

namespace tf_ext {
namespace {

absl::Status CopyStrings(const Tensor& text, const int64_t* offsets, int64_t n,
                         const Tensor& rows, tstring* out) {
  const char* begin =
      reinterpret_cast<const char*>(text.flat<uint8_t>().data());
  const auto wanted = rows.flat<int64_t>();
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const int64_t row = wanted(i);
    if (row < 0 || row >= n) {
      return InvalidArgument("rows[", i, "] is ", row, "; allowed are 0 to ",
                             n - 1, " for offsets of ", n, " values.");
    }
    const int64_t first = offsets[row], end = offsets[row + 1];
    if (first < 0 || end < first || end > text.dim_size(0)) {
      return InvalidArgument(
          "offsets must increase from at least 0 to at most ", text.dim_size(0),
          ", the size of text, but value ", row, " is from ", first, " up to ",
          end, ".");
    }
    out[i].assign(begin + first, end - first);
  }
  return absl::OkStatus();
}

absl::Status RunStringsOfColumns(OpKernelContext* ctx) {
  const Tensor& text = ctx->input(0);
  const Tensor& offsets = ctx->input(1);
  const Tensor& rows = ctx->input(2);
  TF_RETURN_IF_ERROR(CheckVector("text", text));
  TF_RETURN_IF_ERROR(CheckMatrix("offsets", offsets));
  TF_RETURN_IF_ERROR(CheckVector("rows", rows));
  const int columns = ctx->num_outputs();
  if (offsets.dim_size(0) != columns || offsets.dim_size(1) == 0) {
    return InvalidArgument("offsets must be of shape [", columns,
                           ", n + 1] (columns, values), but its shape is ",
                           offsets.shape().DebugString(), ".");
  }
  const int64_t n = offsets.dim_size(1) - 1;
  for (int column = 0; column < columns; ++column) {
    tstring* strings = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, column, rows.shape(), &strings));
    TF_RETURN_IF_ERROR(CopyStrings(text, &offsets.matrix<int64_t>()(column, 0),
                                   n, rows, strings));
  }
  return absl::OkStatus();
}

TF_EXT_REGISTER_FUNCTION(StringsOfColumns);

}  // namespace
}  // namespace tf_ext
