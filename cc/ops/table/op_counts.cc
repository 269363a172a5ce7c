// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/table/op_counts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "cc/core/support/mutex.h"
#include "cc/core/table/table.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/platform/refcount.h"

namespace tf_ext {
namespace {

struct Registry {
  Mutex mutex;
  // Its values never move.
  std::map<std::string, TableCounts> of_table TF_EXT_GUARDED_BY(mutex);
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

// [signs, nanoseconds, calls in each bucket of durations]
std::vector<int64_t> Values(const OpCounts& counts) {
  std::vector<int64_t> values = {
      counts.signs.load(std::memory_order_relaxed),
      counts.nanoseconds.load(std::memory_order_relaxed)};
  for (const auto& calls : counts.calls)
    values.push_back(calls.load(std::memory_order_relaxed));
  return values;
}

// The order is known to tf_ext/ops/table/op_counts.py.
std::vector<int64_t> Values(const TableStats& stats) {
  return {stats.rows,        stats.free_rows,     stats.slab_bytes,
          stats.index_bytes, stats.counter_bytes, stats.waiting,
          stats.updated,     stats.admitted,      stats.evicted,
          stats.saturated};
}

// The sums over all tables of a name that are alive.
std::map<std::string, std::vector<int64_t>> SumsOfStats() {
  std::map<std::string, std::vector<int64_t>> sums;
  for (const auto& resource : TableResource::Live()) {
    std::shared_ptr<Table> table;
    if (!resource->Get(&table).ok()) continue;  // It was released.
    const std::vector<int64_t> values =
        Values(table->Stats(/*with_probes=*/false));
    std::vector<int64_t>& sum = sums[table->config().name];
    sum.resize(values.size());
    std::transform(values.begin(), values.end(), sum.begin(), sum.begin(),
                   std::plus<int64_t>());
  }
  return sums;
}

}  // namespace

TableCounts& CountsOfTable(const std::string& name) {
  Registry& registry = GetRegistry();
  const ExclusiveLock lock(registry.mutex);
  return registry.of_table[name];
}

OpCounts& CountsOfHashing() {
  static OpCounts* const counts = new OpCounts;
  return *counts;
}

void VisitTableCounts(
    const std::function<void(const std::string&, const TableCounts&)>& visit) {
  Registry& registry = GetRegistry();
  const ExclusiveLock lock(registry.mutex);
  for (const auto& [name, counts] : registry.of_table) visit(name, counts);
}

}  // namespace tf_ext

// Calls visit(kind, table's name, values, number of values) for each kind of
// counts and table. Not an op: the thread that asks must not initialise
// TensorFlow's devices, nor wait for ops of other tasks that do not answer.
extern "C" __attribute__((visibility("default"))) void tf_ext_visit_counts(
    void (*visit)(const char* kind, const char* table, const int64_t* values,
                  int64_t n)) {
  using tf_ext::Values;
  const auto give = [visit](const char* kind, const std::string& table,
                            const std::vector<int64_t>& values) {
    visit(kind, table.c_str(), values.data(),
          static_cast<int64_t>(values.size()));
  };
  give(
      "bounds", "",
      {std::begin(tf_ext::kDurationBounds), std::end(tf_ext::kDurationBounds)});
  give("hash", "", Values(tf_ext::CountsOfHashing()));
  tf_ext::VisitTableCounts(
      [&give](const std::string& name, const tf_ext::TableCounts& counts) {
        give("pull", name, Values(counts.pull));
        give("push", name, Values(counts.push));
        give("step", name, {counts.step.load(std::memory_order_relaxed)});
      });
  for (const auto& [name, values] : tf_ext::SumsOfStats())
    give("stats", name, values);
}
