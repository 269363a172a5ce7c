// SPDX-License-Identifier: Apache-2.0
// Rows that come and go by admission, eviction and erasure, with statistics,
// concurrent with saves and compaction. Also run under sanitizers.

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/admission/count.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_stress_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kDim = 8;
constexpr int64_t kOthers = 8000;

// Clicks of permanent rows per push: so many that their score stays above the
// threshold of evictions, though two decays may come between two pushes.
constexpr float kManyClicks = 10;
constexpr double kThreshold = 3;

// Rows are pushed with a click for every two occurrences, so `show` is twice
// `click` in each row, however often both have decayed.
class TableLifetimeStressTest : public testing::Test {
 protected:
  void SetUp() override { PushAt(permanent_, 0, kManyClicks); }

  static std::unique_ptr<Table> Make() {
    TableConfig config = MakeConfig("sgd", kDim);
    config.initializer = {InitializerKind::kConstant, 1, 0};
    config.last_seen = LastSeen::kStep;
    config.statistics = 2;
    config.admission = std::make_shared<CountAdmission>(4, 2);
    return MakeTable(config);
  }

  // Returns the number of updates.
  int64_t PushAt(const std::vector<int64_t>& signs, int64_t step,
                 float clicks) {
    const std::vector<float> gradients(signs.size() * kDim, 1);
    std::vector<float> statistics;
    for (size_t i = 0; i < signs.size(); ++i) {
      statistics.push_back(2 * clicks);
      statistics.push_back(clicks);
    }
    int64_t updated = -1;
    EXPECT_TRUE(IsOk(table_->Push(
        signs.data(), gradients.data(), signs.size(), kSubtract.data(),
        kSubtract.size(), step, SerialFor, &updated, 0, statistics.data(), 2)));
    return updated;
  }

  // The permanent rows, in every step, and others, of which some are pushed
  // twice in two periods.
  void PushPermanent() {
    while (!stop_) {
      const int64_t step = step_ + 1;
      EXPECT_EQ(PushAt(permanent_, step, kManyClicks),
                int64_t(permanent_.size()));
      step_ = step;
    }
  }
  void PushOthers(int seed) {
    std::mt19937_64 random(seed);
    while (!stop_) {
      std::vector<int64_t> signs(700);
      for (int64_t& sign : signs) sign = 10000 + random() % kOthers;
      const int64_t step = step_;
      PushAt(signs, step, 1);
      // Late ones, too.
      PushAt(std::vector<int64_t>(signs.begin(), signs.begin() + 300),
             step > 2 ? step - 2 : 0, 1);
      EXPECT_EQ(CountTorn(Pull(table_.get(), signs, true), kDim), 0);
      signs.resize(20);
      erased_ += Erase(table_.get(), signs);
    }
  }

  void Evict(int64_t unseen, bool require_all) {
    EvictionArgs policy;
    policy.unseen = unseen;
    policy.score = {kThreshold, 1, 0};
    policy.require_all = require_all;
    EvictedRows evicted;
    EXPECT_TRUE(IsOk(table_->Evict(policy, step_, SerialFor, &evicted)));
    evicted_ += evicted.evicted;
  }
  void Maintain() {
    int64_t decayed_at = -1;
    while (!stop_) {
      Evict(4, true);
      int64_t count;
      if (const int64_t step = step_; step > decayed_at) {
        EXPECT_TRUE(table_->DecayStatistics(0.5, SerialFor, &count).ok());
        decayed_at = step;
        Evict(0, false);
      }
      EXPECT_TRUE(table_->Compact(SerialFor, &count).ok());
      const TableStats stats = table_->Stats();
      EXPECT_GE(stats.rows, int64_t(permanent_.size()));
      EXPECT_LE(stats.waiting, kOthers);
      ExpectWhole(*table_);
    }
  }

  // Saves a chain of which some snapshots fail.
  void Save() {
    chain_ = SaveChain(table_.get(), 20);
    // However little the other threads were scheduled.
    while (evicted_ == 0 || erased_ == 0) std::this_thread::yield();
  }

  void ExpectWhole(const Table& table) {
    const ExportedRows rows =
        Export(table, 0, -1, {"weights", "show", "click"});
    int64_t permanent = 0;
    for (size_t i = 0; i < rows.signs.size(); ++i) {
      ASSERT_TRUE(IsConstant(FloatsOf(rows, 0, i).data(), kDim));
      ASSERT_EQ(FloatsOf(rows, 1, i)[0], 2 * FloatsOf(rows, 2, i)[0]);
      if (rows.signs[i] < int64_t(permanent_.size())) ++permanent;
    }
    ASSERT_EQ(permanent, int64_t(permanent_.size()));
  }

  const std::vector<int64_t> permanent_ = Range(0, 2000);
  const std::unique_ptr<Table> table_ = Make();
  std::atomic<int64_t> step_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> erased_{0};
  std::atomic<int64_t> evicted_{0};
  std::vector<Files> chain_;
};

TEST_F(TableLifetimeStressTest, RowsComeAndGoBesideSaves) {
  Together(5, [&](int t) {
    if (t == 0) {
      Save();
      stop_ = true;
    } else if (t == 1) {
      PushPermanent();
    } else if (t == 2) {
      Maintain();
    } else {
      PushOthers(t);
    }
  });
  const auto loaded = Make();
  for (const Files& files : chain_) {
    Load(files, StoredAs(*table_), loaded.get());
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(*loaded));
  }
  const std::string base = table_->Chain();
  ASSERT_TRUE(table_->BeginChainSave("last", base).ok());
  Load(Write(*table_, true, 3, 1 << 14), StoredAs(*table_), loaded.get());
  ASSERT_TRUE(table_->EndChainSave("last", true).ok());
  EXPECT_TRUE(RowsOf(*loaded) == RowsOf(*table_));
  // No row came or went uncounted, and none of the permanent ones anew.
  const TableStats stats = table_->Stats();
  EXPECT_EQ(stats.evicted, evicted_);
  EXPECT_EQ(stats.admitted, stats.rows + evicted_ + erased_);
  EXPECT_EQ(Pull(table_.get(), permanent_, false),
            std::vector<float>(permanent_.size() * kDim, 0.0f - step_));
  // A sign is either a row or waiting, and those that wait are forgotten.
  const int64_t rows = table_->Size();
  EXPECT_LE(stats.waiting, kOthers - (rows - int64_t(permanent_.size())));
  PushAt({1}, step_ + 10, 1);
  EXPECT_EQ(table_->Stats().waiting, 0);
}

}  // namespace
}  // namespace tf_ext
