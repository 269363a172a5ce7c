// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/table/table_access.h"

#include <cstddef>
#include <map>

#include "cc/ops/kernel_util.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

// Fewer signs are not worth waking a thread for: they take less than 100
// microseconds.
constexpr int64_t kSignsWorthThreads = 2048;

using Clock = OpCounts::Clock;

// Runs fn(0) ... fn(count - 1), possibly at the same time; returns the error of
// the lowest number.
template <typename Fn>
absl::Status ForEachOf(int64_t count, int64_t signs,
                       const ParallelFor& parallel_for, const Fn& fn) {
  std::vector<absl::Status> statuses(count);
  const auto run = [&](int64_t i) { statuses[i] = fn(i); };
  RunBlocks(count, signs < kSignsWorthThreads ? SerialFor : parallel_for, run);
  for (const absl::Status& status : statuses) TF_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

int64_t CountPulled(const TablePull& pull) {
  int64_t signs = 0;
  for (const Table::PullPart& part : pull.parts) signs += part.n;
  return signs;
}

// The places of each table's pushes, in their order.
std::vector<std::vector<size_t>> PushesByTable(
    const std::vector<TablePush>& pushes) {
  std::vector<std::vector<size_t>> places;
  std::map<const Table*, size_t> found;
  for (size_t i = 0; i < pushes.size(); ++i) {
    const auto [it, is_new] =
        found.emplace(pushes[i].held.table.get(), places.size());
    if (is_new) places.emplace_back();
    places[it->second].push_back(i);
  }
  return places;
}

}  // namespace

absl::Status CheckPulledValues(absl::string_view dim_name, int64_t dim,
                               absl::string_view statistics_name,
                               int64_t statistics, const TableConfig& config) {
  if (dim != config.dim) {
    return InvalidArgument(dim_name, " is ", dim,
                           ", but the rows of the table '", config.name,
                           "' have ", config.dim, " weights.");
  }
  if (statistics != 0 && statistics != config.statistics) {
    return InvalidArgument(statistics_name, " is ", statistics,
                           ", but the rows of the table '", config.name,
                           "' have ", config.statistics,
                           " statistics; it must be that or 0.");
  }
  return absl::OkStatus();
}

absl::Status PullTables(const std::vector<TablePull>& pulls,
                        const ParallelFor& parallel_for) {
  int64_t signs = 0;
  for (const TablePull& pull : pulls) signs += CountPulled(pull);
  return ForEachOf(pulls.size(), signs, parallel_for, [&](int64_t i) {
    const TablePull& pull = pulls[i];
    const auto begin = Clock::now();
    TF_RETURN_IF_ERROR(ToTf(pull.held.table->Pull(
        pull.parts, pull.insert, parallel_for, pull.with_statistics)));
    pull.held.counts->pull.Add(CountPulled(pull), begin);
    return absl::OkStatus();
  });
}

absl::Status PushTables(const std::vector<TablePush>& pushes,
                        const std::optional<StepPush>& step,
                        const ParallelFor& parallel_for) {
  int64_t signs = 0;
  for (const TablePush& push : pushes) signs += push.batch.n;
  std::vector<Clock::duration> checked(pushes.size());
  TF_RETURN_IF_ERROR(
      ForEachOf(pushes.size(), signs, parallel_for, [&](int64_t i) {
        const auto begin = Clock::now();
        TF_RETURN_IF_ERROR(ToTf(
            pushes[i].held.table->CheckPush(pushes[i].batch, parallel_for)));
        checked[i] = Clock::now() - begin;
        return absl::OkStatus();
      }));
  const std::vector<std::vector<size_t>> places = PushesByTable(pushes);
  return ForEachOf(places.size(), signs, parallel_for, [&](int64_t table) {
    if (step.has_value()) {
      Table& its = *pushes[places[table][0]].held.table;
      bool is_new;
      TF_RETURN_IF_ERROR(ToTf(its.applied_steps().Claim(*step, &is_new)));
      if (!is_new) {
        for (const size_t i : places[table]) *pushes[i].updated = 0;
        return absl::OkStatus();
      }
    }
    for (const size_t i : places[table]) {
      const TablePush& push = pushes[i];
      // As if the check had just ended.
      const auto begin = Clock::now() - checked[i];
      TF_RETURN_IF_ERROR(ToTf(push.held.table->PushChecked(
          push.batch, parallel_for, push.updated)));
      push.held.counts->push.Add(push.batch.n, begin);
      push.held.counts->step.store(push.batch.step, std::memory_order_relaxed);
    }
    return absl::OkStatus();
  });
}

}  // namespace tf_ext
