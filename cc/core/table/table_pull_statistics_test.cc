// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/admission/count.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kDim = 3;

// Weights are minus half of what a sign's pushes have counted as `show`.
std::unique_ptr<Table> MakeCounting(int statistics, bool admission = false) {
  TableConfig config = MakeConfig("sgd", kDim);
  config.initializer = {InitializerKind::kConstant, 0, 0};
  config.statistics = statistics;
  if (admission) {
    config.admission = std::make_shared<CountAdmission>(2);
  }
  return MakeTable(config);
}

void Count(Table* table, const std::vector<int64_t>& signs, float show,
           float click) {
  const std::vector<float> gradients(signs.size() * kDim, show / 2);
  std::vector<float> statistics;
  for (size_t i = 0; i < signs.size(); ++i) {
    statistics.push_back(show);
    if (table->config().statistics == 2) statistics.push_back(click);
  }
  int64_t updated;
  EXPECT_TRUE(IsOk(table->Push(signs.data(), gradients.data(), signs.size(),
                               kSubtract.data(), kSubtract.size(), 1, SerialFor,
                               &updated, 0, statistics.data(),
                               table->config().statistics)));
}

std::vector<float> PullCounted(Table* table, const std::vector<int64_t>& signs,
                               bool insert,
                               const ParallelFor& parallel_for = SerialFor) {
  const int64_t width = kDim + table->config().statistics;
  std::vector<float> rows(signs.size() * width, NAN);
  EXPECT_TRUE(IsOk(table->Pull(signs.data(), signs.size(), insert, rows.data(),
                               parallel_for, true)));
  return rows;
}

TEST(PullStatisticsTest, FollowTheWeights) {
  const auto table = MakeCounting(2);
  Count(table.get(), {7, -1}, 2, 1);
  Count(table.get(), {7}, 4, 0.5f);
  const std::vector<float> expected = {
      -3, -3, -3, 6, 1.5f,  // 7
      0,  0,  0,  0, 0,     // 8, absent
      -1, -1, -1, 2, 1,     // -1
      -3, -3, -3, 6, 1.5f,  // 7
  };
  EXPECT_EQ(PullCounted(table.get(), {7, 8, -1, 7}, false), expected);
  EXPECT_EQ(table->Size(), 2);
  EXPECT_EQ(PullCounted(table.get(), {7, 8, -1, 7}, true), expected);
  EXPECT_EQ(table->Size(), 3);
  // What has no statistics is read as ever.
  EXPECT_EQ(Pull(table.get(), {-1, 7}, false),
            (std::vector<float>{-1, -1, -1, -3, -3, -3}));
}

TEST(PullStatisticsTest, AreAsManyAsTheTableHas) {
  const auto one = MakeCounting(1);
  Count(one.get(), {7}, 2, 0);
  EXPECT_EQ(PullCounted(one.get(), {7, 8}, false),
            (std::vector<float>{-1, -1, -1, 2, 0, 0, 0, 0}));
  const auto none = MakeCounting(0);
  EXPECT_EQ(PullCounted(none.get(), {7, 8}, true),
            std::vector<float>(2 * kDim, 0));
}

TEST(PullStatisticsTest, OfSignsThatWaitAreZero) {
  const auto table = MakeCounting(2, true);
  Count(table.get(), {7}, 1, 1);
  EXPECT_EQ(PullCounted(table.get(), {7}, true),
            std::vector<float>(kDim + 2, 0));
  EXPECT_EQ(table->Size(), 0);
  Count(table.get(), {7}, 1, 0);
  EXPECT_EQ(PullCounted(table.get(), {7}, true)[kDim], 1);
}

TEST(PullStatisticsTest, OfPartsAreWrittenToEachPart) {
  const auto table = MakeCounting(2);
  Count(table.get(), {7}, 2, 1);
  const std::vector<int64_t> signs = {7, 8, 7};
  std::vector<float> out(20, 9);
  const std::vector<Table::PullPart> parts = {{signs.data(), 1, &out[0]},
                                              {signs.data() + 1, 2, &out[7]}};
  ASSERT_TRUE(table->Pull(parts, false, SerialFor, true).ok());
  EXPECT_EQ(out, (std::vector<float>{-1, -1, -1, 2,  1,  9, 9, 0, 0, 0,
                                     0,  0,  -1, -1, -1, 2, 1, 9, 9, 9}));
}

// A row is read under one lock, also where a pull meets a writer and goes on
// stripe by stripe, and where it inserts.
TEST(PullStatisticsTest, BelongToTheWeights) {
  const auto table = MakeCounting(2);
  std::vector<int64_t> signs(20000);
  std::iota(signs.begin(), signs.end(), -10000);
  std::atomic<bool> stop{false};
  std::thread pushing([&] {
    for (int i = 0; i < 20; ++i) Count(table.get(), signs, 2, 1);
    stop = true;
  });
  int64_t torn = 0;
  do {
    for (const bool insert : {false, true}) {
      const auto rows = PullCounted(table.get(), signs, insert, Threads(2));
      for (size_t i = 0; i < rows.size(); i += kDim + 2) {
        const float* const row = &rows[i];
        torn += row[3] != -2 * row[0] || row[2] != row[0] || row[4] != -row[0];
      }
    }
  } while (!stop);
  pushing.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(PullCounted(table.get(), {5}, false),
            (std::vector<float>{-20, -20, -20, 40, 20}));
}

}  // namespace
}  // namespace tf_ext
