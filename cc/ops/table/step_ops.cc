// SPDX-License-Identifier: Apache-2.0
// The interfaces of the ops that read and train all tables of a step.

#include <cstdint>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status TablesPullShape(InferenceContext* c) {
  std::vector<ShapeHandle> handles, signs;
  TF_RETURN_IF_ERROR(InputsOfRank(c, "handles", 0, &handles));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "signs", 1, &signs));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "training", 1, &unused));
  std::vector<int64_t> dims, statistics;
  const int count = static_cast<int>(signs.size());
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(CheckListSize("dims", dims.size(), count));
  TF_RETURN_IF_ERROR(c->GetAttr("statistics", &statistics));
  TF_RETURN_IF_ERROR(CheckListSize("statistics", statistics.size(), count));
  for (int i = 0; i < count; ++i) {
    if (dims[i] < 1 || statistics[i] < 0) {
      return InvalidArgument("dims[", i, "] must be at least 1 and statistics[",
                             i, "] at least 0, but they are ", dims[i], " and ",
                             statistics[i], ".");
    }
    DimensionHandle width;
    TF_RETURN_IF_ERROR(c->Add(c->MakeDim(dims[i]), statistics[i], &width));
    c->set_output(i, c->Matrix(c->Dim(signs[i], 0), width));
  }
  return absl::OkStatus();
}

absl::Status TablesPushShape(InferenceContext* c) {
  std::vector<ShapeHandle> handles, signs, gradients, statistics;
  TF_RETURN_IF_ERROR(InputsOfRank(c, "handles", 0, &handles));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "signs", 1, &signs));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "gradients", 2, &gradients));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "statistics", 2, &statistics));
  for (size_t i = 0; i < signs.size(); ++i) {
    DimensionHandle n;
    if (c->Merge(c->Dim(signs[i], 0), c->Dim(gradients[i], 0), &n).ok()) {
      continue;
    }
    return InvalidArgument(
        "gradients[", i, "] must have a row for each of the ",
        c->Value(c->Dim(signs[i], 0)), " signs, but its shape is ",
        c->DebugString(gradients[i]), ".");
  }
  TF_RETURN_IF_ERROR(CheckRanks(c, {{"step", "time"}, {"hyperparameters"}}));
  std::vector<int64_t> starts_of;
  TF_RETURN_IF_ERROR(c->GetAttr("starts_of", &starts_of));
  int starts;
  TF_RETURN_IF_ERROR(c->GetAttr("M", &starts));
  TF_RETURN_IF_ERROR(CheckListSize("starts_of", starts_of.size(), starts));
  TF_RETURN_IF_ERROR(
      CheckStartsOf(starts_of, static_cast<int64_t>(signs.size())));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "start_signs", 1, &handles));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "start_rows", 2, &handles));
  int numbered;
  TF_RETURN_IF_ERROR(c->GetAttr("K", &numbered));
  TF_RETURN_IF_ERROR(CheckNumbered(numbered));
  TF_RETURN_IF_ERROR(InputsOfRank(c, "numbers", 1, &handles));
  c->set_output(0, c->Vector(static_cast<int64_t>(signs.size())));
  return absl::OkStatus();
}

REGISTER_OP("TfExt>SparseTablesPull")
    .Input("handles: N * resource")
    .Input("signs: N * int64")
    .Input("training: bool")
    .Output("rows: N * float")
    .Attr("N: int >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("statistics: list(int) >= 1")
    .SetIsStateful()
    .SetShapeFn(TablesPullShape)
    .Doc(R"doc(
Reads the weights of signs, and their statistics, from several tables.

Equivalent to a SparseTablePull of each table. All inputs are checked before a
row is inserted.

handles: Scalars. The tables.
signs: `[n_i]` each. The signs to read; any int64, possibly repeated.
training: `[N]`. Of each table, whether absent signs are inserted.
rows: `[n_i, dims[i] + statistics[i]]` each.
dims: The number of weights in a row of each table.
statistics: How many statistics are read of each table: 0, or how many it has.
)doc");

REGISTER_OP("TfExt>SparseTablesPush")
    .Input("handles: N * resource")
    .Input("signs: N * int64")
    .Input("gradients: N * float")
    .Input("statistics: N * float")
    .Input("hyperparameters: double")
    .Input("step: int64")
    .Input("time: int64")
    .Input("start_signs: M * int64")
    .Input("start_rows: M * float")
    .Input("numbers: K * int64")
    .Output("updated: int64")
    .Attr("N: int >= 1")
    .Attr("counts: list(int) >= 1")
    .Attr("M: int >= 0 = 0")
    .Attr("starts_of: list(int) = []")
    .Attr("K: int >= 0 = 0")
    .Attr("part: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(TablesPushShape)
    .Doc(R"doc(
Updates the rows of signs of several tables with the tables' update rules.

Equivalent to a SparseTablePush of each table, in their order, but if the op
fails because of an input, no table is changed.

handles: Scalars. The tables.
signs: `[n_i]` each. The signs to update.
gradients: `[n_i, dim of the table]` each.
statistics: `[n_i, s_i]` or `[0, 0]` each, as for SparseTablePush.
hyperparameters: `[sum(counts)]`. Those of each table's update rule, in its
  order.
step: Scalar, at least 0. The number of this update, counted from 1.
time: Scalar. The time in seconds since 1970, for tables whose `last_seen` is
  in seconds.
start_signs: `[k_j]` each. The shared rows that new rows start from, of tables
  with `unknown=shared`.
start_rows: `[k_j, dim of the table]` each. Their weights before the push.
numbers: None, or one of `[2]`, of a step that may run again: its number, which
  is its own, and that of the oldest step that may run again, at least 0. Tables
  that such a push has updated before are left as they are, and so are all by
  the push of a step that is older than that.
updated: `[N]`. The number of updates made in each table.
counts: How many of the hyperparameters are those of each table.
starts_of: `[M]`. The table of each of start_signs, ascending.
part: Tells the pushes of a step apart.
)doc");

}  // namespace
}  // namespace tf_ext
