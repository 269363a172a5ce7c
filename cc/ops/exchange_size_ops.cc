// The interface of the ops by which peers agree on the sizes of what they
// send to each other.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

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

absl::Status ExchangeWidthShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "wanted", 0, &unused));
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Scalar());
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
What a peer says of the signs that it sends to others, in front of them.

split_sizes: `[peers]` each, how many signs of each kind go to each peer.
flag: `[]`, any number, of which all learn the largest.
header: `[peers, N + 3]`. Row p has how many signs of each kind go to peer p;
  then, the same in all rows, how many columns the longest row of header and
  signs has, how many that of a number and the signs' values, and `flag`.
lengths: how many values each kind of signs has, N of them.
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
What follows from the headers that came from all peers; the same for all.

received: `[peers, width]`, rows that begin with a header of ExchangeHeader.
counts: `[count, peers]`, how many signs of each kind come from each peer.
signs_width: `[]`, the columns of header and signs of the peer that needs most.
values_width: `[]`, the columns of a number and values of the one that needs
  most.
flag: `[]`, the largest.
count: how many kinds of signs there are.
)doc");

REGISTER_OP("TfExt>ExchangeWidth")
    .Input("wanted: int64")
    .Output("width: int64")
    .Output("index: int32")
    .SetShapeFn(ExchangeWidthShape)
    .Doc(R"doc(
Rounds a number of columns up to one of a few.

They are 1 to 15 and, times a power of two, 8 to 15: at most 12.5 % are added,
and eight of them are in an octave.

wanted: `[]`, at most 2^40.
width: `[]`, the smallest of them that is not less; 1 for less than that.
index: `[]`, which of them that is, from 0 on.
)doc");

}  // namespace
}  // namespace tf_ext
