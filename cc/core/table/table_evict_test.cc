// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/row_time.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

std::unique_ptr<Table> MakeTimed(LastSeen unit = LastSeen::kStep,
                                 const std::string& rule = "adagrad",
                                 int64_t dim = 3) {
  TableConfig config = MakeConfig(rule, dim);
  config.last_seen = unit;
  return MakeTable(config);
}

void PushAt(Table* table, const std::vector<int64_t>& signs, int64_t step,
            int64_t time = 0, const ParallelFor& parallel_for = SerialFor) {
  const std::vector<float> gradients(signs.size() * table->config().dim, 0.5f);
  const std::vector<double> hyperparameters = {0.1, 0, 1e-7};
  int64_t updated = -1;
  EXPECT_TRUE(IsOk(table->Push(signs.data(), gradients.data(), signs.size(),
                               hyperparameters.data(), hyperparameters.size(),
                               step, parallel_for, &updated, time)));
}

EvictedRows Evict(Table* table, const EvictionArgs& policy, int64_t now,
                  const ParallelFor& parallel_for = SerialFor) {
  EvictedRows evicted;
  EXPECT_TRUE(IsOk(table->Evict(policy, now, parallel_for, &evicted)));
  return evicted;
}

EvictionArgs Policy(int64_t unseen, int64_t capacity) {
  EvictionArgs policy;
  policy.unseen = unseen;
  policy.capacity = capacity;
  return policy;
}

EvictionArgs Unseen(int64_t unseen) { return Policy(unseen, -1); }
EvictionArgs Capacity(int64_t rows) { return Policy(0, rows); }

std::map<int64_t, int32_t> Times(const Table& table) {
  const ExportedRows rows = Export(table, 0, -1, {"last_seen"});
  std::map<int64_t, int32_t> times;
  for (size_t i = 0; i < rows.signs.size(); ++i) {
    int32_t time;
    std::memcpy(&time, rows.fields[0].data() + i * sizeof(time), sizeof(time));
    times[rows.signs[i]] = time;
  }
  return times;
}

TEST(RowTimeTest, IsALastFieldOfTheRow) {
  const auto table = MakeTimed();
  EXPECT_EQ(table->layout().fields().back().name, "last_seen");
  EXPECT_EQ(table->layout().raw_bytes(), 8 + 2 * 12 + 4);
  EXPECT_EQ(MakeTable("adagrad", 3)->layout().raw_bytes(), 8 + 2 * 12);
  EXPECT_EQ(MakeTable("adagrad", 3)->layout().Find("last_seen"), nullptr);
}

TEST(RowTimeTest, HoldsTheStepOfTheLastPush) {
  const auto table = MakeTimed();
  Pull(table.get(), {1}, true);
  PushAt(table.get(), {2, 3, 3}, 7);
  PushAt(table.get(), {3}, 9);
  EXPECT_EQ(Times(*table),
            (std::map<int64_t, int32_t>{{1, kNeverSeen}, {2, 7}, {3, 9}}));
  // Steps of asynchronous workers arrive out of order.
  PushAt(table.get(), {3}, 8);
  EXPECT_EQ(Times(*table)[3], 9);
}

TEST(RowTimeTest, SaturatesSteps) {
  const auto table = MakeTimed();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  PushAt(table.get(), {1}, int64_t{kMost} + 1);
  PushAt(table.get(), {2}, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Times(*table),
            (std::map<int64_t, int32_t>{{1, kMost}, {2, kMost}}));
  EXPECT_EQ(Evict(table.get(), Unseen(1), INT64_MAX).evicted, 0);
}

TEST(RowTimeTest, HoldsSecondsSince2020) {
  const auto table = MakeTimed(LastSeen::kSecond);
  PushAt(table.get(), {1}, 5, kSecondsEpoch + 100);
  PushAt(table.get(), {2}, 6, 0);
  PushAt(table.get(), {3}, 7, INT64_MIN);
  PushAt(table.get(), {4}, 8, INT64_MAX);
  EXPECT_EQ(Times(*table), (std::map<int64_t, int32_t>{
                               {1, 100}, {2, 0}, {3, 0}, {4, INT32_MAX}}));
}

TEST(RowTimeTest, ChangesNoWeight) {
  const auto with = MakeTimed();
  const auto without = MakeTable("adagrad", 3);
  for (int step = 1; step <= 3; ++step) {
    PushAt(with.get(), Range(-9, 9, step), step);
    PushAt(without.get(), Range(-9, 9, step), step);
  }
  const std::vector<std::string> fields = {"weights", "accumulator"};
  EXPECT_EQ(Export(*with, 0, -1, fields).fields,
            Export(*without, 0, -1, fields).fields);
}

TEST(EvictTest, RemovesWhatWasNotSeen) {
  const auto table = MakeTimed();
  for (int step = 1; step <= 10; ++step) PushAt(table.get(), {step}, step);
  const EvictedRows none = Evict(table.get(), Unseen(10), 10);
  EXPECT_EQ(none.examined, 10);
  EXPECT_EQ(none.evicted, 0);
  const EvictedRows some = Evict(table.get(), Unseen(4), 10);
  EXPECT_EQ(some.examined, 10);
  EXPECT_EQ(some.evicted, 6);  // the last four steps are 7 to 10
  std::vector<int64_t> left = Export(*table).signs;
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, Range(7, 11));
  Erase(table.get(), {7});
  EXPECT_EQ(table->Stats().evicted, 6);
  EXPECT_EQ(Evict(table.get(), Unseen(2), 10).evicted, 1);
  EXPECT_EQ(table->Stats().evicted, 7);
  ClearRows(table);
  EXPECT_EQ(table->Stats().evicted, 7);
}

TEST(EvictTest, EvictedRowsStartAnew) {
  const auto table = MakeTimed();
  const std::vector<float> fresh = Pull(table.get(), {5}, false);
  PushAt(table.get(), {5}, 1);
  EXPECT_NE(Pull(table.get(), {5}, false), fresh);
  EXPECT_EQ(Evict(table.get(), Unseen(1), 2).evicted, 1);
  EXPECT_EQ(table->Size(), 0);
  EXPECT_EQ(Pull(table.get(), {5}, true), fresh);
  EXPECT_EQ(Times(*table)[5], kNeverSeen);
}

TEST(EvictTest, RowsOfUnknownAgeBeginToAge) {
  const auto table = MakeTimed();
  Pull(table.get(), {1}, true);    // never pushed
  PushAt(table.get(), {2}, 1000);  // while a clock is wrong
  // Later than now, but equal to the last push, so not known to be wrong.
  EXPECT_EQ(Evict(table.get(), Unseen(5), 10).evicted, 0);
  EXPECT_EQ(Times(*table), (std::map<int64_t, int32_t>{{1, 1000}, {2, 1000}}));
  PushAt(table.get(), {3}, 10);
  EXPECT_EQ(Evict(table.get(), Unseen(5), 10).evicted, 0);
  EXPECT_EQ(Times(*table),
            (std::map<int64_t, int32_t>{{1, 10}, {2, 10}, {3, 10}}));
  EXPECT_EQ(Evict(table.get(), Unseen(5), 14).evicted, 0);
  EXPECT_EQ(Evict(table.get(), Unseen(5), 15).evicted, 3);
}

TEST(EvictTest, OfAnEmptyTableRemovesNothing) {
  const auto table = MakeTimed();
  for (const EvictionArgs& policy : {Unseen(1), Capacity(0), Capacity(5)}) {
    const EvictedRows evicted = Evict(table.get(), policy, 100);
    EXPECT_EQ(evicted.examined, 0);
    EXPECT_EQ(evicted.evicted, 0);
  }
}

TEST(EvictTest, CanRemoveAllRows) {
  const auto table = MakeTimed();
  for (const EvictionArgs& policy : {Unseen(1), Capacity(0)}) {
    PushAt(table.get(), Range(0, 20000), 1);
    const EvictedRows evicted = Evict(table.get(), policy, 100);
    EXPECT_EQ(evicted.examined, 20000);
    EXPECT_EQ(evicted.evicted, 20000);
    EXPECT_EQ(table->Size(), 0);
  }
  PushAt(table.get(), Range(0, 20000), 101);
  EXPECT_EQ(table->Size(), 20000);
  EXPECT_EQ(table->Stats().free_rows, 0);
}

TEST(EvictTest, CapacityKeepsThoseSeenLast) {
  const auto table = MakeTimed();
  for (int64_t step = 1; step <= 300; ++step) {
    PushAt(table.get(), Range(step * 100, step * 100 + 100), step);
  }
  EXPECT_EQ(Evict(table.get(), Capacity(30000), 300).evicted, 0);
  EXPECT_EQ(Evict(table.get(), Capacity(1000), 300).evicted, 29000);
  std::vector<int64_t> left = Export(*table).signs;
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, Range(29100, 30100));
}

TEST(EvictTest, CapacityKnowsTimesAfterNowUpToTheLastPush) {
  const auto table = MakeTimed();
  PushAt(table.get(), Range(0, 50), 20);
  PushAt(table.get(), Range(50, 100), 1000);
  // Of a caller that is behind the pushes: none of these times is wrong.
  EXPECT_EQ(Evict(table.get(), Capacity(50), 10).evicted, 50);
  std::vector<int64_t> left = Export(*table).signs;
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, Range(50, 100));
}

TEST(EvictTest, CapacityBreaksTiesByAHashOfTheSign) {
  std::vector<int64_t> one;
  for (int threads : {1, 4}) {
    const auto table = MakeTimed();
    PushAt(table.get(), Range(0, 40000), 5, 0, Threads(threads));
    PushAt(table.get(), Range(0, 10), 6);
    const EvictedRows evicted =
        Evict(table.get(), Capacity(10001), 6, Threads(threads));
    EXPECT_EQ(evicted.evicted, 29999);
    std::vector<int64_t> left = Export(*table).signs;
    std::sort(left.begin(), left.end());
    ASSERT_EQ(left.size(), size_t{10001});
    EXPECT_TRUE(
        std::includes(left.begin(), left.end(), one.begin(), one.end()));
    for (int64_t sign = 0; sign < 10; ++sign) EXPECT_EQ(left[sign], sign);
    // All stripes lose about the same share.
    for (const int64_t rows : table->StripeSizes()) {
      EXPECT_GT(rows, 10001 / 64 / 2);
      EXPECT_LT(rows, 10001 / 64 * 2);
    }
    if (threads == 1) one = left;
    EXPECT_EQ(left, one);
  }
}

TEST(EvictTest, RefusesWrongArguments) {
  const auto table = MakeTimed();
  EvictedRows evicted;
  struct Case {
    EvictionArgs policy;
    int64_t now;
    const char* says;
  };
  const Case cases[] = {
      {Policy(0, -1), 1, "unseen is 0 and capacity is -1"},
      {Policy(-3, -1), 1, "unseen is -3"},
      {Policy(5, 5), 1, "unseen is 5 and capacity is 5"},
      {Policy(0, -2), 1, "capacity is -2"},
      {Unseen(1), -1, "now is -1; it must be at least 0."},
  };
  for (const Case& c : cases) {
    const Status status = table->Evict(c.policy, c.now, SerialFor, &evicted);
    EXPECT_FALSE(status.ok());
    EXPECT_PRED2(Says, status.message(), c.says);
  }
  const Status status = MakeTable()->Evict(Unseen(1), 1, SerialFor, &evicted);
  EXPECT_PRED2(Says, status.message(), "does not hold when its rows were last");
}

TEST(EvictTest, IsAChange) {
  const auto table = MakeTimed();
  PushAt(table.get(), Range(0, 10), 1);
  int64_t number;
  bool held;
  ASSERT_TRUE(table->BeginUpdate("", false, &number).ok());
  ASSERT_TRUE(table->EndUpdate(number, true, "a", &held).ok());
  ASSERT_EQ(table->Held(), "a");
  ASSERT_EQ(Evict(table.get(), Unseen(1), 2).evicted, 10);
  EXPECT_EQ(table->Held(), "");
}

// The next delta erases evicted rows, and contains rows that started to age.
TEST(EvictTest, IsInTheNextDelta) {
  const auto table = MakeTimed();
  PushAt(table.get(), Range(0, 100), 1);
  PushAt(table.get(), Range(100, 300), 2);
  PushAt(table.get(), Range(300, 310), 50);
  ASSERT_TRUE(table->BeginChainSave("full", "").ok());
  const Files full = Write(*table, false);
  ASSERT_TRUE(table->EndChainSave("full", true).ok());

  PushAt(table.get(), {400}, 3);
  ASSERT_EQ(Evict(table.get(), Unseen(2), 3).evicted, 100);
  PushAt(table.get(), Range(0, 5), 4);  // again
  ASSERT_TRUE(table->BeginChainSave("delta", "full").ok());
  const Files delta = Write(*table, true);
  // While the delta is being written.
  ASSERT_EQ(Evict(table.get(), Capacity(16), 4).evicted, 200);
  ASSERT_TRUE(table->EndChainSave("delta", true).ok());
  WrittenRows written;
  for (const File& file : delta) {
    written.rows += file.written.rows;
    written.erased += file.written.erased;
  }
  EXPECT_EQ(written.erased, 100);
  EXPECT_EQ(written.rows, 5 + 10 + 1);

  ASSERT_TRUE(table->BeginChainSave("last", "delta").ok());
  const Files last = Write(*table, true);
  ASSERT_TRUE(table->EndChainSave("last", true).ok());
  const auto copy = MakeTimed();
  for (const Files& files : {full, delta, last}) {
    Load(files, StoredAs(*table), copy.get());
  }
  EXPECT_EQ(copy->Size(), 16);
  EXPECT_EQ(RowsOf(*copy), RowsOf(*table));
}

// Rows that are pushed in every round are kept, whatever other threads do.
TEST(EvictTest, RunsBesidePullsAndPushes) {
  constexpr int64_t kRounds = 60;
  const auto table = MakeTimed(LastSeen::kStep, "adagrad", 8);
  const std::vector<int64_t> kept = Range(0, 2000);
  std::atomic<int64_t> step{0};
  std::thread pusher([&] {
    for (int64_t round = 1; round <= kRounds; ++round) {
      PushAt(table.get(), kept, round);
      PushAt(table.get(), Range(round * 10000, round * 10000 + 3000), round);
      step = round;
    }
  });
  std::thread reader([&] {
    while (step < kRounds) {
      Pull(table.get(), kept, false);
      Export(*table, 0, 1000);
    }
  });
  int64_t evicted = 0;
  while (step < kRounds) {
    // Some rows have not been pushed in the current round yet.
    evicted += Evict(table.get(), Unseen(2), step).evicted;
  }
  pusher.join();
  reader.join();
  evicted += Evict(table.get(), Unseen(1), kRounds).evicted;
  EXPECT_EQ(evicted, (kRounds - 1) * 3000);
  EXPECT_EQ(table->Size(), 5000);
  for (const auto& [sign, time] : Times(*table)) EXPECT_EQ(time, kRounds);
  // No row was evicted and inserted again.
  const std::vector<float> reference = [&] {
    const auto other = MakeTimed(LastSeen::kStep, "adagrad", 8);
    for (int64_t round = 1; round <= kRounds; ++round) {
      PushAt(other.get(), kept, round);
    }
    return Pull(other.get(), kept, false);
  }();
  EXPECT_EQ(Pull(table.get(), kept, false), reference);
}

TEST(EvictTest, ALargeOneGivesMemoryBack) {
  const int64_t kDim = 510;  // 4 KiB per row
  const auto table = MakeTimed(LastSeen::kStep, "adagrad", kDim);
  std::vector<int64_t> old(20000), kept(1000);
  std::iota(old.begin(), old.end(), 0);
  std::iota(kept.begin(), kept.end(), 20000);
  PushAt(table.get(), old, 1);
  PushAt(table.get(), kept, 100);
  const int64_t before = table->Stats().slab_bytes;
  EXPECT_EQ(Evict(table.get(), Unseen(50), 100).evicted, 20000);
  EXPECT_EQ(table->Stats().free_rows, 0);
  EXPECT_LE(table->Stats().slab_bytes, before / 6);
  EXPECT_EQ(Times(*table).size(), kept.size());
}

TEST(EvictTest, ExaminesEachRowOnceWhileTheTableIsCompacted) {
  // 9,000 rows per stripe, more than are examined in one lock hold.
  const int64_t kRows = 300000;
  const auto table = MakeTimed();
  std::vector<int64_t> all(2 * kRows);
  std::iota(all.begin(), all.end(), 0);
  PushAt(table.get(), all, 1);
  std::atomic<bool> stop{false};
  std::thread compactor([&] {
    while (!stop) {
      int64_t bytes;
      EXPECT_TRUE(table->Compact(SerialFor, &bytes).ok());
    }
  });
  // Each erasure frees rows, into which others move.
  for (int64_t first = 0; first < kRows; first += kRows / 20) {
    const std::vector<int64_t> some(all.begin() + first,
                                    all.begin() + first + kRows / 20);
    EXPECT_EQ(Erase(table.get(), some), static_cast<int64_t>(some.size()));
    const EvictedRows evicted = Evict(table.get(), Unseen(50), 2);
    EXPECT_EQ(evicted.examined, 2 * kRows - first - kRows / 20);
    EXPECT_EQ(evicted.evicted, 0);
  }
  stop = true;
  compactor.join();
}

}  // namespace
}  // namespace tf_ext
