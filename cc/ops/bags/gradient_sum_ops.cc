// SPDX-License-Identifier: Apache-2.0
// The interface of the op that adds gradients up by row.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status SumSegmentsShape(InferenceContext* c) {
  ShapeHandle values, segments, count;
  TF_RETURN_IF_ERROR(InputOfRank(c, "values", 2, &values));
  TF_RETURN_IF_ERROR(InputOfRank(c, "segments", 1, &segments));
  TF_RETURN_IF_ERROR(InputOfRank(c, "count", 0, &count));
  DimensionHandle rows;
  if (!c->Merge(c->Dim(values, 0), c->Dim(segments, 0), &rows).ok()) {
    return InvalidArgument(
        "segments must be as many as values has rows; values is ",
        c->DebugString(values), ", segments ", c->DebugString(segments), ".");
  }
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &rows));
  c->set_output(0, c->Matrix(rows, c->Dim(values, 1)));
  return absl::OkStatus();
}

REGISTER_OP("TfExt>SumSegments")
    .Input("values: float")
    .Input("segments: int32")
    .Input("count: int64")
    .Output("sums: float")
    .SetShapeFn(SumSegmentsShape)
    .Doc(R"doc(
Sums rows by segment, in order, starting from 0.

values: `[n, dim]`.
segments: `[n]`, 0 to count - 1.
count: `[]`.
sums: `[count, dim]`.
)doc");

}  // namespace
}  // namespace tf_ext
