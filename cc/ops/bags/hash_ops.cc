// SPDX-License-Identifier: Apache-2.0
// The interface of the op that turns raw feature values into signs.

#include <cstdint>
#include <string>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

// The batch size that input `i` shows, as far as its shapes are known.
absl::Status InputBatch(InferenceContext* c, int i, ShapeHandle values,
                        ShapeHandle row_splits, DimensionHandle* batch) {
  *batch = c->UnknownDim();
  ShapeHandle unused;
  if (!c->WithRank(row_splits, 1, &unused).ok()) {
    return InvalidArgument("row_splits[", i,
                           "] must be a vector, but its shape is ",
                           c->DebugString(row_splits), ".");
  }
  if (!c->WithRankAtLeast(values, 1, &unused).ok()) {
    return InvalidArgument(
        "values[", i,
        "] must have a rank of at least 1, the batch, but its"
        " shape is ",
        c->DebugString(values), ".");
  }
  if (!c->RankKnown(row_splits)) return absl::OkStatus();
  const DimensionHandle splits = c->Dim(row_splits, 0);
  if (!c->ValueKnown(splits)) return absl::OkStatus();
  if (c->Value(splits) > 0) {
    *batch = c->MakeDim(c->Value(splits) - 1);
  } else if (c->RankKnown(values)) {
    *batch = c->Dim(values, 0);
  }
  return absl::OkStatus();
}

absl::Status HashCategoryShape(InferenceContext* c) {
  std::vector<std::string> namespaces;
  TF_RETURN_IF_ERROR(c->GetAttr("namespaces", &namespaces));
  bool return_error;
  TF_RETURN_IF_ERROR(c->GetAttr("return_error", &return_error));
  std::vector<ShapeHandle> values, row_splits, weights;
  TF_RETURN_IF_ERROR(c->input("values", &values));
  TF_RETURN_IF_ERROR(c->input("row_splits", &row_splits));
  TF_RETURN_IF_ERROR(c->input("weights", &weights));
  if (values.size() != row_splits.size()) {
    return InvalidArgument(
        "There must be as many row_splits and weights as values, "
        "but there are ",
        row_splits.size(), " and ", values.size(), ".");
  }

  DimensionHandle batch = c->UnknownDim();
  bool no_weights = true;
  for (size_t i = 0; i < values.size(); ++i) {
    DimensionHandle input_batch;
    TF_RETURN_IF_ERROR(
        InputBatch(c, i, values[i], row_splits[i], &input_batch));
    if (return_error) {
      // Other batch sizes are an error that the kernel returns.
      if (i == 0) batch = input_batch;
    } else {
      // A merge that fails leaves its result without a value.
      const DimensionHandle before = batch;
      if (!c->Merge(before, input_batch, &batch).ok()) {
        return InvalidArgument(
            "All values must have the same batch size, but values[", i,
            "] has ", c->Value(input_batch), " and those before it ",
            c->Value(before), ".");
      }
    }
    const DimensionHandle size = c->NumElements(weights[i]);
    no_weights = no_weights && c->ValueKnown(size) && c->Value(size) == 0;
  }

  const DimensionHandle signs = c->UnknownDim();
  DimensionHandle splits;
  TF_RETURN_IF_ERROR(
      c->Multiply(batch, static_cast<int64_t>(namespaces.size()), &splits));
  TF_RETURN_IF_ERROR(c->Add(splits, 1, &splits));
  c->set_output(0, c->Vector(signs));
  c->set_output(1, c->Vector(splits));
  c->set_output(2, c->Vector(no_weights ? c->MakeDim(0) : c->UnknownDim()));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfExt>HashCategory")
    .Input("values: Tin")
    .Input("row_splits: N * int64")
    .Input("weights: N * float")
    .Output("signs: int64")
    .Output("sign_splits: int64")
    .Output("sign_weights: float")
    .Output("error: string")
    .Attr("Tin: list({string, int64, int32, float}) >= 1")
    .Attr("N: int >= 1")
    .Attr("namespaces: list(string) >= 1")
    .Attr("bucket_sizes: list(int)")
    .Attr("identity: list(bool)")
    .Attr("part_counts: list(int)")
    .Attr("part_inputs: list(int)")
    .Attr("part_bucket_sizes: list(int)")
    .Attr("part_has_missing: list(bool)")
    .Attr("part_missing: list(string)")
    .Attr("part_boundary_counts: list(int)")
    .Attr("part_boundaries: list(float)")
    .Attr("return_error: bool = false")
    .SetShapeFn(HashCategoryShape)
    .Doc(R"doc(
Turns raw feature values of many columns into signs.

The sign of a text is Fingerprint64(namespace + "\x1f" + text), where
Fingerprint64 is FarmHash's. The text of a string is the string itself; that of
an integer is its decimal representation; that of a number with boundaries is
the decimal number of boundaries that are not above it. With a bucket size b the
text is replaced by the decimal representation of Fingerprint64(text) mod b. A
column with several parts is their cross: for each element of the Cartesian
product of the parts' bags, with the last part varying fastest, the texts are
joined by "\x1e" and the weights are multiplied.

Each column has one or more parts, and each part reads one of the inputs. The
part_ lists are ordered by column. C is the number of columns, P that of parts.

For example, one column with namespace "user" and a dense batch of two strings,
  values = [["ann", "bob"]], row_splits = [[]], weights = [[]],
  namespaces = ["user"], bucket_sizes = [0], identity = [false],
  part_counts = [1], part_inputs = [0], part_bucket_sizes = [0],
  part_has_missing = [false], part_missing = [""], part_boundary_counts = [0],
  part_boundaries = []
gives
  signs = [Fingerprint64("user\x1fann"), Fingerprint64("user\x1fbob")],
  sign_splits = [0, 1, 2], sign_weights = [], error = "".

values: The inputs. Without row_splits `[batch_size, ...]`: the other dimensions
  are the bag. With row_splits `[n]`. NaN is always missing.
row_splits: For each input `[batch_size + 1]`, the bags of values: starts with
  0, never decreases, ends with n. Or `[0]`: none.
weights: For each input a weight for each of its values, or `[0]`: none.
signs: `[m]`. Ordered by column, then by bag.
sign_splits: `[C * batch_size + 1]`. Bag b of column c has the signs from
  sign_splits[c * batch_size + b] up to, but not including,
  sign_splits[c * batch_size + b + 1].
sign_weights: `[m]`, 1 for columns without weights; `[0]` if no column has any.
error: A scalar: the error in the inputs, or "". If it is not "", m is 0,
  sign_splits is all zeros, sign_weights is `[0]`, and batch_size is that of the
  first input that has one, or 0 if none has or the bags would be too many.
Tin: The types of the values.
N: The number of inputs.
namespaces: `[C]`. Columns with the same namespace map a text to the same sign.
bucket_sizes: `[C]`. The number of distinct signs of the column; 0: no limit.
identity: `[C]`. Whether integers are their own signs.
part_counts: `[C]`. The number of parts of the column, 1 to 64.
part_inputs: `[P]`. The index of the part's input.
part_bucket_sizes: `[P]`. The bucket size of a part of a cross; 0: none. It is 0
  for a column with one part.
part_has_missing: `[P]`. Whether the part drops missing values.
part_missing: `[P]`. The text of the missing value.
part_boundary_counts: `[P]`. The number of boundaries; 0: not bucketised. Floats
  need at least one.
part_boundaries: The boundaries of all parts, ascending within each part.
return_error: Whether inconsistent inputs are reported by the output error
  instead of failing the op.
)doc");

}  // namespace
}  // namespace tf_ext
