// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr float kMostFloat = std::numeric_limits<float>::max();

std::unique_ptr<Table> MakeCounting(int statistics = 2,
                                    LastSeen last_seen = LastSeen::kNone) {
  TableConfig config = MakeConfig("sgd", 3);
  config.statistics = statistics;
  config.last_seen = last_seen;
  return MakeTable(config);
}

// `statistics`: empty for none.
Status TryCount(Table* table, const std::vector<int64_t>& signs,
                const std::vector<float>& statistics, int64_t step = 1,
                const ParallelFor& parallel_for = SerialFor) {
  const std::vector<float> gradients(signs.size() * table->config().dim, 0.5f);
  int64_t updated = -1;
  return table->Push(signs.data(), gradients.data(), signs.size(),
                     kSubtract.data(), kSubtract.size(), step, parallel_for,
                     &updated, 0,
                     statistics.empty() ? nullptr : statistics.data(),
                     statistics.size() / signs.size());
}

void Count(Table* table, const std::vector<int64_t>& signs,
           const std::vector<float>& statistics = {}, int64_t step = 1,
           const ParallelFor& parallel_for = SerialFor) {
  EXPECT_TRUE(IsOk(TryCount(table, signs, statistics, step, parallel_for)));
}

int64_t Decay(Table* table, double factor,
              const ParallelFor& parallel_for = SerialFor) {
  int64_t decayed = -1;
  EXPECT_TRUE(IsOk(table->DecayStatistics(factor, parallel_for, &decayed)));
  return decayed;
}

EvictedRows Evict(Table* table, const EvictionArgs& policy, int64_t now = 0,
                  const ParallelFor& parallel_for = SerialFor) {
  EvictedRows evicted;
  EXPECT_TRUE(IsOk(table->Evict(policy, now, parallel_for, &evicted)));
  return evicted;
}

EvictionArgs ByShow(int64_t rows) {
  EvictionArgs policy;
  policy.capacity = rows;
  policy.by_show = true;
  return policy;
}

EvictionArgs Score(double threshold, double show_weight = 1,
                   double click_weight = 0, int64_t unseen = 0,
                   bool require_all = false) {
  EvictionArgs policy;
  policy.score = {threshold, show_weight, click_weight};
  policy.unseen = unseen;
  policy.require_all = require_all;
  return policy;
}

using Statistics = std::map<int64_t, std::vector<float>>;

Statistics StatisticsOf(const Table& table) {
  std::vector<std::string> fields = {"show", "click"};
  fields.resize(table.config().statistics);
  const ExportedRows rows = Export(table, 0, -1, fields);
  Statistics statistics;
  for (size_t i = 0; i < rows.signs.size(); ++i) {
    for (size_t f = 0; f < fields.size(); ++f) {
      statistics[rows.signs[i]].push_back(FloatsOf(rows, f, i)[0]);
    }
  }
  return statistics;
}

std::vector<int64_t> SignsOf(const Table& table) {
  std::vector<int64_t> signs = Export(table).signs;
  std::sort(signs.begin(), signs.end());
  return signs;
}

TEST(StatisticsTest, AreTheLastFieldsOfARow) {
  const auto table = MakeCounting(2, LastSeen::kStep);
  EXPECT_EQ(FieldNames(*table), (std::vector<std::string>{
                                    "weights", "last_seen", "show", "click"}));
  EXPECT_EQ(table->layout().raw_bytes(), 8 + 12 + 3 * 4);
  EXPECT_EQ(FieldNames(*MakeCounting(1)),
            (std::vector<std::string>{"weights", "show"}));
  EXPECT_EQ(MakeCounting(0)->layout().raw_bytes(), 8 + 12);
}

TEST(StatisticsTest, AreAddedByPushes) {
  const auto table = MakeCounting();
  Pull(table.get(), {1}, true);
  Count(table.get(), {2, 3}, {4, 1, 2.5, 0});
  Count(table.get(), {3, 4}, {1, 0.25, 0, 0});
  EXPECT_EQ(
      StatisticsOf(*table),
      (Statistics{{1, {0, 0}}, {2, {4, 1}}, {3, {3.5, 0.25}}, {4, {0, 0}}}));
}

// Of many batches, chunks and duplicates: counts that are exact as bfloat16,
// such as whole numbers up to 256, and others.
TEST(StatisticsTest, AreTheSumsOfAllKindsOfCounts) {
  const std::vector<float> values = {
      0,    1,      2,   255, 256,  257,        0.5f,
      0.1f, 65536,  1e9, 3,   128,  16777215.f, 1.00390625f,
      1e30, 1e-40f, 7,   1,   0.3f, kMostFloat};
  const std::vector<int64_t> distinct = Range(-1000, 19000, 3);
  std::vector<int64_t> signs = distinct;
  signs.insert(signs.end(), distinct.begin(), distinct.end());
  signs.insert(signs.end(), distinct.rbegin(), distinct.rend());
  signs.insert(signs.end(), distinct.begin(), distinct.end());
  signs.insert(signs.end(), distinct.begin(), distinct.end());
  signs.insert(signs.end(), distinct.begin(), distinct.end());
  for (const int fields : {1, 2}) {
    std::vector<float> counts;
    Statistics expected;
    std::mt19937 random(fields);
    for (const int64_t sign : signs) {
      std::vector<float>& sums = expected[sign];
      sums.resize(fields);
      for (int f = 0; f < fields; ++f) {
        const float value = values[random() % values.size()];
        counts.push_back(value);
        sums[f] = std::min(sums[f] + value, kMostFloat);
      }
    }
    for (const int threads : {1, 3}) {
      const auto table = MakeCounting(fields, LastSeen::kStep);
      Count(table.get(), signs, counts, 1, Threads(threads));
      EXPECT_EQ(StatisticsOf(*table), expected) << fields << " " << threads;
    }
  }
}

TEST(StatisticsTest, OfBothFieldsAreNotMixedUp) {
  const auto table = MakeCounting();
  Count(table.get(), {1, 2, 3}, {3, 0, 0, 5, 257, 1});
  EXPECT_EQ(StatisticsOf(*table),
            (Statistics{{1, {3, 0}}, {2, {0, 5}}, {3, {257, 1}}}));
}

// Also where an item carries the counts along: the gradient is still that of
// its sign.
TEST(StatisticsTest, DoNotChangeWhichGradientIsOfARow) {
  for (const float count : {1.0f, 0.1f}) {
    const auto table = MakeCounting();
    const std::vector<int64_t> signs = Range(0, 300, 1);
    Pull(table.get(), signs, true);
    const std::vector<float> before = Pull(table.get(), signs, false);
    std::vector<float> gradients(before.size());
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = i;
    const std::vector<float> counts(2 * signs.size(), count);
    int64_t updated = -1;
    ASSERT_TRUE(table
                    ->Push(signs.data(), gradients.data(), signs.size(),
                           kSubtract.data(), kSubtract.size(), 1, SerialFor,
                           &updated, 0, counts.data(), 2)
                    .ok());
    const std::vector<float> after = Pull(table.get(), signs, false);
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_EQ(after[i], before[i] - gradients[i]);
    }
  }
}

TEST(StatisticsTest, OneIsCountedPerOccurrenceIfNoneAreGiven) {
  for (const int fields : {1, 2}) {
    const auto table = MakeCounting(fields);
    Count(table.get(), {5, 6, 5, 5});
    const Statistics statistics = StatisticsOf(*table);
    EXPECT_EQ(statistics.at(5)[0], 3);
    EXPECT_EQ(statistics.at(6)[0], 1);
    if (fields == 2) {
      EXPECT_EQ(statistics.at(5)[1], 0);
    }
  }
}

TEST(StatisticsTest, StayFinite) {
  const auto table = MakeCounting();
  Count(table.get(), {1, 1}, {kMostFloat, 0, kMostFloat, 3});
  EXPECT_EQ(StatisticsOf(*table), (Statistics{{1, {kMostFloat, 3}}}));
}

TEST(StatisticsTest, MayBeMinusZero) {
  const auto table = MakeCounting();
  Count(table.get(), {1, 2}, {1, -0.0f, 2, 3});
  EXPECT_EQ(StatisticsOf(*table), (Statistics{{1, {1, 0}}, {2, {2, 3}}}));
  EXPECT_EQ(TryCount(table.get(), {1, 2}, {1, -0.0f, -1, 0}).code(),
            StatusCode::kInvalidArgument);
}

TEST(StatisticsTest, ChangeNoWeight) {
  const auto with = MakeCounting();
  const auto without = MakeCounting(0);
  for (Table* table : {with.get(), without.get()}) {
    Count(table, Range(0, 9), {});
    Count(table, Range(0, 9), std::vector<float>(18, 2));
  }
  EXPECT_EQ(Export(*with).fields, Export(*without).fields);
}

TEST(StatisticsTest, BadOnesChangeNothing) {
  const auto table = MakeCounting();
  Count(table.get(), {1, 2}, {1, 0, 1, 0});
  const std::vector<float> weights = Pull(table.get(), {1, 2}, false);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<std::vector<float>, const char*>> cases = {
      {{1, 0, -1, 0}, "statistics[1, 0] of sign 3 is -1;"},
      {{1, nan, 1, 0}, "statistics[0, 1] of sign 1 is nan"},
      {{1, 0, 1, INFINITY}, "statistics[1, 1] of sign 3 is inf"},
      {{-INFINITY, 0, 1, 0}, "statistics[0, 0] of sign 1 is -inf"},
      {{1, -nan, 1, 0}, "statistics[0, 1] of sign 1 is -nan"},
      {{1, 1}, "statistics has 1 columns"},
      {{1, 1, 1, 1, 1, 1}, "statistics has 3 columns"},
  };
  for (const auto& [statistics, says] : cases) {
    const Status status = TryCount(table.get(), {1, 3}, statistics);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_PRED2(Says, status.message(), says);
  }
  EXPECT_EQ(StatisticsOf(*table), (Statistics{{1, {1, 0}}, {2, {1, 0}}}));
  EXPECT_EQ(Pull(table.get(), {1, 2}, false), weights);
}

TEST(StatisticsTest, DecayInAllRows) {
  const auto table = MakeCounting();
  EXPECT_EQ(Decay(table.get(), 0.5), 0);
  // More rows per stripe than change in one lock hold.
  const std::vector<int64_t> signs = Range(0, 300000);
  Count(table.get(), signs, std::vector<float>(600000, 3));
  EXPECT_EQ(Decay(table.get(), 0.5), 300000);
  EXPECT_EQ(Decay(table.get(), 1, Threads(3)), 300000);
  EXPECT_EQ(Decay(table.get(), 0.1, Threads(3)), 300000);
  const float expected = 1.5f * 0.1f;
  for (const auto& [sign, values] : StatisticsOf(*table)) {
    ASSERT_EQ(values, (std::vector<float>{expected, expected})) << sign;
  }
}

TEST(StatisticsTest, RefuseOtherFactors) {
  int64_t decayed = -1;
  for (const double factor : {0.0, -1.0, 1.0001, double{NAN}}) {
    const auto table = MakeCounting();
    const Status status = table->DecayStatistics(factor, SerialFor, &decayed);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_PRED2(Says, status.message(), "; it must be above 0 and at most 1.");
  }
  const Status status =
      MakeCounting(0)->DecayStatistics(0.5, SerialFor, &decayed);
  EXPECT_PRED2(Says, status.message(), "has no statistics that could decay");
}

// The next delta contains all rows after a decay, and none without.
TEST(StatisticsTest, ADecayIsInTheNextDelta) {
  const auto table = MakeCounting();
  Count(table.get(), Range(0, 100), std::vector<float>(200, 4));
  ASSERT_TRUE(table->BeginChainSave("full", "").ok());
  const Files full = Write(*table, false);
  ASSERT_TRUE(table->EndChainSave("full", true).ok());
  Decay(table.get(), 0.5);
  ASSERT_TRUE(table->BeginChainSave("delta", "full").ok());
  const Files delta = Write(*table, true);
  ASSERT_TRUE(table->EndChainSave("delta", true).ok());
  int64_t rows = 0;
  for (const File& file : delta) rows += file.written.rows;
  EXPECT_EQ(rows, 100);
  const auto copy = MakeCounting();
  for (const Files& files : {full, delta}) {
    Load(files, StoredAs(*table), copy.get());
  }
  EXPECT_EQ(StatisticsOf(*copy).at(7), (std::vector<float>{2, 2}));
  EXPECT_EQ(RowsOf(*copy), RowsOf(*table));
}

TEST(StatisticsTest, ADecayIsAChange) {
  const auto table = MakeCounting();
  int64_t number;
  bool held;
  ASSERT_TRUE(table->BeginUpdate("", false, &number).ok());
  ASSERT_TRUE(table->EndUpdate(number, true, "a", &held).ok());
  ASSERT_EQ(table->Held(), "a");
  Decay(table.get(), 0.5);
  EXPECT_EQ(table->Held(), "");
}

TEST(ScoreTest, EvictsRowsBelowTheThreshold) {
  const auto table = MakeCounting();
  Count(table.get(), {1, 2, 3, 4}, {1, 0, 2, 0, 3, 0, 1, 1});
  const EvictedRows evicted = Evict(table.get(), Score(2));
  EXPECT_EQ(evicted.examined, 4);
  EXPECT_EQ(evicted.evicted, 2);
  EXPECT_EQ(SignsOf(*table), (std::vector<int64_t>{2, 3}));
  Count(table.get(), {4}, {1, 1});
  // 2 is at 1, 3 at 1.5 and 4 at 0.5 + 0.75.
  EXPECT_EQ(Evict(table.get(), Score(1.25, 0.5, 0.75)).evicted, 1);
  EXPECT_EQ(SignsOf(*table), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(Evict(table.get(), Score(100)).evicted, 2);
  EXPECT_EQ(Evict(table.get(), Score(100)).examined, 0);
}

TEST(ScoreTest, GoesWithTheAge) {
  for (const bool all : {false, true}) {
    const auto table = MakeCounting(2, LastSeen::kStep);
    Count(table.get(), {1, 2}, {1, 0, 9, 0}, 1);
    Count(table.get(), {3, 4}, {1, 0, 9, 0}, 10);
    Evict(table.get(), Score(5, 1, 0, 5, all), 10);
    EXPECT_EQ(SignsOf(*table), all ? (std::vector<int64_t>{2, 3, 4})
                                   : (std::vector<int64_t>{4}));
  }
}

TEST(ScoreTest, EvictsImportedRowsWithoutAScore) {
  const auto table = MakeCounting(1);
  const std::vector<int64_t> signs = {1, 2, 3};
  const std::vector<float> show = {NAN, -5, 7};
  ASSERT_TRUE(
      table->Import(signs.data(), 3, {{"show", show.data()}}, SerialFor).ok());
  EXPECT_EQ(Evict(table.get(), ByShow(1)).evicted, 2);
  EXPECT_EQ(SignsOf(*table), (std::vector<int64_t>{3}));
  ASSERT_TRUE(
      table->Import(signs.data(), 3, {{"show", show.data()}}, SerialFor).ok());
  EXPECT_EQ(Evict(table.get(), Score(0)).evicted, 2);
  EXPECT_EQ(SignsOf(*table), (std::vector<int64_t>{3}));
}

TEST(ScoreTest, RefusesWhatTheTableDoesNotHold) {
  EvictedRows evicted;
  const auto says = [&](Table* table, const EvictionArgs& policy) {
    const Status status = table->Evict(policy, 1, SerialFor, &evicted);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  const auto none = MakeCounting(0, LastSeen::kStep);
  const auto show = MakeCounting(1);
  EXPECT_PRED2(Says, says(none.get(), Score(1)),
               "does not hold the show of its rows, so it cannot evict by "
               "that; make it with statistics=show.");
  EXPECT_PRED2(Says, says(none.get(), ByShow(1)), "does not hold the show");
  EXPECT_PRED2(Says, says(show.get(), Score(1, 0, 1)),
               "does not hold the click of its rows, so it cannot evict by "
               "that; make it with statistics=show,click.");
  EXPECT_PRED2(Says, says(show.get(), Score(1, 1, 0, 5)),
               "does not hold when its rows were last seen");
  EXPECT_PRED2(Says, says(show.get(), Score(NAN)), "score has the value nan");
  EXPECT_PRED2(Says, says(show.get(), Score(1, INFINITY)),
               "score has the value inf");
  EvictionArgs both = ByShow(1);
  both.score = {1, 1, 0};
  EXPECT_PRED2(Says, says(show.get(), both),
               "capacity is 1, and there is a score");
  EXPECT_PRED2(Says, says(show.get(), Score(1, 1, 0, -1)), "unseen is -1");
}

// The table against the rows in a map, over random programs.
TEST(ScoreTest, CapacityByShowKeepsTheHighest) {
  for (const int threads : {1, 4}) {
    std::mt19937_64 random(threads);
    const auto table = MakeCounting(1);
    std::map<int64_t, float> model;
    for (int round = 0; round < 40; ++round) {
      std::vector<int64_t> signs(random() % 2000 + 1);
      std::vector<float> show(signs.size());
      for (size_t i = 0; i < signs.size(); ++i) {
        signs[i] = static_cast<int64_t>(random() % 3000);
        show[i] = static_cast<float>(random() % 5);
        model[signs[i]] += show[i];
      }
      Count(table.get(), signs, show, 1, Threads(threads));
      if (round % 3 == 1) {
        Decay(table.get(), 0.75, Threads(threads));
        for (auto& [sign, value] : model) value *= 0.75f;
      }
      const size_t rows = random() % 2000;
      std::vector<std::pair<std::pair<float, uint64_t>, int64_t>> order;
      for (const auto& [sign, value] : model) {
        const uint64_t hash =
            Mix64(static_cast<uint64_t>(sign) ^ 0x2545f4914f6cdd1du);
        order.push_back({{value, hash}, sign});
      }
      std::sort(order.begin(), order.end());
      const size_t gone = order.size() - std::min(order.size(), rows);
      for (size_t i = 0; i < gone; ++i) model.erase(order[i].second);
      const EvictedRows evicted =
          Evict(table.get(), ByShow(rows), 0, Threads(threads));
      EXPECT_EQ(evicted.evicted, static_cast<int64_t>(gone));
      EXPECT_EQ(evicted.examined, static_cast<int64_t>(order.size()));
      Statistics expected;
      for (const auto& [sign, value] : model) expected[sign] = {value};
      ASSERT_EQ(StatisticsOf(*table), expected);
    }
  }
}

TEST(ScoreTest, OfAnEmptyTableEvictsNothing) {
  const auto table = MakeCounting();
  for (const EvictionArgs& policy : {Score(1), ByShow(0), ByShow(9)}) {
    const EvictedRows evicted = Evict(table.get(), policy);
    EXPECT_EQ(evicted.examined, 0);
    EXPECT_EQ(evicted.evicted, 0);
  }
}

// No addition is lost, whatever other threads do, and a decay that runs beside
// an eviction does not lower the rows below its cutoff.
TEST(StatisticsTest, AreSumsBesideOtherThreads) {
  constexpr int kRounds = 100;
  const auto table = MakeCounting();
  const std::vector<int64_t> signs = Range(0, 4000);
  std::vector<float> statistics;
  for (size_t i = 0; i < signs.size(); ++i) {
    statistics.push_back(2);
    statistics.push_back(1);
  }
  Count(table.get(), signs, statistics);
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        Count(table.get(), signs, statistics);
      }
      --running;
    });
  }
  while (running > 0) {
    EXPECT_EQ(Evict(table.get(), ByShow(4000)).evicted, 0);
    EXPECT_EQ(Evict(table.get(), Score(2)).evicted, 0);
    Decay(table.get(), 1);
    Export(*table, 0, -1, {"show", "click"});
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [sign, values] : StatisticsOf(*table)) {
    ASSERT_EQ(values,
              (std::vector<float>{2 * (2 * kRounds + 1), 2 * kRounds + 1}));
  }
}

TEST(StatisticsTest, DecayDoesNotDisturbAnEviction) {
  const auto table = MakeCounting(1);
  // So many steps that the sums never fall to 0.
  const std::vector<int64_t> signs = Range(0, 20000);
  Count(table.get(), signs, std::vector<float>(signs.size(), 1e30f));
  std::atomic<bool> stop{false};
  std::thread decaying([&] {
    for (int i = 0; i < 200; ++i) Decay(table.get(), 0.9);
    stop = true;
  });
  while (!stop) {
    const EvictedRows evicted = Evict(table.get(), ByShow(19999));
    EXPECT_LE(evicted.evicted, 1);
    if (evicted.evicted == 1) {
      const std::vector<int64_t> left = SignsOf(*table);
      std::vector<int64_t> gone;
      std::set_difference(signs.begin(), signs.end(), left.begin(), left.end(),
                          std::back_inserter(gone));
      ASSERT_EQ(gone.size(), size_t{1});
      Count(table.get(), gone, {1e30f});
    }
  }
  decaying.join();
}

}  // namespace
}  // namespace tf_ext
