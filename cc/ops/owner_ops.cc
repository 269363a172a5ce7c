// The interface of the ops that free what a killed run left on a server.

#include "absl/status/status.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SetOwnerShape(InferenceContext* c) {
  ShapeHandle unused;
  for (const char* name : {"handle", "owner", "run"}) {
    TF_RETURN_IF_ERROR(InputOfRank(c, name, 0, &unused));
  }
  return absl::OkStatus();
}

absl::Status ReleaseShape(InferenceContext* c) {
  ShapeHandle unused;
  for (const char* name : {"owner", "run"}) {
    TF_RETURN_IF_ERROR(InputOfRank(c, name, 0, &unused));
  }
  c->set_output(0, c->Vector(2));
  return absl::OkStatus();
}

REGISTER_OP("TfExt>SparseTableSetOwner")
    .Input("handle: resource")
    .Input("owner: string")
    .Input("run: string")
    .SetIsStateful()
    .SetShapeFn(SetOwnerShape)
    .Doc(R"doc(
Says who made a table, so that a later run of the same program can release it.

handle: Scalar. The table, or its shard on this device.
owner: Scalar, not empty. The address that no two running programs have.
run: Scalar, not empty. That of one process at this address.
)doc");

REGISTER_OP("TfExt>ReleaseSparseTables")
    .Input("owner: string")
    .Input("run: string")
    .Output("released: int64")
    .SetIsStateful()
    .SetShapeFn(ReleaseShape)
    .Doc(R"doc(
Releases the tables that earlier runs of an owner left in this process.

A table is freed when the ops end that work on it; later ones fail, though their
handle is still there. Tables of other owners, of this run and of no owner stay.

owner: Scalar, not empty. Whose tables, as SparseTableSetOwner was told.
run: Scalar, not empty. The run whose tables stay.
released: `[2]`. The number of tables, and the bytes of their rows and indexes.
)doc");

}  // namespace
}  // namespace tf_ext
