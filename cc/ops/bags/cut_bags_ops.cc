// SPDX-License-Identifier: Apache-2.0
// The interface of the op that divides the bags of a batch among tables.

#include <cstdint>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status CutBagsShape(InferenceContext* c) {
  ShapeHandle unused, row_splits;
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &unused));
  TF_RETURN_IF_ERROR(InputOfRank(c, "row_splits", 1, &row_splits));
  TF_RETURN_IF_ERROR(InputOfRank(c, "weights", 1, &unused));
  int64_t columns;
  std::vector<int64_t> begins, ends;
  std::vector<bool> weighted;
  TF_RETURN_IF_ERROR(c->GetAttr("columns", &columns));
  TF_RETURN_IF_ERROR(c->GetAttr("begins", &begins));
  TF_RETURN_IF_ERROR(c->GetAttr("ends", &ends));
  TF_RETURN_IF_ERROR(c->GetAttr("weighted", &weighted));
  const int count = c->num_outputs() / 3;
  TF_RETURN_IF_ERROR(CheckListSize("begins", begins.size(), count));
  TF_RETURN_IF_ERROR(CheckListSize("ends", ends.size(), count));
  TF_RETURN_IF_ERROR(CheckListSize("weighted", weighted.size(), count));
  const auto splits = c->Dim(row_splits, 0);
  const bool is_known = c->ValueKnown(splits) && c->Value(splits) > 0;
  for (int i = 0; i < count; ++i) {
    TF_RETURN_IF_ERROR(CheckColumns(i, begins[i], ends[i], columns));
    c->set_output(i, c->Vector(c->UnknownDim()));
    const int64_t bags =
        is_known ? (ends[i] - begins[i]) * ((c->Value(splits) - 1) / columns)
                 : -1;
    c->set_output(count + i,
                  c->Vector(bags < 0 ? c->UnknownDim() : c->MakeDim(bags + 1)));
    c->set_output(2 * count + i,
                  c->Vector(weighted[i] ? c->UnknownDim() : c->MakeDim(0)));
  }
  return absl::OkStatus();
}

REGISTER_OP("TfExt>CutBags")
    .Input("signs: int64")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("part_signs: N * int64")
    .Output("part_row_splits: N * int64")
    .Output("part_weights: N * float")
    .Attr("N: int >= 1")
    .Attr("columns: int >= 1")
    .Attr("begins: list(int) >= 1")
    .Attr("ends: list(int) >= 1")
    .Attr("weighted: list(bool) >= 1")
    .SetShapeFn(CutBagsShape)
    .Doc(R"doc(
Copies the bags of ranges of columns.

signs: `[n]`. The signs of all bags, by column and then by example.
row_splits: `[columns * batch_size + 1]`. Where each bag begins, and the end of
  the last one; never decreases, from 0 to n.
weights: `[n]`, or `[0]` for weights of 1; any vector if no range is weighted.
part_signs: `[n_i]` each. The signs of the columns from begins[i] up to, but not
  including, ends[i].
part_row_splits: `[(ends[i] - begins[i]) * batch_size + 1]` each. Their bags,
  starting with 0.
part_weights: `[n_i]` each, or `[0]` if not weighted, or for weights of 1.
columns: The number of columns.
begins: The first column of each range.
ends: The end of each range.
weighted: Whether the weights of each range are wanted.
)doc");

}  // namespace
}  // namespace tf_ext
