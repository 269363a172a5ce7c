// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/admission/count.h"
#include "cc/core/table/admission/probability.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

TableConfig CountConfig(int n, int64_t forget = 0) {
  TableConfig config = MakeConfig("sgd", 2);
  config.admission = std::make_shared<CountAdmission>(n, forget);
  return config;
}

// Pushes gradients of 1; returns the number of updates.
int64_t PushOnes(Table* table, const std::vector<int64_t>& signs,
                 int64_t step = 1, const std::vector<float>& statistics = {},
                 const ParallelFor& parallel_for = SerialFor) {
  const std::vector<float> ones(signs.size() * table->config().dim, 1);
  int64_t updated = -1;
  EXPECT_TRUE(IsOk(
      table->Push(signs.data(), ones.data(), signs.size(), kSubtract.data(),
                  kSubtract.size(), step, parallel_for, &updated, 0,
                  statistics.empty() ? nullptr : statistics.data(), 1)));
  return updated;
}

std::vector<float> Plus(std::vector<float> values, float more) {
  for (float& value : values) value += more;
  return values;
}

TEST(AdmissionTest, ARowComesWithThePushThatReachesTheCount) {
  const auto table = MakeTable(CountConfig(3));
  const std::vector<float> initial = Pull(table.get(), {7}, true);
  EXPECT_EQ(PushOnes(table.get(), {7, 8}), 0);
  EXPECT_EQ(PushOnes(table.get(), {7}), 0);
  EXPECT_EQ(Pull(table.get(), {7}, true), initial);
  EXPECT_EQ(table->Size(), 0);
  EXPECT_EQ(table->Stats().waiting, 2);
  EXPECT_GT(table->Stats().counter_bytes, 0);
  EXPECT_EQ(PushOnes(table.get(), {7}), 1);
  EXPECT_EQ(Pull(table.get(), {7}, false), Plus(initial, -1));
  EXPECT_EQ(PushOnes(table.get(), {7}), 1);
  EXPECT_EQ(Pull(table.get(), {7}, false), Plus(initial, -2));
  EXPECT_EQ(table->Stats().waiting, 1);
  EXPECT_EQ(table->Stats().admitted, 1);
}

TEST(AdmissionTest, OccurrencesInABatchCountInOrder) {
  const auto table = MakeTable(CountConfig(3));
  const std::vector<float> initial = Pull(table.get(), {7}, false);
  // The third and the fourth occurrence are applied.
  EXPECT_EQ(PushOnes(table.get(), {7, 7, 8, 7, 7}), 2);
  EXPECT_EQ(Pull(table.get(), {7}, false), Plus(initial, -2));
  EXPECT_EQ(table->Stats().waiting, 1);
}

TEST(AdmissionTest, CountsTheFirstStatistic) {
  const auto table = MakeTable(CountConfig(255));
  EXPECT_EQ(
      PushOnes(table.get(), {1, 2, 3, 4, 5}, 1, {254, 255, 3e38f, 254.6f, 0}),
      3);
  EXPECT_EQ(table->Stats().waiting, 1);  // a show of 0 is none
  EXPECT_EQ(PushOnes(table.get(), {1}, 1, {0}), 0);
  EXPECT_EQ(PushOnes(table.get(), {1}, 1, {0.4f}), 0);
  EXPECT_EQ(PushOnes(table.get(), {1}, 1, {0.5f}), 1);
}

TEST(AdmissionTest, InvalidStatisticsAreRefused) {
  const auto table = MakeTable(CountConfig(1));
  const std::vector<int64_t> signs = {4, 5};
  const std::vector<float> ones(4, 1);
  const auto error_of = [&](std::vector<float> statistics, int64_t width) {
    int64_t updated = -1;
    const Status status =
        table->Push(signs.data(), ones.data(), 2, kSubtract.data(), 2, 1,
                    SerialFor, &updated, 0, statistics.data(), width);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(table->Size(), 0);
    return status.message();
  };
  EXPECT_PRED2(Says, error_of({1, -1}, 1), "statistics[1, 0] of sign 5 is -1");
  EXPECT_PRED2(Says, error_of({NAN, 1}, 1), "of sign 4 is nan");
  EXPECT_PRED2(Says, error_of({1, INFINITY}, 1), "of sign 5 is inf");
  EXPECT_PRED2(Says, error_of({1, 1, 1, 1}, 2),
               "has 2 columns; for table \"test\" it must have 1");
  EXPECT_PRED2(Says, error_of({1, 1}, 0), "has 0 columns");
}

TEST(AdmissionTest, DroppedGradientsMustBeFinite) {
  const auto table = MakeTable(CountConfig(2));
  const std::vector<int64_t> signs = {4};
  const std::vector<float> bad = {1, NAN};
  int64_t updated = -1;
  const Status status = table->Push(
      signs.data(), bad.data(), 1, kSubtract.data(), 2, 1, SerialFor, &updated);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table->Stats().waiting, 0);
}

TEST(AdmissionTest, ImportedRowsAreAdmittedAndErasedOnesCountAnew) {
  const auto table = MakeTable(CountConfig(2));
  PushOnes(table.get(), {1, 2, 3});
  const std::vector<int64_t> imported = {1, 4};
  const std::vector<float> weights = {1, 2, 3, 4};
  ASSERT_TRUE(
      table
          ->Import(imported.data(), 2, {{"weights", weights.data()}}, SerialFor)
          .ok());
  EXPECT_EQ(table->Size(), 2);
  EXPECT_EQ(table->Stats().admitted, 0);
  EXPECT_EQ(table->Stats().waiting, 2);  // no longer that of 1
  EXPECT_EQ(Erase(table.get(), {1, 2}), 1);
  EXPECT_EQ(table->Stats().waiting, 1);  // no longer that of 2
  EXPECT_EQ(PushOnes(table.get(), {1, 2, 3}), 1);
  EXPECT_EQ(Export(*table).signs.size(), 2u);
  ClearRows(table);
  EXPECT_EQ(table->Stats().waiting, 0);
  EXPECT_EQ(table->Stats().counter_bytes, 0);
}

TEST(AdmissionTest, EvictedRowsCountAnew) {
  TableConfig config = CountConfig(2);
  config.last_seen = LastSeen::kStep;
  const auto table = MakeTable(config);
  EXPECT_EQ(PushOnes(table.get(), {1, 1, 2}, 1), 1);
  EvictionArgs policy;
  policy.unseen = 5;
  EvictedRows evicted;
  ASSERT_TRUE(table->Evict(policy, 10, SerialFor, &evicted).ok());
  EXPECT_EQ(evicted.evicted, 1);
  EXPECT_EQ(PushOnes(table.get(), {1, 2}, 11), 1);
  EXPECT_EQ(Export(*table).signs, std::vector<int64_t>{2});
}

TEST(AdmissionTest, CompactionFreesCounters) {
  const auto table = MakeTable(CountConfig(2));
  const std::vector<int64_t> signs = Range(0, 200000);
  PushOnes(table.get(), signs);
  Erase(table.get(), Range(100, 200000));
  const int64_t before = table->Stats().counter_bytes;
  int64_t bytes = 0;
  ASSERT_TRUE(table->Compact(SerialFor, &bytes).ok());
  const TableStats stats = table->Stats();
  EXPECT_EQ(stats.waiting, 100);
  EXPECT_LT(stats.counter_bytes, before / 20);
  EXPECT_GE(bytes, before - stats.counter_bytes);
  EXPECT_EQ(PushOnes(table.get(), Range(0, 200)), 100);
}

TEST(AdmissionTest, ZerosAreReadForSignsWithoutARow) {
  TableConfig config = MakeConfig("sgd", 2);
  config.unknown.kind = UnknownRows::Kind::kZeros;
  const auto table = MakeTable(config);
  EXPECT_EQ(Pull(table.get(), {7, 8}, false), std::vector<float>(4, 0));
  const std::vector<float> row = Pull(table.get(), {7}, true);
  EXPECT_NE(row, std::vector<float>(2, 0));
  EXPECT_EQ(Pull(table.get(), {7}, false), row);
  config.admission = std::make_shared<CountAdmission>(1);
  const auto counted = MakeTable(config);
  EXPECT_EQ(Pull(counted.get(), {7, 8}, true), std::vector<float>(4, 0));
  PushOnes(counted.get(), {7});
  EXPECT_EQ(Pull(counted.get(), {7}, true), Plus(row, -1));
}

// The signs and counts of a table, from its definition.
class Model {
 public:
  Model(int n, int64_t forget) : n_(n), forget_(forget) {}

  void Push(const std::vector<int64_t>& signs,
            const std::vector<float>& statistics, int64_t step) {
    period_ = std::max(period_, forget_ == 0 ? 0 : step / forget_);
    for (size_t i = 0; i < signs.size(); ++i) {
      const int64_t sign = signs[i];
      if (rows_.count(sign) > 0 || statistics[i] == 0) continue;
      auto& [count, period] = counts_[sign];
      if (period_ - period > 1) count = 0;
      count += static_cast<int64_t>(statistics[i]);
      period = period_;
      if (count < n_) continue;
      rows_.insert(sign);
      counts_.erase(sign);
    }
  }
  void Erase(const std::vector<int64_t>& signs) {
    for (const int64_t sign : signs) {
      rows_.erase(sign);
      counts_.erase(sign);
    }
  }
  const std::set<int64_t>& rows() const { return rows_; }
  int64_t waiting() const {
    return std::count_if(counts_.begin(), counts_.end(), [this](auto& entry) {
      return period_ - entry.second.second <= 1;
    });
  }

 private:
  const int n_;
  const int64_t forget_;
  int64_t period_ = 0;
  std::set<int64_t> rows_;
  std::map<int64_t, std::pair<int64_t, int64_t>> counts_;  // count, period
};

TEST(AdmissionTest, ALatePushCountsInThePeriodOfTheWholeTable) {
  const auto table = MakeTable(CountConfig(2, 1));
  int64_t other = 2;
  while (StripeOf(TableHash(other)) == StripeOf(TableHash(1))) ++other;
  PushOnes(table.get(), {1}, 0);
  PushOnes(table.get(), {other}, 5);
  EXPECT_EQ(table->Stats().waiting, 1);
  EXPECT_EQ(PushOnes(table.get(), {1}, 1), 0);  // its counter was forgotten
  EXPECT_EQ(PushOnes(table.get(), {1}, 1), 1);
}

TEST(AdmissionTest, RandomProgramsLeaveTheRowsOfAModel) {
  std::mt19937_64 random(3);
  for (const int threads : {1, 4}) {
    for (const int64_t forget : {0, 7}) {
      const auto table = MakeTable(CountConfig(4, forget));
      Model model(4, forget);
      for (int64_t step = 0; step < 60; ++step) {
        std::vector<int64_t> signs(3000);
        std::vector<float> statistics(signs.size());
        for (size_t i = 0; i < signs.size(); ++i) {
          signs[i] = static_cast<int64_t>(random() % 20000 * random());
          if (i % 3 > 0) signs[i] = static_cast<int64_t>(random() % 20000);
          statistics[i] = static_cast<float>(random() % 3);
        }
        // Steps that come late.
        const int64_t late = step % 5 == 4 ? step - 3 : step;
        PushOnes(table.get(), signs, late, statistics, Threads(threads));
        model.Push(signs, statistics, late);
        if (step % 10 == 9) {
          signs.resize(500);
          Erase(table.get(), signs);
          model.Erase(signs);
        }
        ASSERT_EQ(table->Stats().waiting, model.waiting());
      }
      std::vector<int64_t> rows = Export(*table).signs;
      std::sort(rows.begin(), rows.end());
      EXPECT_EQ(rows,
                std::vector<int64_t>(model.rows().begin(), model.rows().end()));
    }
  }
}

TEST(AdmissionTest, AllArePushedAsInATableWithoutAdmission) {
  const auto plain = MakeTable("sgd", 2);
  const auto counted = MakeTable(CountConfig(1));
  std::mt19937_64 random(5);
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> signs(2000);
    for (int64_t& sign : signs) sign = static_cast<int64_t>(random() % 5000);
    EXPECT_EQ(Pull(counted.get(), signs, true), Pull(plain.get(), signs, true));
    EXPECT_EQ(PushOnes(counted.get(), signs), PushOnes(plain.get(), signs));
  }
  const ExportedRows expected = Export(*plain);
  const ExportedRows found = Export(*counted);
  EXPECT_EQ(found.signs, expected.signs);
  EXPECT_EQ(found.fields, expected.fields);
  EXPECT_EQ(counted->Stats().counter_bytes, 0);
}

TEST(AdmissionTest, AShareOfTheSignsIsAdmittedByChance) {
  TableConfig config = MakeConfig("sgd", 2);
  config.admission = std::make_shared<ProbabilityAdmission>(0.1);
  const std::vector<int64_t> signs = Range(0, 20000);
  const auto rows_after = [&](int64_t step, float show) {
    const auto table = MakeTable(config);
    PushOnes(table.get(), signs, step, std::vector<float>(signs.size(), show));
    EXPECT_EQ(table->Stats().counter_bytes, 0);
    return Export(*table).signs;
  };
  const std::vector<int64_t> once = rows_after(1, 1);
  EXPECT_NEAR(once.size(), 2000.0, 200);  // 4.7 standard deviations
  EXPECT_EQ(rows_after(1, 1), once);
  EXPECT_NE(rows_after(2, 1), once);
  EXPECT_NEAR(rows_after(1, 5).size(), 20000 * (1 - std::pow(0.9, 5)), 330);
  EXPECT_EQ(rows_after(1, 0).size(), 0u);
  EXPECT_EQ(rows_after(1, 3e38f).size(), signs.size());
  config.seed = 18;
  EXPECT_NE(rows_after(1, 1), once);
  config.admission = std::make_shared<ProbabilityAdmission>(1);
  EXPECT_EQ(rows_after(1, 1).size(), signs.size());
}

TEST(AdmissionTest, ThreadsCountEachPushOnce) {
  constexpr int kThreads = 4;
  const auto table = MakeTable(CountConfig(kThreads * 10, 1));
  const std::vector<int64_t> signs = Range(0, 3000);
  std::atomic<int64_t> updated{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      Pull(table.get(), signs, true);
      EXPECT_LE(table->Stats().waiting, 3000);
      int64_t bytes = 0;
      EXPECT_TRUE(table->Compact(SerialFor, &bytes).ok());
    }
  });
  std::vector<std::thread> pushers;
  for (int t = 0; t < kThreads; ++t) {
    pushers.emplace_back([&] {
      // Steps of one period and the next.
      for (int i = 0; i < 10; ++i) {
        updated += PushOnes(table.get(), signs, i % 2);
      }
    });
  }
  for (std::thread& thread : pushers) thread.join();
  done = true;
  reader.join();
  EXPECT_EQ(updated, 3000);  // the last push of each sign
  EXPECT_EQ(table->Size(), 3000);
  EXPECT_EQ(table->Stats().waiting, 0);
}

}  // namespace
}  // namespace tf_ext
