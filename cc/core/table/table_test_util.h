// SPDX-License-Identifier: Apache-2.0
// Short forms of the table's methods that fail the test on an error.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_TEST_UTIL_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_TEST_UTIL_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "gtest/gtest.h"

namespace tf_ext {

// For EXPECT_PRED2: prints both when it fails.
inline bool Says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

// sgd: learning rate 1, no weight decay, so that a push subtracts.
inline const std::vector<double> kSubtract = {1, 0};

inline TableConfig MakeConfig(const std::string& rule, int64_t dim) {
  TableConfig config;
  config.name = "test";
  config.dim = dim;
  config.seed = 17;
  config.initializer = {InitializerKind::kUniform, -1, 1};
  config.rule = RuleConfig(*FindRule(rule));
  return config;
}

inline std::unique_ptr<Table> MakeTable(const TableConfig& config) {
  std::unique_ptr<Table> table;
  EXPECT_TRUE(IsOk(Table::Create(config, &table)));
  return table;
}
inline std::unique_ptr<Table> MakeTable(const std::string& rule = "sgd",
                                        int64_t dim = 4) {
  return MakeTable(MakeConfig(rule, dim));
}

// Runs the blocks on `threads` threads, last block first for one thread, so
// that an order that the results depend on shows.
inline ParallelFor Threads(int threads) {
  return [threads](int64_t blocks, const std::function<void(int64_t)>& fn) {
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([=, &fn] {
        for (int64_t b = blocks - 1 - t; b >= 0; b -= threads) fn(b);
      });
    }
    for (std::thread& thread : running) thread.join();
  };
}

inline std::vector<float> Pull(Table* table, const std::vector<int64_t>& signs,
                               bool insert) {
  std::vector<float> rows(signs.size() * table->config().dim, NAN);
  EXPECT_TRUE(IsOk(
      table->Pull(signs.data(), signs.size(), insert, rows.data(), SerialFor)));
  return rows;
}

inline void Push(Table* table, const std::vector<int64_t>& signs,
                 const std::vector<float>& gradients,
                 const std::vector<double>& hyperparameters = kSubtract) {
  int64_t updated = -1;
  EXPECT_TRUE(IsOk(table->Push(signs.data(), gradients.data(), signs.size(),
                               hyperparameters.data(), hyperparameters.size(),
                               1, SerialFor, &updated)));
  EXPECT_EQ(updated, static_cast<int64_t>(signs.size()));
}

inline int64_t Erase(Table* table, const std::vector<int64_t>& signs) {
  int64_t erased = -1;
  EXPECT_TRUE(
      IsOk(table->Erase(signs.data(), signs.size(), SerialFor, &erased)));
  return erased;
}

inline ExportedRows Export(const Table& table, int64_t cursor = 0,
                           int64_t limit = -1,
                           const std::vector<std::string>& fields = {
                               "weights"}) {
  ExportedRows rows;
  EXPECT_TRUE(IsOk(table.Export(cursor, limit, fields, &rows)));
  return rows;
}

inline std::vector<std::string> FieldNames(const Table& table) {
  std::vector<std::string> names;
  for (const Field& field : table.layout().fields()) {
    names.push_back(field.name);
  }
  return names;
}

inline std::vector<int64_t> Range(int64_t begin, int64_t end,
                                  int64_t step = 1) {
  std::vector<int64_t> signs;
  for (int64_t sign = begin; sign < end; sign += step) signs.push_back(sign);
  return signs;
}

// Signs of one stripe.
inline std::vector<int64_t> SignsInStripe(int stripe, int64_t n) {
  const uint64_t high = static_cast<uint64_t>(stripe) << (64 - kStripeBits);
  std::vector<int64_t> signs;
  for (int64_t i = 1; i <= n; ++i) {
    const uint64_t hash = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
    signs.push_back(SignOfTableHash(high | hash >> kStripeBits));
  }
  return signs;
}

// Of a table or a pointer to one that owns it. Returns how many rows there
// were.
template <typename TablePtr>
int64_t ClearRows(const TablePtr& table) {
  int64_t cleared = 0;
  EXPECT_TRUE(table->Clear(&cleared).ok());
  return cleared;
}

// The floats of row i of an exported field.
inline std::vector<float> FloatsOf(const ExportedRows& rows, size_t field,
                                   size_t i) {
  const size_t bytes = rows.fields[field].size() / rows.signs.size();
  std::vector<float> values(bytes / sizeof(float));
  std::memcpy(values.data(), rows.fields[field].data() + i * bytes, bytes);
  return values;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_TEST_UTIL_H_
