// SPDX-License-Identifier: Apache-2.0
// The interface of the ops between a batch's signs and its bags.

#include <cstdint>
#include <string>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status UniqueByShardShape(InferenceContext* c) {
  ShapeHandle signs;
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &signs));
  int64_t num_shards;
  TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
  const DimensionHandle unique = c->UnknownDim();
  c->set_output(0, c->Vector(unique));
  c->set_output(1, c->Vector(unique));
  c->set_output(2, signs);
  c->set_output(3, c->Vector(num_shards));
  return absl::OkStatus();
}

absl::Status UniqueByShardEachShape(InferenceContext* c) {
  std::vector<ShapeHandle> signs;
  TF_RETURN_IF_ERROR(InputsOfRank(c, "signs", 1, &signs));
  int64_t num_shards;
  TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
  const int count = static_cast<int>(signs.size());
  for (int i = 0; i < count; ++i) {
    const DimensionHandle unique = c->UnknownDim();
    c->set_output(i, c->Vector(unique));
    c->set_output(count + i, c->Vector(unique));
    c->set_output(2 * count + i, signs[i]);
    c->set_output(3 * count + i, c->Vector(num_shards));
  }
  return absl::OkStatus();
}

// The inputs that CombineBags and its gradient share: `combined` is the shape
// of the result, [batch_size, combiners * dim].
absl::Status BagsShape(InferenceContext* c, ShapeHandle* rows,
                       ShapeHandle* weights, ShapeHandle* combined) {
  ShapeHandle inverse, row_splits;
  TF_RETURN_IF_ERROR(InputOfRank(c, "rows", 2, rows));
  TF_RETURN_IF_ERROR(InputOfRank(c, "inverse", 1, &inverse));
  TF_RETURN_IF_ERROR(InputOfRank(c, "row_splits", 1, &row_splits));
  TF_RETURN_IF_ERROR(InputOfRank(c, "weights", 1, weights));
  TF_RETURN_IF_ERROR(
      CheckOptionalVectorInput(c, "weights", c->Dim(inverse, 0), "as inverse"));
  std::vector<std::string> combiners;
  TF_RETURN_IF_ERROR(c->GetAttr("combiners", &combiners));
  const int64_t columns = static_cast<int64_t>(combiners.size());

  DimensionHandle batch = c->UnknownDim();
  const DimensionHandle splits = c->Dim(row_splits, 0);
  if (c->ValueKnown(splits)) {
    const int64_t cells = c->Value(splits) - 1;
    if (cells < 0 || cells % columns != 0) {
      return InvalidArgument("row_splits must have ", columns,
                             " * batch_size + 1 values (there are ", columns,
                             " combiners), but its shape is ",
                             c->DebugString(row_splits), ".");
    }
    batch = c->MakeDim(cells / columns);
  }
  DimensionHandle width;
  TF_RETURN_IF_ERROR(c->Multiply(c->Dim(*rows, 1), columns, &width));
  *combined = c->Matrix(batch, width);
  return absl::OkStatus();
}

absl::Status CombineBagsShape(InferenceContext* c) {
  ShapeHandle rows, weights, combined;
  TF_RETURN_IF_ERROR(BagsShape(c, &rows, &weights, &combined));
  c->set_output(0, combined);
  return absl::OkStatus();
}

absl::Status CombineBagsGradShape(InferenceContext* c) {
  ShapeHandle rows, weights, combined, gradient, unused;
  TF_RETURN_IF_ERROR(BagsShape(c, &rows, &weights, &combined));
  TF_RETURN_IF_ERROR(InputOfRank(c, "gradient", 2, &gradient));
  if (!c->Merge(gradient, combined, &unused).ok()) {
    return InvalidArgument("gradient must be of shape ",
                           c->DebugString(combined),
                           " (batch_size, combiners * dim), but its shape is ",
                           c->DebugString(gradient), ".");
  }
  c->set_output(0, rows);
  c->set_output(1, weights);
  return absl::OkStatus();
}

absl::Status RouteGradientShape(InferenceContext* c) {
  ShapeHandle rows, shadow, signs, unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "rows", 2, &rows));
  TF_RETURN_IF_ERROR(InputOfRank(c, "shadow", 2, &shadow));
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &signs));
  const ShapeHandle wanted = c->Matrix(c->Dim(signs, 0), c->Dim(shadow, 1));
  if (!c->Merge(rows, wanted, &unused).ok()) {
    return InvalidArgument("rows must be of shape ", c->DebugString(wanted),
                           " (as signs, as a row of shadow), but its shape is ",
                           c->DebugString(rows), ".");
  }
  c->set_output(0, rows);
  return absl::OkStatus();
}

REGISTER_OP("TfExt>UniqueByShard")
    .Input("signs: int64")
    .Output("unique: int64")
    .Output("counts: int64")
    .Output("inverse: int32")
    .Output("split_sizes: int64")
    .Attr("num_shards: int >= 1 = 1")
    .SetShapeFn(UniqueByShardShape)
    .Doc(R"doc(
Finds the distinct signs of a batch, ordered by owning shard.

signs: `[n]`, n less than 2^31. Any int64.
unique: `[u]`. The distinct signs, ordered by shard; with one shard by first
  occurrence, with several also in an order that suits their tables.
counts: `[u]`. The number of occurrences of each in signs.
inverse: `[n]`. The index in unique of each of signs.
split_sizes: `[num_shards]`. How many of the distinct signs each shard owns.
num_shards: The number of shards, 1 to 2^20.
)doc");

REGISTER_OP("TfExt>UniqueByShardEach")
    .Input("signs: N * int64")
    .Output("unique: N * int64")
    .Output("counts: N * int64")
    .Output("inverse: N * int32")
    .Output("split_sizes: N * int64")
    .Attr("N: int >= 1")
    .Attr("num_shards: int >= 1 = 1")
    .SetShapeFn(UniqueByShardEachShape)
    .Doc(R"doc(
Finds the distinct signs of each of several vectors, as UniqueByShard does.

signs: `[n_i]` each.
unique: `[u_i]` each. The distinct signs, ordered by shard.
counts: `[u_i]` each. The number of occurrences of each in signs.
inverse: `[n_i]` each. The index in unique of each of signs.
split_sizes: `[num_shards]` each. How many of the distinct signs each shard
  owns.
num_shards: The number of shards, 1 to 2^20.
)doc");

REGISTER_OP("TfExt>RouteGradient")
    .Input("rows: dtype")
    .Input("shadow: dtype")
    .Input("signs: Tsigns")
    .Output("routed: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tsigns: {int64, complex128} = DT_INT64")
    .SetShapeFn(RouteGradientShape)
    .Doc(R"doc(
Returns rows unchanged; routes their gradient to a table's shadow variable.

The gradient of shadow is slices with signs as indices; rows and signs have no
gradient.

rows: `[u, dim]`. The rows of signs.
shadow: `[1, dim]`. The variable's value, which is not used.
signs: `[u]`. Any int64, each once.
routed: `[u, dim]`. The same as rows.
dtype: The type of rows and shadow.
Tsigns: complex128 stands for 128 bits, of which 64 are a sign. The op only
  passes them on.
)doc");

REGISTER_OP("TfExt>CombineBags")
    .Input("rows: dtype")
    .Input("inverse: int32")
    .Input("row_splits: int64")
    .Input("weights: dtype")
    .Output("combined: dtype")
    .Attr("combiners: list({'sum', 'mean', 'sqrtn', 'max'}) >= 1")
    .Attr("dtype: {float} = DT_FLOAT")
    .SetShapeFn(CombineBagsShape)
    .Doc(R"doc(
Combines each bag of rows into a vector, for one or more columns at once.

Bag b of column c holds the values from row_splits[c * batch_size + b] up to,
but not including, row_splits[c * batch_size + b + 1]. With values x and weights
w (1 without weights) the result is

  sum:   sum(w x)
  mean:  sum(w x) / sum(w)
  sqrtn: sum(w x) / sqrt(sum(w^2))
  max:   the maximum x in each dimension

or zeros if the bag is empty or the divisor is zero.

rows: `[u, dim]`. The distinct rows.
inverse: `[n]`, each at least 0 and less than u. The row of each value.
row_splits: `[len(combiners) * batch_size + 1]`. Starts with 0, never decreases,
  ends with n.
weights: `[n]`, or `[0]` for none. Not for 'max'.
combined: `[batch_size, len(combiners) * dim]`. The columns concatenated.
combiners: How the bags of each column are combined.
dtype: The type of rows, weights and combined.
)doc");

REGISTER_OP("TfExt>CombineBagsGrad")
    .Input("gradient: dtype")
    .Input("rows: dtype")
    .Input("inverse: int32")
    .Input("row_splits: int64")
    .Input("weights: dtype")
    .Output("rows_gradient: dtype")
    .Output("weights_gradient: dtype")
    .Attr("combiners: list({'sum', 'mean', 'sqrtn', 'max'}) >= 1")
    .Attr("dtype: {float} = DT_FLOAT")
    .SetShapeFn(CombineBagsGradShape)
    .Doc(R"doc(
The gradient of CombineBags.

The gradient of 'max' is divided equally between all values of a bag that equal
the maximum.

gradient: `[batch_size, len(combiners) * dim]`. The gradient of the combined
  bags.
rows: `[u, dim]`. As for CombineBags, like the following inputs.
inverse: `[n]`.
row_splits: `[len(combiners) * batch_size + 1]`.
weights: `[n]` or `[0]`.
rows_gradient: `[u, dim]`. The gradient of rows: the contributions to a row are
  added in the order of the batch.
weights_gradient: `[n]`, or `[0]` without weights. The gradient of weights.
combiners: As for CombineBags.
dtype: The type of rows, weights and gradients.
)doc");

}  // namespace
}  // namespace tf_ext
