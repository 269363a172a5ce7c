// The interface of the op that makes string tensors of columns of text.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status StringsOfColumnsShape(InferenceContext* c) {
  // Whatever is wrong with shapes, the kernel says which column has it.
  c->set_output(0, c->Matrix(c->num_inputs() / 2, c->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("TfExt>StringsOfColumns")
    .Input("text: N * uint8")
    .Input("offsets: N * int32")
    .Output("strings: string")
    .Attr("N: int >= 1")
    .SetShapeFn(StringsOfColumnsShape)
    .Doc(R"doc(
Strings of columns that are texts and offsets, as Apache Arrow stores them.

text: each `[bytes]`, the values of a column, one after the other.
offsets: each `[n + 1]`: value i is from offsets[i] up to offsets[i + 1].
strings: `[N, n]`.
)doc");

}  // namespace
}  // namespace tf_ext
