// SPDX-License-Identifier: Apache-2.0
// The interface of the op that makes string tensors of columns of text.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status StringsOfColumnsShape(InferenceContext* c) {
  ShapeHandle text, offsets, rows;
  TF_RETURN_IF_ERROR(InputOfRank(c, "text", 1, &text));
  TF_RETURN_IF_ERROR(InputOfRank(c, "offsets", 2, &offsets));
  TF_RETURN_IF_ERROR(InputOfRank(c, "rows", 1, &rows));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, rows);
  return absl::OkStatus();
}

REGISTER_OP("TfExt>StringsOfColumns")
    .Input("text: uint8")
    .Input("offsets: int64")
    .Input("rows: int64")
    .Output("strings: columns * string")
    .Attr("columns: int >= 1")
    .SetShapeFn(StringsOfColumnsShape)
    .Doc(R"doc(
Strings of some rows of columns that are a text and offsets.

text: `[bytes]`, the values of all columns.
offsets: `[columns, n + 1]`: value i of a column is the text from offsets[i] up
  to offsets[i + 1].
rows: `[m]`, 0 to n - 1.
strings: for each column `[m]`.
)doc");

}  // namespace
}  // namespace tf_ext
