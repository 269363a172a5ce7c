// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that evict rows of a table and let their statistics
// decay.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SparseTableEvict")
    .Input("handle: resource")
    .Input("now: int64")
    .Input("unseen: int64")
    .Input("capacity: int64")
    .Input("by_show: bool")
    .Input("score: double")
    .Input("require_all: bool")
    .Attr("policy: string = ''")
    .Output("examined: int64")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "now", "unseen", "capacity", "by_show",
                         "require_all"},
                        {"score"}},
                       {{}, {}}))
    .Doc(R"doc(
Removes rows from a table based on the time of their last push, or on their
statistics.

The table's config must have the fields that the eviction reads: `last_seen`,
`show` or `click`. If it has `last_seen`, a row that was never pushed, or is
newer than both `now` and the table's last push, gets the later of these as its
time. Incremental snapshots list the signs of evicted rows as erased.

handle: Scalar. The table.
now: Scalar, at least 0. The current step, or the current time in seconds since
  1970, depending on the config; without effect for a table without `last_seen`.
unseen: Scalar. Rows that were not pushed for this number of steps or seconds
  are evicted. 0 for none of them, as required with `capacity`.
capacity: Scalar. The number of rows that remain: the most recently pushed ones,
  and among rows with the same time those with the larger hashes of their signs.
  -1 if `unseen` or `score` is given.
by_show: Scalar. Whether the rows that remain under `capacity` are instead those
  with the highest `show`.
score: `[0]` or `[3]`: threshold, show_weight and click_weight, all finite. Rows
  with show_weight * show + click_weight * click < threshold are evicted.
require_all: Scalar. Whether rows are evicted only if both `unseen` and `score`
  apply to them, rather than one of the two.
policy: The name of a policy. If it is empty, the inputs above choose it.
examined: Scalar. The number of rows that were examined.
evicted: Scalar. The number of rows that were evicted.
)doc");

REGISTER_OP("TfExt>SparseTableDecay")
    .Input("handle: resource")
    .Input("factor: double")
    .Output("decayed: int64")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"handle", "factor"}}, {{}}))
    .Doc(R"doc(
Multiplies the statistics of all rows of a table by a factor.

The table's config must have `statistics`. All rows change, so the next
incremental snapshot contains all of them.

handle: Scalar. The table.
factor: Scalar, above 0 and at most 1.
decayed: Scalar. The number of rows.
)doc");

}  // namespace
}  // namespace tf_ext
