// SPDX-License-Identifier: Apache-2.0
// What tests with several threads share.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_STRESS_TEST_UTIL_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_STRESS_TEST_UTIL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {

inline constexpr int kThreads = 4;

// Runs fn(0) ... fn(threads - 1) at the same time, started together.
inline void Together(int threads, const std::function<void(int)>& fn) {
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      ++ready;
      while (ready < threads) std::this_thread::yield();
      fn(t);
    });
  }
  for (std::thread& thread : running) thread.join();
}

// All rows start with the weight 1, so that one that is torn, half made or
// used after its end shows by two different numbers in it.
inline std::unique_ptr<Table> MakeConstantTable(const std::string& rule,
                                                int64_t dim) {
  TableConfig config = MakeConfig(rule, dim);
  config.initializer = {InitializerKind::kConstant, 1, 0};
  return MakeTable(config);
}

inline bool IsConstant(const float* row, int64_t dim) {
  for (int64_t d = 1; d < dim; ++d) {
    if (row[d] != row[0]) return false;
  }
  return true;
}

inline int64_t CountTorn(const std::vector<float>& rows, int64_t dim) {
  int64_t torn = 0;
  for (size_t i = 0; i < rows.size(); i += dim) {
    if (!IsConstant(&rows[i], dim)) ++torn;
  }
  return torn;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_STRESS_TEST_UTIL_H_
