// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that save and restore the counters of signs, for
// admission by count.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SparseTableExportCounters")
    .Input("handle: resource")
    .Input("cursor: int64")
    .Input("limit: int64")
    .Input("period: int64")
    .Output("signs: int64")
    .Output("counts: int32")
    .Output("next_cursor: int64")
    .Output("its_period: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "cursor", "limit", "period"}},
                       {{-1}, {-1, 1}, {}, {}}))
    .Doc(R"doc(
Copies the counters of signs without a row out of a table.

An iteration starts with cursor 0, continues with each next_cursor and ends when
that is -1. A counter that exists during the whole iteration is returned exactly
once.

handle: Scalar. The table, whose admission must be by count.
cursor: Scalar. 0, or the next_cursor of the previous call.
limit: Scalar. The number of counters after which the call ends. It returns
  whole 64ths of a table, so there may be more; negative: all.
period: Scalar. The current period of steps, the latest one of all shards.
signs: `[n]`. The signs.
counts: `[n, 1]`. How often each was counted; negative if it was last counted in
  the period before the current one.
next_cursor: Scalar. The cursor of the next call, or -1 at the end.
its_period: Scalar. The latest period of a push to this shard.
)doc");

REGISTER_OP("TfExt>SparseTableImportCounters")
    .Input("handle: resource")
    .Input("signs: int64")
    .Input("counts: int32")
    .Input("period: int64")
    .Input("clear: bool")
    .Output("imported: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "period", "clear"}, {"signs"}, {"counts"}},
                       {{}}))
    .Doc(R"doc(
Sets counters of signs, except of those that have a row.

Counts that would have admitted their sign are reduced to 1 less. All inputs are
checked before the table is changed.

handle: Scalar. The table, whose admission must be by count.
signs: `[n]`. The signs. The last occurrence of a repeated sign wins.
counts: `[n, 1]`. As returned by SparseTableExportCounters.
period: Scalar. The period that was passed to SparseTableExportCounters.
clear: Scalar. Whether all counters are removed first.
imported: Scalar. n.
)doc");

REGISTER_OP("TfExt>SparseTableRestoreCounters")
    .Input("handle: resource")
    .Input("paths: string")
    .Input("files: int64")
    .Input("file_shards: int64")
    .Input("stored_shards: int64")
    .Input("shard: int64")
    .Input("shards: int64")
    .Input("n: int64")
    .Input("period: int64")
    .Input("load: bool")
    .Output("counters: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "stored_shards", "shard", "shards", "n",
                         "period", "load"},
                        {"paths", "file_shards"},
                        {"files"}},
                       {{}}))
    .Doc(R"doc(
Sets counters from files of a snapshot, or checks the files.

If a file is damaged, the error names it; chunks that were read before have been
applied.

handle: Scalar. The table, whose admission must be by count.
paths: `[f]`. The files of counters.
files: `[f, 5]`. As returned by SparseTableSave for each file.
file_shards: `[f]`. The snapshot's shard of each file.
stored_shards: Scalar. The number of shards of the snapshot.
shard: Scalar. The shard whose counters are set.
shards: Scalar. The number of the table's shards.
n: Scalar. At how many occurrences the saved table admits a sign, 1 to 255.
period: Scalar. The period that was passed to SparseTableSave.
load: Scalar. Whether counters are set; if not, the files are only checked.
counters: Scalar. The number of counters that belong to the shard.
)doc");

}  // namespace
}  // namespace tf_ext
