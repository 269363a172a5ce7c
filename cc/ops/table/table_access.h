// SPDX-License-Identifier: Apache-2.0
// Reading and training of tables by an op, one or several at a time.
#ifndef TF_EXT_CC_OPS_TABLE_TABLE_ACCESS_H_
#define TF_EXT_CC_OPS_TABLE_TABLE_ACCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/support/parallel.h"
#include "cc/core/table/applied_steps.h"
#include "cc/core/table/config.h"
#include "cc/core/table/table.h"
#include "cc/ops/table/op_counts.h"

namespace tf_ext {

// A table that is used until this is destroyed.
struct HeldTable {
  std::shared_ptr<Table> table;
  TableCounts* counts = nullptr;
};

// The numbers of values that a pull reads of each row must be those that the
// rows of the table have, or 0 statistics; the names are of the attributes.
absl::Status CheckPulledValues(absl::string_view dim_name, int64_t dim,
                               absl::string_view statistics_name,
                               int64_t statistics, const TableConfig& config);

// What is read of a table.
struct TablePull {
  HeldTable held;
  std::vector<Table::PullPart> parts;
  bool insert = false;
  bool with_statistics = false;
};

// Reads all, several at the same time where there are threads and enough signs.
// A table may be among them more than once.
absl::Status PullTables(const std::vector<TablePull>& pulls,
                        const ParallelFor& parallel_for);

// What a table is updated with.
struct TablePush {
  HeldTable held;
  Table::PushBatch batch;
  int64_t* updated = nullptr;
};

// Updates all, as PullTables reads them, if none refuses its batch; otherwise
// no table is changed. A table that is among them more than once is updated in
// this order. With `step`, tables that this push of it has updated before stay
// as they are.
absl::Status PushTables(const std::vector<TablePush>& pushes,
                        const std::optional<StepPush>& step,
                        const ParallelFor& parallel_for);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_TABLE_ACCESS_H_
