// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that write and read snapshots.

#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "cc/ops/table/field_types.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SparseTableSave")
    .Input("handle: resource")
    .Input("directory: string")
    .Input("id: string")
    .Input("base: string")
    .Input("tracked: bool")
    .Input("shard: int64")
    .Input("max_bytes_per_second: int64")
    .Input("period: int64")
    .Output("names: string")
    .Output("files: int64")
    .Output("chunk_bytes: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "directory", "id", "base", "tracked",
                         "shard", "max_bytes_per_second", "period"}},
                       {{-1}, {-1, kSnapshotFileColumns}, {}}))
    .Doc(R"doc(
Writes the rows of a table to files of a snapshot.

The files are whole when the op returns, and durable after SyncFiles; if the op
fails, no files are left. The snapshot exists once the caller has written its
manifest. All rows that exist while the op runs are written, each atomically;
the table can be used meanwhile.

handle: Scalar. The table, or its shard on this device.
directory: Scalar. An existing directory.
id: Scalar. 32 hexadecimal digits, the id of the snapshot.
base: Scalar. '' to write all rows; the id of the last snapshot of the table's
  chain to write the changes since then.
tracked: Scalar. Whether the snapshot is part of a chain. If so,
  SparseTableEndSave must follow.
shard: Scalar. The number of the shard in the names of the files.
max_bytes_per_second: Scalar. 0: no limit.
period: Scalar. The current period of the counters of signs, which are written
  to another file, the last one; -1: they are not written, as for a table whose
  admission is not by count.
names: `[f]`. The names of the files.
files: `[f, 5]`. For each file: tag, rows, erased signs, bytes, CRC32C.
chunk_bytes: Scalar. The size of a chunk.
)doc");

REGISTER_OP("TfExt>SparseTableEndSave")
    .Input("handle: resource")
    .Input("id: string")
    .Input("committed: bool")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "id", "committed"}}, {}))
    .Doc(R"doc(
Ends a save that is part of a chain.

Does nothing for a save that has ended, or, unless `committed`, has not begun.

handle: Scalar. The table, or its shard on this device.
id: Scalar. The id of the snapshot that SparseTableSave has written.
committed: Scalar. Whether its manifest was written. If not, the next snapshot
  will include the same changes.
)doc");

REGISTER_OP("TfExt>SparseTableSetChain")
    .Input("handle: resource")
    .Input("id: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "id"}}, {}))
    .Doc(R"doc(
Starts or stops marking changes.

handle: Scalar. The table, or its shard on this device.
id: Scalar. The id of the snapshot whose rows the table holds, which the next
  delta will continue; '' ends the table's chain.
)doc");

REGISTER_OP("TfExt>SparseTableRestore")
    .Input("handle: resource")
    .Input("paths: string")
    .Input("files: int64")
    .Input("chunk_bytes: int64")
    .Input("row_bytes: int64")
    .Input("shard: int64")
    .Input("shards: int64")
    .Input("action: string")
    .Input("file_shards: int64")
    .Input("stored_shards: int64")
    .Output("rows: int64")
    .Output("converted: int64")
    .Attr("field_names: list(string)")
    .Attr("field_types: list(" TF_EXT_FIELD_TYPES ")")
    .Attr("field_counts: list(int)")
    .Attr("field_offsets: list(int)")
    .Attr("convert: bool = false")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "chunk_bytes", "row_bytes", "shard",
                         "shards", "action", "stored_shards"},
                        {"paths", "file_shards"},
                        {"files"}},
                       {{}, {3}}))
    .Doc(R"doc(
Applies files of a snapshot to a table, or checks them.

Rows are set, and the erased signs of a delta are erased; other rows are kept.
If a file is damaged, the error names file and byte; chunks that were read
before have been applied.

handle: Scalar. The table, or its shard on this device.
paths: `[f]`. The files.
files: `[f, 5]`. As returned by SparseTableSave for each file.
chunk_bytes: Scalar. The size of a chunk.
row_bytes: Scalar. Bytes of a row in the files.
shard: Scalar. The shard whose rows are applied.
shards: Scalar. The number of the table's shards.
action: Scalar. 'load' applies the files, chunk by chunk. 'verify' only checks
  them. 'gather' and 'update' are part of an update, which
  SparseTableBeginUpdate begins: the first collects the signs that the files
  erase in the end, the second sets the rows of all others.
file_shards: `[f]`. The snapshot's shard of each file, which must hold no rows
  of other shards.
stored_shards: Scalar. The number of shards of the snapshot.
rows: Scalar. The number of rows set.
converted: `[3]`. How many values were of another type than the table's, how
  many of them changed, and how many of those were limited to the largest finite
  value; each value that was set counts.
field_names: Fields to set, including weights. Others get the values of a new
  row.
field_types: Their types.
field_counts: Their numbers of values in a row.
field_offsets: Their offsets in a row, in bytes.
convert: Whether floats may be of other types than the table's; they are rounded
  to the nearest value.
)doc");

REGISTER_OP("TfExt>SyncFiles")
    .Input("directory: string")
    .Input("names: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"directory"}, {"names"}}, {}))
    .Doc(R"doc(
Makes files durable that other ops have written.

File systems other than local ones do that when a file is closed.

directory: Scalar. Where the files are; it becomes durable, too.
names: `[f]`. The names of the files.
)doc");

REGISTER_OP("TfExt>WriteFileAtomically")
    .Input("path: string")
    .Input("contents: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"path", "contents"}}, {}))
    .Doc(R"doc(
Writes a file atomically and durably.

path: Scalar. The file; an existing one is replaced. A killed process may leave
  behind a file of this name with the suffix '.part'.
contents: Scalar. The contents of the file.
)doc");

}  // namespace
}  // namespace tf_ext
