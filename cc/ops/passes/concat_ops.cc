// SPDX-License-Identifier: Apache-2.0
// The interface of the op that combines bags into parts of longer vectors.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>CombineBagsConcat")
    .Input("rows: N * float")
    .Input("inverse: N * int32")
    .Input("row_splits: N * int64")
    .Input("weights: N * float")
    .Input("others: M * float")
    .Output("concatenated: float")
    .Output("shapes: N * out_type")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("columns: list(int) >= 1")
    .Attr("combiners: list({'sum', 'mean', 'sqrtn', 'max'}) >= 1")
    .Attr("places: list(int) >= 1")
    .Attr("out_type: {int32, int64} = DT_INT32")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      for (int i = 1; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Combines bags of several tables, and concatenates them with other matrices.

Equivalent to a CombineBags of each table and a concatenation of the rows.

rows: `[u_i, dim_i]` each. As for CombineBags, like the following inputs.
inverse: `[n_i]` each.
row_splits: `[columns[i] * batch_size + 1]` each.
weights: `[n_i]` or `[0]` each.
others: `[batch_size, width_i]` each.
concatenated: `[batch_size, sum of all widths]`. That of a table's bags is
  columns[i] * dim_i.
shapes: `[2]` each, the shape of each table's combined bags.
columns: How many of the combiners each table has.
combiners: Those of all tables.
places: Where each table's bags are among all that is concatenated, rising. The
  other matrices fill the places between, in their order.
)doc");

}  // namespace
}  // namespace tf_ext
