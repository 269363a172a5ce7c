// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that free what a killed run left on a server.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SparseTableSetOwner")
    .Input("handle: resource")
    .Input("owner: string")
    .Input("run: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "owner", "run"}}, {}))
    .Doc(R"doc(
Records the owner of a table, so that a later run of it can release the table.

handle: Scalar. The table, or its shard on this device.
owner: Scalar, not empty. An address that is unique among running programs.
run: Scalar, not empty. The id of one run at this address.
)doc");

REGISTER_OP("TfExt>ReleaseSparseTables")
    .Input("owner: string")
    .Input("run: string")
    .Output("released: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"owner", "run"}}, {{2}}))
    .Doc(R"doc(
Releases the tables that earlier runs of an owner left in this process.

A table is freed when the ops that use it have returned; later ops fail, even
with a valid handle. Tables of other owners, of this run and of no owner are
kept.

owner: Scalar, not empty. The owner, as passed to SparseTableSetOwner.
run: Scalar, not empty. The run whose tables are kept.
released: `[2]`. The number of tables, and the bytes of their rows and indexes.
)doc");

}  // namespace
}  // namespace tf_ext
