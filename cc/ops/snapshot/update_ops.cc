// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that begin and end updates of a table in place.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SparseTableHeld")
    .Input("handle: resource")
    .Output("id: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle"}}, {{}}))
    .Doc(R"doc(
Returns the id of the snapshot whose rows a table holds.

handle: Scalar. The table, or its shard on this device.
id: Scalar. The id that was last passed to SparseTableEndUpdate; '' if there is
  none, or if anything else has changed rows since.
)doc");

REGISTER_OP("TfExt>SparseTableBeginUpdate")
    .Input("handle: resource")
    .Input("base: string")
    .Input("whole: bool")
    .Output("number: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "base", "whole"}}, {{}}))
    .Doc(R"doc(
Begins an update of a table from files of snapshots, in place.

SparseTableRestore with the actions 'gather' and 'update' follows, then
SparseTableEndUpdate.

handle: Scalar. The table, or its shard on this device.
base: Scalar. The id of the snapshot whose rows the table must hold; '' allows
  any.
whole: Scalar. Whether rows that the update does not set are erased at its end.
number: Scalar. The number of the update, for SparseTableEndUpdate.
)doc");

REGISTER_OP("TfExt>SparseTableEndUpdate")
    .Input("handle: resource")
    .Input("number: int64")
    .Input("completed: bool")
    .Input("id: string")
    .Output("held: bool")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "number", "completed", "id"}}, {{}}))
    .Doc(R"doc(
Ends an update: erases the rows that the snapshot does not have.

handle: Scalar. The table, or its shard on this device.
number: Scalar. The result of SparseTableBeginUpdate. Nothing happens if another
  update has begun since.
completed: Scalar. False if the update has failed, in which case nothing is
  erased.
id: Scalar. The id of the snapshot whose rows the table holds now; '' if it
  holds those of none, because some of their fields were not read.
held: Scalar. Whether the table holds the rows of the snapshot; false if
  anything else has changed rows meanwhile.
)doc");

}  // namespace
}  // namespace tf_ext
