// SPDX-License-Identifier: Apache-2.0
// The interface of the ops by which peers agree on the sizes of the data that
// they exchange.

#include <cstdint>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status ExchangeHeaderShape(InferenceContext* c) {
  std::vector<ShapeHandle> split_sizes;
  TF_RETURN_IF_ERROR(c->input("split_sizes", &split_sizes));
  DimensionHandle peers = c->UnknownDim();
  for (const ShapeHandle& sizes : split_sizes) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->WithRank(sizes, 1, &shape));
    TF_RETURN_IF_ERROR(c->Merge(peers, c->Dim(shape, 0), &peers));
  }
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "flag", 0, &unused));
  c->set_output(0,
                c->Matrix(peers, static_cast<int64_t>(split_sizes.size()) + 3));
  return absl::OkStatus();
}

absl::Status ExchangeAgreeShape(InferenceContext* c) {
  ShapeHandle received;
  TF_RETURN_IF_ERROR(InputOfRank(c, "received", 2, &received));
  int64_t count;
  TF_RETURN_IF_ERROR(c->GetAttr("count", &count));
  c->set_output(0, c->Matrix(c->MakeDim(count), c->Dim(received, 0)));
  for (int i = 1; i < 4; ++i) c->set_output(i, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfExt>ExchangeHeader")
    .Input("split_sizes: N * int64")
    .Input("flag: int64")
    .Output("header: int64")
    .Attr("N: int >= 1")
    .Attr("lengths: list(int) >= 1")
    .SetShapeFn(ExchangeHeaderShape)
    .Doc(R"doc(
Makes the headers that a peer sends ahead of its signs.

split_sizes: `[peers]` each, the number of signs of each kind for each peer.
flag: `[]`, any number; all peers receive the maximum.
header: `[peers, N + 3]`. Row p has the numbers of signs of each kind for peer
  p; then, the same in all rows, the columns of the longest row of a header and
  signs, those of the longest row of a number and the signs' values, and `flag`.
lengths: the number of values per sign of each kind, N of them.
)doc");

REGISTER_OP("TfExt>ExchangeAgree")
    .Input("received: int64")
    .Output("counts: int64")
    .Output("signs_width: int64")
    .Output("values_width: int64")
    .Output("flag: int64")
    .Attr("count: int >= 1")
    .SetShapeFn(ExchangeAgreeShape)
    .Doc(R"doc(
Combines the headers of all peers into sizes on which all agree.

received: `[peers, width]`, rows that start with a header of ExchangeHeader.
counts: `[count, peers]`, the number of signs of each kind from each peer.
signs_width: `[]`, the maximum over the peers of the columns of header and
  signs.
values_width: `[]`, the maximum over the peers of the columns of a number and
  values.
flag: `[]`, the maximum.
count: the number of kinds of signs.
)doc");

REGISTER_OP("TfExt>ExchangeWidth")
    .Input("wanted: int64")
    .Output("width: int64")
    .Output("index: int32")
    .SetShapeFn(Shapes({{"wanted"}}, {{}, {}}))
    .Doc(R"doc(
Rounds a number of columns up to one of a small set of widths.

These are 1 to 15, and 8 to 15 times a power of two: at most 12.5 % is added,
with eight widths per octave.

wanted: `[]`, at most 2^40.
width: `[]`, the smallest width that is not less; at least 1.
index: `[]`, the index of the width in the set.
)doc");

}  // namespace
}  // namespace tf_ext
