// SPDX-License-Identifier: Apache-2.0
// Compaction concurrent with all other operations. Also run under sanitizers.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_stress_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kDim = 8;

// Stops the other threads when the first one has finished or failed.
struct Stopper {
  ~Stopper() { *stop = true; }
  std::atomic<bool>* stop;
};

// A table with permanent rows, which must not be lost, and so many temporary
// rows that the permanent ones are moved repeatedly.
class TableCompactStressTest : public testing::Test {
 protected:
  void SetUp() override { Pull(table_.get(), permanent_, true); }

  void Churn(int64_t round) {
    const int64_t begin = (1 + round % 3) * 100000;
    const std::vector<int64_t> others = Range(begin, begin + 20000);
    // Between the permanent ones, some of which are inserted again.
    Pull(table_.get(), others, true);
    Erase(table_.get(), Range(begin, begin + 20000, 2));
    Erase(table_.get(), Range(begin + 1, begin + 20000, 2));
  }
  void Compact() {
    int64_t bytes;
    EXPECT_TRUE(IsOk(table_->Compact(SerialFor, &bytes)));
  }

  const std::vector<int64_t> permanent_ = Range(0, 3000);
  std::unique_ptr<Table> table_ = MakeConstantTable("sgd", kDim);
};

TEST_F(TableCompactStressTest, PushesPullsAndExportsLoseNothing) {
  std::atomic<int64_t> torn{0};
  std::atomic<int64_t> compacted{0};
  std::atomic<int> working{3};
  constexpr int kRounds = 60;
  Together(5, [&](int t) {
    if (t == 0) {
      for (; working > 0; ++compacted) Compact();
      return;
    }
    if (t == 1) {
      for (int64_t round = 0; working > 0; ++round) Churn(round);
      return;
    }
    for (int round = 0; round < kRounds; ++round) {
      if (t == 2) {
        Push(table_.get(), permanent_,
             std::vector<float>(permanent_.size() * kDim, 1));
      } else if (t == 3) {
        const std::vector<float> rows = Pull(table_.get(), permanent_, false);
        torn += CountTorn(rows, kDim);
        EXPECT_GE(table_->Stats().rows, 3000);
      } else {
        std::map<int64_t, int> seen;
        int64_t cursor = 0;
        while (cursor != -1) {
          const ExportedRows rows = Export(*table_, cursor, 700);
          for (size_t i = 0; i < rows.signs.size(); ++i) {
            ++seen[rows.signs[i]];
            if (!IsConstant(FloatsOf(rows, 0, i).data(), kDim)) ++torn;
          }
          cursor = rows.next_cursor;
        }
        for (const int64_t sign : permanent_) ASSERT_EQ(seen[sign], 1) << sign;
      }
    }
    --working;
  });
  EXPECT_EQ(torn, 0);
  EXPECT_GT(compacted, 0);
  EXPECT_EQ(Pull(table_.get(), permanent_, false),
            std::vector<float>(permanent_.size() * kDim, 1 - kRounds));
}

TEST(TableExportStressTest, NoSignIsExportedTwiceOrLost) {
  // Of a stripe that takes several lock holds.
  const std::vector<int64_t> lasting = SignsInStripe(0, 10000);
  std::vector<int64_t> passing = SignsInStripe(0, 20000);
  passing.erase(passing.begin(), passing.begin() + 10000);
  std::set<int64_t> sorted(lasting.begin(), lasting.end());
  const std::vector<int64_t> reversed(passing.rbegin(), passing.rend());
  for (const bool clears : {false, true}) {
    const auto table = MakeConstantTable("sgd", 1);
    Pull(table.get(), passing, true);
    if (!clears) Pull(table.get(), lasting, true);
    std::atomic<bool> stop{false};
    Together(4, [&](int t) {
      if (t == 0) {
        const Stopper stopper{&stop};
        for (int round = 0; round < 300; ++round) {
          std::vector<int64_t> found = Export(*table).signs;
          std::sort(found.begin(), found.end());
          ASSERT_EQ(std::adjacent_find(found.begin(), found.end()),
                    found.end());
          ASSERT_TRUE(clears || std::includes(found.begin(), found.end(),
                                              sorted.begin(), sorted.end()));
        }
        return;
      }
      while (!stop) {
        if (t == 1) {
          int64_t bytes;
          EXPECT_TRUE(table->Compact(SerialFor, &bytes).ok());
          continue;
        }
        if (t == 2) {
          Pull(table.get(), reversed, true);
          continue;
        }
        if (clears) {
          ClearRows(table);
        } else {
          Erase(table.get(), passing);
        }
        Pull(table.get(), passing, true);
      }
    });
  }
}

TEST_F(TableCompactStressTest, SnapshotsAndDeltasHoldWhatTheTableDoes) {
  std::vector<Files> chain;
  std::atomic<bool> stop{false};
  Together(4, [&](int t) {
    if (t == 0) {
      const Stopper stopper{&stop};
      chain = SaveChain(table_.get(), 30);
      return;
    }
    for (int64_t round = 0; !stop; ++round) {
      if (t == 1) {
        Compact();
      } else if (t == 2) {
        Churn(round);
      } else {
        Push(table_.get(), Range(round % 7, 3000, 7),
             std::vector<float>((3000 - round % 7 + 6) / 7 * kDim, 1));
      }
    }
  });
  const std::string last = table_->Chain();
  ASSERT_TRUE(table_->BeginChainSave("last", last).ok());
  chain.push_back(Write(*table_, true, 3, 1 << 14));
  ASSERT_TRUE(table_->EndChainSave("last", true).ok());
  const auto loaded = MakeConstantTable("sgd", kDim);
  for (const Files& files : chain) {
    Load(files, StoredAs(*table_), loaded.get());
  }
  EXPECT_EQ(RowsOf(*loaded), RowsOf(*table_));
}

// Rows that are inserted and erased while the smaller index is being built
// update both indexes.
TEST(TableCompactionTest, RowsThatComeAndGoBesideASmallerIndexAreCounted) {
  const auto table = MakeConstantTable("sgd", 1);
  for (int round = 0; round < 4; ++round) {
    Pull(table.get(), Range(0, 700000), true);
    Erase(table.get(), Range(300000, 700000));
    std::atomic<bool> stop{false};
    int64_t come = 0;
    Together(2, [&](int t) {
      if (t == 0) {
        int64_t bytes;
        EXPECT_TRUE(table->Compact(SerialFor, &bytes).ok());
        stop = true;
        return;
      }
      for (; !stop && come < 50000; come += 500) {
        const int64_t begin = 1000000 + come;
        Pull(table.get(), Range(begin, begin + 500), true);
        EXPECT_EQ(Erase(table.get(), Range(come, come + 500)), 500);
      }
    });
    EXPECT_EQ(table->Size(), 300000);
    EXPECT_EQ(Export(*table).signs.size(), 300000u);
    EXPECT_EQ(Erase(table.get(), Range(1000000, 1000000 + come)), come);
    EXPECT_EQ(Erase(table.get(), Range(come, 300000)), 300000 - come);
    EXPECT_EQ(table->Size(), 0);
  }
}

// The end of an update erases the rows that it has not set, while rows are
// moved.
TEST_F(TableCompactStressTest, UpdatesLeaveWhatTheyWereGiven) {
  const auto source = MakeConstantTable("sgd", kDim);
  Pull(source.get(), Range(0, 9000, 3), true);
  const Files files = Write(*source, false, 3, 1 << 14);
  const Rows expected = RowsOf(*source);
  std::atomic<bool> stop{false};
  Together(3, [&](int t) {
    if (t == 1) {
      while (!stop) Compact();
      return;
    }
    if (t == 2) {
      while (!stop) {
        EXPECT_EQ(CountTorn(Pull(table_.get(), permanent_, false), kDim), 0);
      }
      return;
    }
    const Stopper stopper{&stop};
    for (int round = 0; round < 8; ++round) {
      // More rows per stripe than are examined in one lock hold.
      Pull(table_.get(), Range(20000, 320000), true);
      int64_t number, rows;
      ASSERT_TRUE(table_->BeginUpdate("", true, &number).ok());
      ForEachChunk(files, [&](const ChunkView& chunk) {
        return table_->UpdateRows(StoredAs(*source), chunk, &rows);
      });
      bool held;
      ASSERT_TRUE(table_->EndUpdate(number, true, "id", &held).ok());
      ASSERT_TRUE(held);
      ASSERT_TRUE(RowsOf(*table_) == expected) << round;
    }
  });
}

}  // namespace
}  // namespace tf_ext
