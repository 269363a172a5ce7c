// The interface of the ops that write and read snapshots.

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot_files.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status CheckScalars(InferenceContext* c,
                          std::initializer_list<absl::string_view> names) {
  ShapeHandle unused;
  for (const absl::string_view name : names) {
    TF_RETURN_IF_ERROR(InputOfRank(c, name, 0, &unused));
  }
  return absl::OkStatus();
}

absl::Status SaveShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(
      CheckScalars(c, {"handle", "directory", "id", "base", "tracked", "shard",
                       "max_bytes_per_second"}));
  const DimensionHandle files = c->UnknownDim();
  c->set_output(0, c->Vector(files));
  c->set_output(1, c->Matrix(files, kSnapshotFileColumns));
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

absl::Status RestoreShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(
      CheckScalars(c, {"handle", "chunk_bytes", "row_bytes", "shard", "shards",
                       "verify_only", "stored_shards"}));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "paths", 1, &unused));
  TF_RETURN_IF_ERROR(InputOfRank(c, "file_shards", 1, &unused));
  TF_RETURN_IF_ERROR(InputOfRank(c, "files", 2, &unused));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("TfExt>SparseTableSave")
    .Input("handle: resource")
    .Input("directory: string")
    .Input("id: string")
    .Input("base: string")
    .Input("tracked: bool")
    .Input("shard: int64")
    .Input("max_bytes_per_second: int64")
    .Output("names: string")
    .Output("files: int64")
    .Output("chunk_bytes: int64")
    .SetIsStateful()
    .SetShapeFn(SaveShape)
    .Doc(R"doc(
Writes the rows of a table to files of a snapshot.

The files are durable when the op has run, and there is none if it fails. The
snapshot exists once its manifest does, which the caller writes. Rows that are
there from the op's start to its end are written, each as it was at one moment;
the table can be used meanwhile.

handle: Scalar. The table, or its shard on this device.
directory: Scalar. An existing directory.
id: Scalar. 32 hexadecimal digits, the id of the snapshot.
base: Scalar. '' for all rows. Else the id of the last snapshot of the table's
  chain: what has changed since is written.
tracked: Scalar. Whether the snapshot is part of a chain. Then
  SparseTableEndSave has to follow.
shard: Scalar. The number of the shard, for the names of the files.
max_bytes_per_second: Scalar. Not to be exceeded; 0: as fast as it goes.
names: `[f]`. The names of the files.
files: `[f, 5]`. Of each: tag, rows, erased signs, bytes, CRC32C.
chunk_bytes: Scalar. The size of a chunk.
)doc");

REGISTER_OP("TfExt>SparseTableEndSave")
    .Input("handle: resource")
    .Input("id: string")
    .Input("committed: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      return CheckScalars(c, {"handle", "id", "committed"});
    })
    .Doc(R"doc(
Ends a save that is part of a chain.

handle: Scalar. The table, or its shard on this device.
id: Scalar. That of the snapshot that SparseTableSave has written.
committed: Scalar. Whether its manifest was written. If not, what it holds will
  be in the next one.
)doc");

REGISTER_OP("TfExt>SparseTableSetChain")
    .Input("handle: resource")
    .Input("id: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      return CheckScalars(c, {"handle", "id"});
    })
    .Doc(R"doc(
Begins or ends the marking of changes.

handle: Scalar. The table, or its shard on this device.
id: Scalar. That of the snapshot whose rows the table holds and which the next
  delta continues; '' ends the table's chain.
)doc");

REGISTER_OP("TfExt>SparseTableRestore")
    .Input("handle: resource")
    .Input("paths: string")
    .Input("files: int64")
    .Input("chunk_bytes: int64")
    .Input("row_bytes: int64")
    .Input("shard: int64")
    .Input("shards: int64")
    .Input("verify_only: bool")
    .Input("file_shards: int64")
    .Input("stored_shards: int64")
    .Output("rows: int64")
    .Attr("field_names: list(string)")
    .Attr("field_types: list({float, int32})")
    .Attr("field_counts: list(int)")
    .Attr("field_offsets: list(int)")
    .SetIsStateful()
    .SetShapeFn(RestoreShape)
    .Doc(R"doc(
Applies files of a snapshot to a table, or checks them.

Rows are set, and signs that a delta names are erased; other rows stay. Damage
is an error that names file and byte; what was read before it has been applied.

handle: Scalar. The table, or its shard on this device.
paths: `[f]`. The files.
files: `[f, 5]`. What SparseTableSave said of each.
chunk_bytes: Scalar. The size of a chunk.
row_bytes: Scalar. Bytes of a row in the files.
shard: Scalar. Which rows belong to this shard.
shards: Scalar. The number of the table's shards.
verify_only: Scalar. Whether the files are only checked.
file_shards: `[f]`. Which of the snapshot's shards each file holds rows of, and
  of no other.
stored_shards: Scalar. How many shards the snapshot has.
rows: Scalar. The number of rows set.
field_names: Fields to set, weights among them. Others start as a new row's.
field_types: Their types.
field_counts: Their numbers of values in a row.
field_offsets: Where they are in a row, in bytes.
)doc");

REGISTER_OP("TfExt>WriteFileAtomically")
    .Input("path: string")
    .Input("contents: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      return CheckScalars(c, {"path", "contents"});
    })
    .Doc(R"doc(
Writes a file that is there as a whole or not at all, and durable.

path: Scalar. The file; one that is there is replaced. Beside it, a file of this
  name and '.part' may be left by a process that was killed.
contents: Scalar. What the file will hold.
)doc");

}  // namespace
}  // namespace tf_ext
