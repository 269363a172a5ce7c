// SPDX-License-Identifier: Apache-2.0
// The interface of the ops around an all-to-all collective: values for peers
// into one buffer, and out of one.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status ExchangePackShape(InferenceContext* c) {
  std::vector<ShapeHandle> values, split_sizes, header, width;
  TF_RETURN_IF_ERROR(c->input("values", &values));
  TF_RETURN_IF_ERROR(c->input("split_sizes", &split_sizes));
  TF_RETURN_IF_ERROR(c->input("header", &header));
  TF_RETURN_IF_ERROR(c->input("width", &width));
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->WithRank(header[0], 2, &shape));
  DimensionHandle peers = c->Dim(shape, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(values[i], 1, &shape));
    TF_RETURN_IF_ERROR(c->WithRank(split_sizes[i], 1, &shape));
    TF_RETURN_IF_ERROR(c->Merge(peers, c->Dim(shape, 0), &peers));
  }
  TF_RETURN_IF_ERROR(c->WithRank(width[0], 0, &shape));
  DimensionHandle columns;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(c->num_inputs() - 1, &columns));
  c->set_output(0, c->Matrix(peers, columns));
  return absl::OkStatus();
}

// Checks `packed` and `counts`, for values with rows of `dims`.
absl::Status PackedShape(InferenceContext* c, std::vector<int32_t>* dims_attr) {
  ShapeHandle packed, counts;
  TF_RETURN_IF_ERROR(InputOfRank(c, "packed", 2, &packed));
  TF_RETURN_IF_ERROR(InputOfRank(c, "counts", 2, &counts));
  TF_RETURN_IF_ERROR(c->GetAttr("dims", dims_attr));
  const std::vector<int32_t>& dims = *dims_attr;
  if (std::any_of(dims.begin(), dims.end(), [](int32_t d) { return d < 0; })) {
    return absl::InvalidArgumentError("dims must not be negative.");
  }
  DimensionHandle unused;
  if (!c->Merge(c->Dim(counts, 1), c->Dim(packed, 0), &unused).ok() ||
      !c->WithValue(c->Dim(counts, 0), static_cast<int64_t>(dims.size()),
                    &unused)
           .ok()) {
    return InvalidArgument("counts must be of shape [", dims.size(),
                           ", peers] (there are so many dims; packed is ",
                           c->DebugString(packed), "), but its shape is ",
                           c->DebugString(counts), ".");
  }
  return absl::OkStatus();
}

absl::Status ExchangeUnpackShape(InferenceContext* c) {
  std::vector<int32_t> dims;
  TF_RETURN_IF_ERROR(PackedShape(c, &dims));
  TF_RETURN_IF_ERROR(CheckListSize("dims", dims.size(), c->num_outputs()));
  bool flat = false;
  TF_RETURN_IF_ERROR(c->GetAttr("flat", &flat));
  for (size_t i = 0; i < dims.size(); ++i) {
    const DimensionHandle rows = c->UnknownDim();
    c->set_output(
        static_cast<int>(i),
        flat ? c->Vector(rows) : c->Matrix(rows, c->MakeDim(dims[i])));
  }
  return absl::OkStatus();
}

absl::Status ExchangePullShape(InferenceContext* c) {
  std::vector<ShapeHandle> handles, signs, split_sizes, training;
  TF_RETURN_IF_ERROR(c->input("handles", &handles));
  TF_RETURN_IF_ERROR(c->input("signs", &signs));
  TF_RETURN_IF_ERROR(c->input("split_sizes", &split_sizes));
  TF_RETURN_IF_ERROR(c->input("training", &training));
  ShapeHandle unused;
  DimensionHandle peers = c->UnknownDim();
  for (size_t i = 0; i < signs.size(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(handles[i], 0, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(signs[i], 1, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(training[i], 0, &unused));
    ShapeHandle sizes;
    TF_RETURN_IF_ERROR(c->WithRank(split_sizes[i], 1, &sizes));
    TF_RETURN_IF_ERROR(c->Merge(peers, c->Dim(sizes, 0), &peers));
  }
  TF_RETURN_IF_ERROR(InputOfRank(c, "width", 0, &unused));
  DimensionHandle columns;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(c->num_inputs() - 1, &columns));
  c->set_output(0, c->Matrix(peers, columns));
  return absl::OkStatus();
}

absl::Status ExchangeSumShape(InferenceContext* c) {
  std::vector<int32_t> dims, sum_of;
  std::vector<ShapeHandle> segments, signs;
  TF_RETURN_IF_ERROR(PackedShape(c, &dims));
  TF_RETURN_IF_ERROR(c->GetAttr("sum_of", &sum_of));
  TF_RETURN_IF_ERROR(c->input("segments", &segments));
  TF_RETURN_IF_ERROR(c->input("signs", &signs));
  ShapeHandle offset;
  TF_RETURN_IF_ERROR(InputOfRank(c, "offset", 0, &offset));
  std::vector<DimensionHandle> widths(segments.size());
  for (DimensionHandle& width : widths) width = c->UnknownDim();
  // The kernel refuses other lengths and numbers.
  const size_t values = std::min(sum_of.size(), dims.size());
  for (size_t value = 0; value < values; ++value) {
    const auto sum = static_cast<size_t>(sum_of[value]);
    if (sum >= widths.size()) continue;
    DimensionHandle& width = widths[sum];
    TF_RETURN_IF_ERROR(c->Merge(width, c->MakeDim(dims[value]), &width));
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(c->WithRank(segments[i], 1, &unused));
    TF_RETURN_IF_ERROR(c->WithRank(signs[i], 1, &unused));
    c->set_output(static_cast<int>(i),
                  c->Matrix(c->Dim(signs[i], 0), widths[i]));
  }
  return absl::OkStatus();
}

REGISTER_OP("TfExt>ExchangePack")
    .Input("values: N * T")
    .Input("split_sizes: N * int64")
    .Input("header: T")
    .Input("width: int64")
    .Output("packed: T")
    .Attr("N: int >= 1")
    .Attr("T: {int64, float}")
    .Attr("limit: float = 0")
    .Attr("all_or_none: bool = false")
    .SetShapeFn(ExchangePackShape)
    .Doc(R"doc(
Packs the values for each peer into one row of a matrix.

Row p is row p of `header`, then peer p's part of each of `values`, flattened,
then zeros.

With a `limit`, the first column of the header is replaced: by 1 if a value for
any peer is NaN or outside [-limit, limit], else by 0.

values: `[n_i, ...]` each, ordered by peer.
split_sizes: `[peers]` each, how many of the first dimension go to each peer;
  their sum is n_i.
header: `[peers, h]`.
width: `[]`, columns of the result; at least those of any row.
packed: `[peers, width]`.
limit: 0 for none; only for floats.
all_or_none: whether `width` may be less, down to the columns of the header:
  all values are then replaced by zeros.
)doc");

REGISTER_OP("TfExt>ExchangeUnpack")
    .Input("packed: T")
    .Input("counts: int64")
    .Output("values: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {int64, float}")
    .Attr("offset: int >= 0")
    .Attr("dims: list(int) >= 1")
    .Attr("flat: bool = false")
    .SetShapeFn(ExchangeUnpackShape)
    .Doc(R"doc(
Unpacks the values from the peers: the inverse of ExchangePack.

packed: `[peers, width]`, row p from peer p.
counts: `[N, peers]`, how many rows of each of `values` are from each peer.
values: `[sum of counts[i], dims[i]]` each, ordered by peer.
offset: columns before the values, which are skipped.
dims: length of a row of each of `values`, N of them.
flat: whether `values` are vectors, of one row after the other.
)doc");

REGISTER_OP("TfExt>ExchangePull")
    .Input("handles: N * resource")
    .Input("signs: N * int64")
    .Input("split_sizes: N * int64")
    .Input("training: N * bool")
    .Input("width: int64")
    .Output("packed: float")
    .Attr("N: int >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("statistics: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(ExchangePullShape)
    .Doc(R"doc(
Reads weights and statistics into one row of a matrix for each peer.

Equivalent to a SparseTablePull of each table followed by an ExchangePack
without a header, but without the copy.

handles: the tables.
signs: `[n_i]` each, ordered by peer.
split_sizes: `[peers]` each, how many of the signs come from each peer; their
  sum is n_i.
training: `[]` each, whether absent signs are inserted.
width: `[]`, columns of the result; at least those of any row.
packed: `[peers, width]`.
dims: the number of weights in a row of each table.
statistics: how many statistics follow the weights of each table's rows: 0, or
  how many the table has. Empty: none.
)doc");

REGISTER_OP("TfExt>ExchangeSum")
    .Input("packed: float")
    .Input("counts: int64")
    .Input("segments: M * int32")
    .Input("signs: M * int64")
    .Input("offset: int64")
    .Output("sums: M * float")
    .Attr("M: int >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("sum_of: list(int) >= 1")
    .SetShapeFn(ExchangeSumShape)
    .Doc(R"doc(
Sums rows of the values from the peers, without the copies of ExchangeUnpack.

The rows that a sum adds are those of its values, one value after the other,
each ordered by peer; they are added in that order.

packed: `[peers, width]`, row p from peer p.
counts: `[values, peers]`, how many rows of each value are from each peer.
segments: `[n_i]` each, the row of the sum, 0 to u_i - 1, to which each of its
  values' rows is added.
signs: `[u_i]` each, of the rows of the sum. Only their number counts.
sums: `[u_i, dim]` each.
offset: `[]`, columns before the values, which are skipped.
dims: length of a row of each value.
sum_of: the sum to which each value belongs; the values of a sum must have equal
  dims.
)doc");

REGISTER_OP("TfExt>ExchangeWeigh")
    .Input("values: N * float")
    .Input("weight: float")
    .Output("weighted: N * float")
    .Attr("N: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      for (int i = 0; i + 1 < c->num_inputs(); ++i) {
        c->set_output(i, c->input(i));
      }
      return InputOfRank(c, "weight", 0, &unused);
    })
    .Doc(R"doc(
Multiplies each of some tensors by a weight; by 0, what is not finite as well.

values: of any shapes.
weight: `[]`.
weighted: of the same shapes.
)doc");

REGISTER_OP("TfExt>RaiseError")
    .Input("error: string")
    .Output("same: string")
    // Else it could be computed while a graph is optimised, or be left out.
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle error;
      TF_RETURN_IF_ERROR(InputOfRank(c, "error", 0, &error));
      c->set_output(0, error);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Raises InvalidArgumentError with the message `error`, unless it is empty.

error: `[]`.
same: `[]`, the empty string.
)doc");

}  // namespace
}  // namespace tf_ext
