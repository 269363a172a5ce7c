// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that work on a table.

#include <cstdint>
#include <string>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "cc/ops/table/field_types.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status PullShape(InferenceContext* c) {
  ShapeHandle signs;
  TF_RETURN_IF_ERROR(CheckRanks(c, {{"handle", "training"}}));
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &signs));
  int64_t dim, statistics;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(c->GetAttr("statistics", &statistics));
  DimensionHandle width;
  TF_RETURN_IF_ERROR(c->Add(c->MakeDim(dim), statistics, &width));
  c->set_output(0, c->Matrix(c->Dim(signs, 0), width));
  return absl::OkStatus();
}

absl::Status PushShape(InferenceContext* c) {
  ShapeHandle signs, gradients, statistics;
  TF_RETURN_IF_ERROR(
      CheckRanks(c, {{"handle", "step", "time"}, {"hyperparameters"}}));
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &signs));
  TF_RETURN_IF_ERROR(InputOfRank(c, "gradients", 2, &gradients));
  DimensionHandle n;
  if (!c->Merge(c->Dim(signs, 0), c->Dim(gradients, 0), &n).ok()) {
    return InvalidArgument("gradients must have a row for each of the ",
                           c->Value(c->Dim(signs, 0)),
                           " signs, but its shape is ",
                           c->DebugString(gradients), ".");
  }
  TF_RETURN_IF_ERROR(InputOfRank(c, "statistics", 2, &statistics));
  const DimensionHandle statistics_rows = c->Dim(statistics, 0);
  DimensionHandle unused_dim;
  if (c->ValueKnown(statistics_rows) && c->Value(statistics_rows) != 0 &&
      !c->Merge(n, statistics_rows, &unused_dim).ok()) {
    return InvalidArgument(
        "statistics must be of shape [", c->Value(n),
        ",s] (a row for each of the signs) or [0,0], but its shape is ",
        c->DebugString(statistics), ".");
  }
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

// The number of fields; field_names and Tfields must have one entry each.
absl::Status CountFields(InferenceContext* c, int* fields) {
  std::vector<std::string> names;
  std::vector<DataType> types;
  TF_RETURN_IF_ERROR(c->GetAttr("field_names", &names));
  TF_RETURN_IF_ERROR(c->GetAttr("Tfields", &types));
  if (names.size() != types.size()) {
    return InvalidArgument(
        "field_names and Tfields must have one entry per field, but they have ",
        names.size(), " and ", types.size(), ".");
  }
  *fields = static_cast<int>(names.size());
  return absl::OkStatus();
}

absl::Status ExportShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {{"handle", "cursor", "limit"}}));
  int fields;
  TF_RETURN_IF_ERROR(CountFields(c, &fields));
  const DimensionHandle n = c->UnknownDim();
  c->set_output(0, c->Vector(n));
  c->set_output(1, c->Scalar());
  for (int i = 0; i < fields; ++i) {
    c->set_output(2 + i, c->Matrix(n, c->UnknownDim()));
  }
  return absl::OkStatus();
}

absl::Status ImportShape(InferenceContext* c) {
  ShapeHandle signs;
  TF_RETURN_IF_ERROR(CheckRanks(c, {{"handle", "clear"}}));
  TF_RETURN_IF_ERROR(InputOfRank(c, "signs", 1, &signs));
  int fields;
  TF_RETURN_IF_ERROR(CountFields(c, &fields));
  std::vector<ShapeHandle> values;
  TF_RETURN_IF_ERROR(c->input("fields", &values));
  DimensionHandle n = c->Dim(signs, 0);
  for (int i = 0; i < fields; ++i) {
    ShapeHandle matrix;
    if (!c->WithRank(values[i], 2, &matrix).ok() ||
        !c->Merge(n, c->Dim(matrix, 0), &n).ok()) {
      return InvalidArgument(
          "fields[", i, "] must be a matrix with a row for each of the signs, ",
          "whose shape is ", c->DebugString(signs), ", but its shape is ",
          c->DebugString(values[i]), ".");
    }
  }
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfExt>SparseTableHandle")
    .Output("handle: resource")
    .Attr("config: string")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(Shapes({}, {{}}))
    .Doc(R"doc(
Creates a table of embedding rows, or finds one by name.

handle: Scalar. The table. Without a shared_name every execution creates a new
  table, which is freed with the last reference to its handle.
config: The table's configuration, one `key=value` per line: its dim, dtype,
  name, seed, initializer and update rule.
container: The resource container of a named table; '' is the default one.
shared_name: If not '', the op finds or creates the table of this name on its
  device, which lives until it is destroyed. A table that is found must have the
  same dim, dtype, fields, seed, initializer and hash version.
)doc");

REGISTER_OP("TfExt>SparseTableServingHandle")
    .Output("handle: resource")
    .Attr("config: string")
    .Attr("shared_name: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({}, {{}}))
    .Doc(R"doc(
Creates the table of a SavedModel, or finds it.

Unlike a table of SparseTableHandle it is shared by all calls of a session, and
is freed with the last of its handles and of the ops that returned one.

handle: Scalar. The table.
config: The table's configuration, as for SparseTableHandle.
shared_name: All ops of this name on a device share a table.
)doc");

REGISTER_OP("TfExt>SparseTablePull")
    .Input("handle: resource")
    .Input("signs: int64")
    .Input("training: bool")
    .Output("rows: dtype")
    .Attr("dim: int >= 1")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("statistics: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(PullShape)
    .Doc(R"doc(
Reads the weights of signs, and their statistics.

handle: Scalar. The table.
signs: `[n]`. The signs to read; any int64, possibly repeated.
training: Scalar. Whether absent signs are inserted, unless the table has
  admission. If not, their initial weights are returned, or zeros if the table's
  config says so, and the table does not change.
rows: `[n, dim + statistics]`. The weights of each sign, followed by its
  statistics, which are 0 for signs without a row.
dim: The number of weights in a row of the table.
dtype: The type of the weights.
statistics: How many statistics are read: 0, or how many the table has.
)doc");

REGISTER_OP("TfExt>SparseTablePush")
    .Input("handle: resource")
    .Input("signs: int64")
    .Input("gradients: dtype")
    .Input("statistics: float")
    .Input("hyperparameters: double")
    .Input("step: int64")
    .Input("time: int64")
    .Output("updated: int64")
    .Attr("dtype: {float} = DT_FLOAT")
    .SetIsStateful()
    .SetShapeFn(PushShape)
    .Doc(R"doc(
Updates the rows of signs with the table's update rule.

If a gradient is not finite, or a hyperparameter or statistic is out of its
range, the op fails and the table is unchanged.

handle: Scalar. The table.
signs: `[n]`. The signs to update. Absent ones are inserted first, if the table
  admits them. A repeated sign is updated once per occurrence, in order, so sum
  its gradients first.
gradients: `[n, dim]`. The gradient of the loss with respect to each sign's
  weights.
statistics: `[n, s]` or `[0, 0]`. The first column is how often each sign occurs
  in the batch, which is counted for admission. What is added to the fields
  `show` and `click` of each sign's row. Finite and at least 0; s is the number
  of these fields that the table's config has, or 1 if it has only admission.
  `[0, 0]`: each sign occurred once, with a click of 0. Ignored by tables with
  neither.
hyperparameters: `[h]`. Those of the update rule, in its order.
step: Scalar, at least 0. The number of this update, counted from 1.
time: Scalar. The time in seconds since 1970, for a table whose `last_seen` is
  in seconds; ignored otherwise.
updated: Scalar. The number of updates made: n less the signs that were not
  admitted.
dtype: The type of the gradients.
)doc");

REGISTER_OP("TfExt>SparseTableSize")
    .Input("handle: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{}}))
    .Doc(R"doc(
Counts the rows of a table.

handle: Scalar. The table.
size: Scalar. The number of rows.
)doc");

REGISTER_OP("TfExt>SparseTableShrinkageClock")
    .Input("handle: resource")
    .Input("clock: int64")
    .Output("now: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "clock"}}, {{}}))
    .Doc(R"doc(
Returns or sets how far rows with l2 or l1 are shrunk when they are read.

A table with neither ignores what it is set to, and returns 0.

handle: Scalar. The table.
clock: Scalar. What it is set to; -1: it stays as it is.
now: Scalar. What it is afterwards.
)doc");

REGISTER_OP("TfExt>SparseTableAbsentState")
    .Input("handle: resource")
    .Input("state: string")
    .Output("now: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "state"}}, {{}}))
    .Doc(R"doc(
Returns or sets what moves rows that are absent from pushes.

A table whose rule leaves them where they are ignores what it is set to, and
returns "".

handle: Scalar. The table.
state: Scalar. What it is set to, a result of the op; "": it stays as it is.
now: Scalar. What it is afterwards.
)doc");

REGISTER_OP("TfExt>SparseTableStats")
    .Input("handle: resource")
    .Output("stats: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{-1}}))
    .Doc(R"doc(
Returns statistics of a table.

handle: Scalar. The table.
stats: `[k]`, k = 15. In this order: rows; erased rows kept for reuse; stripes;
  bytes of a row; bytes allocated for rows; bytes allocated for indexes; rows in
  the fullest stripe; rows in the emptiest stripe; the longest probe sequence of
  a sign, in index buckets; signs that are counted for admission; bytes
  allocated for their counters; rows that were admitted; rows that were evicted;
  values that were limited to the largest finite one of the type in which they
  are stored; rows that pushes updated.
)doc");

REGISTER_OP("TfExt>SparseTableConfig")
    .Input("handle: resource")
    .Output("config: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{}}))
    .Doc(R"doc(
Returns the configuration of a table.

handle: Scalar. The table.
config: Scalar. The table's config in canonical form: one `key=value` per line,
  sorted by key.
)doc");

REGISTER_OP("TfExt>SparseTableExport")
    .Input("handle: resource")
    .Input("cursor: int64")
    .Input("limit: int64")
    .Output("signs: int64")
    .Output("next_cursor: int64")
    .Output("fields: Tfields")
    .Attr("field_names: list(string)")
    .Attr("Tfields: list(" TF_EXT_FIELD_TYPES ") >= 0")
    .SetIsStateful()
    .SetShapeFn(ExportShape)
    .Doc(R"doc(
Copies rows out of a table.

An iteration starts with cursor 0, continues with each next_cursor and ends when
that is -1. A row that exists during the whole iteration is returned exactly
once, even if other rows are inserted and erased meanwhile. The fields of a row
are copied atomically.

handle: Scalar. The table.
cursor: Scalar. 0, or the next_cursor of the previous call. Any other number of
  at least 0 is a position in the order of the hashes of signs: the rows that
  follow a random one are a random sample.
limit: Scalar. The maximum number of rows to copy; negative: all. Fewer may be
  copied before the end, too.
signs: `[n]`. The signs of the rows.
next_cursor: Scalar. The cursor of the next call, or -1 at the end.
fields: For each field name `[n, count]`, its count values in each row.
field_names: The fields to copy.
Tfields: The type of each of the fields: that in which it is stored, or float
  for all types of floats.
)doc");

REGISTER_OP("TfExt>SparseTableImport")
    .Input("handle: resource")
    .Input("signs: int64")
    .Input("clear: bool")
    .Input("fields: Tfields")
    .Output("imported: int64")
    .Attr("field_names: list(string)")
    .Attr("Tfields: list(" TF_EXT_FIELD_TYPES ") >= 0")
    .SetIsStateful()
    .SetShapeFn(ImportShape)
    .Doc(R"doc(
Sets rows of a table.

All inputs are checked before the table is changed. Absent signs are inserted;
their fields that are not passed get the values of a new row.

handle: Scalar. The table.
signs: `[n]`. The signs to set. The last occurrence of a repeated sign wins.
clear: Scalar. Whether all rows are removed first.
fields: For each field name `[n, count]`, its count values in each row.
imported: Scalar. n.
field_names: The fields to set.
Tfields: The type of each of the fields: that in which it is stored, or float,
  from which values are rounded to the nearest one.
)doc");

REGISTER_OP("TfExt>SparseTableErase")
    .Input("handle: resource")
    .Input("signs: int64")
    .Output("erased: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}, {"signs"}}, {{}}))
    .Doc(R"doc(
Removes rows from a table.

handle: Scalar. The table.
signs: `[n]`. The signs whose rows are removed; absent ones are ignored.
erased: Scalar. The number of rows removed.
)doc");

REGISTER_OP("TfExt>SparseTableClear")
    .Input("handle: resource")
    .Output("cleared: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{}}))
    .Doc(R"doc(
Removes all rows of a table and frees their memory.

handle: Scalar. The table.
cleared: Scalar. The number of rows removed.
)doc");

REGISTER_OP("TfExt>SparseTableCompact")
    .Input("handle: resource")
    .Output("bytes: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{}}))
    .Doc(R"doc(
Returns the memory of erased rows to the system.

No row changes, and other ops can use the table meanwhile.

handle: Scalar. The table.
bytes: Scalar. The number of bytes that were returned.
)doc");

}  // namespace
}  // namespace tf_ext
