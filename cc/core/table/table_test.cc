// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/table.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
const std::vector<int64_t> kExtremeSigns = {0, -1, -2, kMin, kMax, 1};

TEST(TableTest, CreateRefusesABadConfig) {
  std::unique_ptr<Table> table;
  const Status status = Table::Create(MakeConfig("sgd", 0), &table);
  EXPECT_PRED2(Says, status.message(), "dim=0 is not allowed");
  EXPECT_EQ(table, nullptr);
}

TEST(TableTest, ExtremeSignsAreOrdinary) {
  const auto table = MakeTable();
  const std::vector<float> first = Pull(table.get(), kExtremeSigns, true);
  EXPECT_EQ(table->Size(), 6);
  EXPECT_EQ(Pull(table.get(), kExtremeSigns, true), first);
  EXPECT_EQ(table->Size(), 6);
  // Distinct signs have distinct initial rows.
  std::set<std::vector<float>> rows;
  for (size_t i = 0; i < kExtremeSigns.size(); ++i) {
    rows.insert({first.begin() + 4 * i, first.begin() + 4 * (i + 1)});
  }
  EXPECT_EQ(rows.size(), kExtremeSigns.size());
  for (size_t i = 0; i < kExtremeSigns.size(); ++i) {
    EXPECT_EQ(Erase(table.get(), {kExtremeSigns[i]}), 1);
    EXPECT_EQ(Erase(table.get(), {kExtremeSigns[i]}), 0);
    EXPECT_EQ(table->Size(), 5 - static_cast<int64_t>(i));
  }
}

TEST(TableTest, InitialRowsAreDistinctWithinAndAcrossBatches) {
  const auto table = MakeTable();
  std::set<std::vector<float>> rows;
  for (int64_t batch = 0; batch < 10; ++batch) {
    const std::vector<float> pulled =
        Pull(table.get(), Range(batch * 100, batch * 100 + 100), true);
    for (int i = 0; i < 100; ++i) {
      rows.insert({pulled.begin() + 4 * i, pulled.begin() + 4 * (i + 1)});
    }
  }
  EXPECT_EQ(rows.size(), 1000u);
}

TEST(TableTest, PullWithoutInsertReadsInitialWeightsAndChangesNothing) {
  const auto table = MakeTable();
  const std::vector<int64_t> signs = Range(0, 1000);
  const std::vector<float> absent = Pull(table.get(), signs, false);
  EXPECT_EQ(table->Size(), 0);
  EXPECT_EQ(Pull(table.get(), signs, true), absent);
  EXPECT_EQ(table->Size(), 1000);
}

TEST(TableTest, EveryDimIsCopiedWhole) {
  for (const int64_t dim : {1, 2, 3, 7, 8, 16, 17, 32, 64, 100, 65536}) {
    const auto table = MakeTable("sgd", dim);
    const std::vector<float> rows = Pull(table.get(), {5, 6, 5, 9}, true);
    EXPECT_EQ(Pull(table.get(), {5, 6, 5, 9}, false), rows) << dim;
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                            [](float w) { return std::isnan(w); }),
              0)
        << dim;
  }
}

TEST(TableTest, PartsOfAPullGoWhereTheyBelong) {
  for (const int64_t dim : {1, 3, 16}) {
    // Parts of less and of more signs than a thread deals out at a time.
    for (const int64_t n : {10, 100000}) {
      const auto whole = MakeTable("sgd", dim);
      const auto parted = MakeTable("sgd", dim);
      const std::vector<int64_t> signs = Range(0, n);
      const std::vector<float> expected = Pull(whole.get(), signs, true);
      for (const bool insert : {false, true, false}) {
        // The second half first, and an odd gap between.
        const int64_t half = n / 2;
        std::vector<float> out(n * dim + 5, -9.0f);
        float* const last = out.data() + half * dim + 5;
        ASSERT_TRUE(IsOk(parted->Pull({{signs.data(), half, last},
                                       {nullptr, 0, nullptr},
                                       {signs.data() + half, half, out.data()}},
                                      insert, Threads(2))));
        EXPECT_TRUE(std::equal(last, last + half * dim, expected.begin()));
        EXPECT_TRUE(std::equal(out.begin(), out.begin() + half * dim,
                               expected.begin() + half * dim));
        for (int i = 0; i < 5; ++i) EXPECT_EQ(out[half * dim + i], -9.0f);
      }
      EXPECT_EQ(parted->Size(), n);
    }
  }
}

TEST(TableTest, PushBeforePullCreatesTheRow) {
  const auto table = MakeTable();
  const std::vector<float> start = Pull(table.get(), {42}, false);
  Push(table.get(), {42}, {1, 2, 3, 4});
  EXPECT_EQ(table->Size(), 1);
  const std::vector<float> row = Pull(table.get(), {42}, false);
  for (int d = 0; d < 4; ++d) EXPECT_EQ(row[d], start[d] - (d + 1)) << d;
}

TEST(TableTest, CountsTheRowsThatPushesUpdate) {
  const auto table = MakeTable();
  Pull(table.get(), {1, 2, 3}, true);
  EXPECT_EQ(table->Stats().updated, 0);
  Push(table.get(), {42, 1}, std::vector<float>(8, 1));
  Push(table.get(), {42}, {1, 2, 3, 4});
  EXPECT_EQ(table->Stats().updated, 3);
}

TEST(TableTest, DuplicatesInAPushAreUpdatedInOrder) {
  // Adagrad's result depends on the order, and on the second seeing the first.
  const std::vector<double> hyperparameters = {0.1, 0, 1e-7};
  for (const int repeats : {1, 2, 3, 40, 100}) {
    const auto batched = MakeTable("adagrad", 1);
    const auto single = MakeTable("adagrad", 1);
    std::vector<int64_t> signs;
    std::vector<float> gradients;
    for (int i = 0; i < repeats; ++i) {
      for (const int64_t sign : {7, -1, 7, 8}) {
        signs.push_back(sign);
        gradients.push_back(0.1f * (signs.size() % 13));
      }
    }
    Push(batched.get(), signs, gradients, hyperparameters);
    for (size_t i = 0; i < signs.size(); ++i) {
      Push(single.get(), {signs[i]}, {gradients[i]}, hyperparameters);
    }
    EXPECT_EQ(Pull(batched.get(), {7, -1, 8}, false),
              Pull(single.get(), {7, -1, 8}, false));
    EXPECT_EQ(batched->Size(), 3);
  }
}

TEST(TableTest, DuplicatesInAPullAreOneRow) {
  const auto table = MakeTable();
  const std::vector<float> rows = Pull(table.get(), {3, 3, 3}, true);
  EXPECT_EQ(table->Size(), 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(rows[i], rows[i + 4]);
}

TEST(TableTest, PushRefusesNonFiniteGradientsWhole) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const auto table = MakeTable();
    const std::vector<int64_t> present = Range(0, 100);
    const std::vector<float> before = Pull(table.get(), present, true);
    const std::vector<int64_t> signs = Range(0, 200);
    std::vector<float> gradients(800, 1);
    gradients[4 * 150 + 3] = bad;
    gradients[4 * 160] = bad;
    int64_t updated = -1;
    const Status status =
        table->Push(signs.data(), gradients.data(), 200, kSubtract.data(), 2, 1,
                    SerialFor, &updated);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_PRED2(Says, status.message(), "gradients[150, 3] of sign 150");
    EXPECT_PRED2(Says, status.message(), "must be finite");
    EXPECT_EQ(updated, 0);
    EXPECT_EQ(table->Stats().updated, 0);
    EXPECT_EQ(table->Size(), 100);
    EXPECT_EQ(Pull(table.get(), present, false), before);
  }
}

TEST(TableTest, PushNamesTheFirstNonFiniteGradientOfALargeBatch) {
  const auto table = MakeTable("sgd", 64);
  const int64_t n = 12288;  // in three blocks of 4,096 rows each
  const std::vector<int64_t> signs = Range(0, n);
  std::vector<float> gradients(n * 64, std::numeric_limits<float>::max());
  gradients.back() = NAN;
  for (const int64_t bad : {64 * 4000 + 7, 64 * 4096 - 1, 64 * 4096,
                            64 * 8192 - 1, 64 * 8192, 64 * 12288 - 1}) {
    const float before = gradients[bad];
    gradients[bad] = INFINITY;
    int64_t updated = -1;
    const Status status =
        table->Push(signs.data(), gradients.data(), n, kSubtract.data(), 2, 1,
                    Threads(3), &updated);
    EXPECT_PRED2(Says, status.message(),
                 "gradients[" + std::to_string(bad / 64) + ", " +
                     std::to_string(bad % 64) + "] of sign");
    gradients[bad] = before;
  }
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableTest, PushRefusesBadHyperparameters) {
  const auto table = MakeTable();
  const int64_t sign = 1;
  const float gradients[4] = {1, 1, 1, 1};
  const double bad[2] = {NAN, 0};
  int64_t updated = -1;
  EXPECT_FALSE(
      table->Push(&sign, gradients, 1, bad, 2, 1, SerialFor, &updated).ok());
  EXPECT_FALSE(
      table->Push(&sign, gradients, 1, bad, 1, 1, SerialFor, &updated).ok());
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableTest, ATableToServeRefusesPushes) {
  const auto table = MakeTable("none");
  const int64_t sign = 1;
  const float gradients[4] = {1, 1, 1, 1};
  int64_t updated = -1;
  for (int64_t count : {0, 2}) {
    const Status status = table->Push(&sign, gradients, 1, kSubtract.data(),
                                      count, 1, SerialFor, &updated);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_PRED2(Says, status.message(),
                 "the table has optimizer=none, as in an exported model or "
                 "inside of tf_ext.serving.weights_only: it holds weights to "
                 "serve and cannot be trained");
  }
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableTest, NegativeCountsAreErrors) {
  const auto table = MakeTable();
  int64_t count = 0;
  EXPECT_PRED2(Says,
               table->Pull(nullptr, -1, true, nullptr, SerialFor).message(),
               "the number of signs is -1");
  EXPECT_FALSE(table->Erase(nullptr, -5, SerialFor, &count).ok());
  EXPECT_FALSE(table->Import(nullptr, -5, {}, SerialFor).ok());
}

TEST(TableTest, EmptyBatchesDoNothing) {
  const auto table = MakeTable();
  EXPECT_TRUE(Pull(table.get(), {}, true).empty());
  Push(table.get(), {}, {});
  EXPECT_EQ(Erase(table.get(), {}), 0);
  EXPECT_TRUE(table->Import(nullptr, 0, {}, SerialFor).ok());
  EXPECT_EQ(ClearRows(table), 0);
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableTest, EraseThenReinsertStartsFresh) {
  const auto table = MakeTable("adagrad");
  const std::vector<double> hyperparameters = {0.1, 0, 1e-7};
  const std::vector<float> start = Pull(table.get(), {9}, true);
  Push(table.get(), {9}, {1, 2, 3, 4}, hyperparameters);
  EXPECT_NE(Pull(table.get(), {9}, true), start);
  EXPECT_EQ(Erase(table.get(), {9, 9, 10}), 1);
  EXPECT_EQ(Pull(table.get(), {9}, true), start);
  const ExportedRows rows = Export(*table, 0, -1, {"accumulator"});
  std::vector<float> accumulator(4);
  std::memcpy(accumulator.data(), rows.fields[0].data(), 16);
  EXPECT_EQ(accumulator, std::vector<float>(4, 0.1f));
}

TEST(TableTest, SignsSpreadOverStripes) {
  const int64_t n = 1 << 20;
  for (const int64_t step : {int64_t{1}, int64_t{1} << 20}) {
    const auto table = MakeTable("sgd", 1);
    std::vector<int64_t> signs(n);
    for (int64_t i = 0; i < n; ++i) signs[i] = i * step;
    Pull(table.get(), signs, true);
    const std::vector<int64_t> sizes = table->StripeSizes();
    const double even = static_cast<double>(n) / sizes.size();
    for (const int64_t size : sizes) {
      EXPECT_NEAR(size, even, 0.05 * even) << "step " << step;
    }
    // Rows near each other in sign are not near each other in the index.
    EXPECT_LE(table->Stats().max_probe_length, 32) << "step " << step;
  }
}

TEST(TableTest, AnEmptyTableTakesNoMemoryForRows) {
  const auto table = MakeTable("adam", 1024);
  TableStats stats = table->Stats();
  EXPECT_EQ(stats.slab_bytes, 0);
  EXPECT_EQ(stats.index_bytes, 0);
  Pull(table.get(), Range(0, 10000), true);
  EXPECT_GT(table->Stats().slab_bytes, 10000 * 4096);
  EXPECT_EQ(ClearRows(table), 10000);
  stats = table->Stats();
  EXPECT_EQ(stats.rows, 0);
  EXPECT_EQ(stats.slab_bytes, 0);
  EXPECT_EQ(stats.index_bytes, 0);
  // A cleared table is as good as new.
  const std::vector<float> row = Pull(table.get(), {1}, true);
  EXPECT_EQ(Pull(table.get(), {1}, false), row);
}

// Sanitizers reserve more address space than the test leaves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Inserts until the memory is used up; true if the table is whole then.
bool SurvivesOutOfMemory() {
  const auto table = MakeTable("sgd", 1024);
  std::vector<float> out(1000 * 1024);
  rlimit usual;
  getrlimit(RLIMIT_AS, &usual);
  const rlimit low = {rlim_t{1} << 29, usual.rlim_max};
  setrlimit(RLIMIT_AS, &low);
  int64_t tried = 0;
  Status status;
  for (; status.ok() && tried < 1000000; tried += 1000) {
    const std::vector<int64_t> signs = Range(tried, tried + 1000);
    status = table->Pull(signs.data(), 1000, true, out.data(), SerialFor);
  }
  setrlimit(RLIMIT_AS, &usual);
  bool whole = status.code() == StatusCode::kResourceExhausted &&
               Says(status.message(), "out of memory in table \"test\"");
  // Every row can be found, and has its weights.
  int64_t walked = 0;
  ExportedRows rows;
  for (int64_t cursor = 0; cursor != -1; cursor = rows.next_cursor) {
    if (!table->Export(cursor, 100, {"weights"}, &rows).ok()) return false;
    const size_t n = rows.signs.size();
    if (!table->Pull(rows.signs.data(), n, false, out.data(), SerialFor).ok()) {
      return false;
    }
    walked += n;
    whole &= std::memcmp(out.data(), rows.fields[0].data(),
                         rows.fields[0].size()) == 0;
  }
  whole &= walked == table->Size() && walked > 10000 && walked < tried;
  // What is erased makes room.
  const std::vector<int64_t> first = Range(0, 1000);
  whole &= Erase(table.get(), first) == 1000;
  status = table->Pull(first.data(), 1000, true, out.data(), SerialFor);
  return whole && status.ok();
}

TEST(TableDeathTest, OutOfMemoryIsAnErrorAndTheTableStaysWhole) {
  EXPECT_EXIT(_exit(SurvivesOutOfMemory() ? 0 : 1), testing::ExitedWithCode(0),
              "");
}
#endif

TEST(TableTest, StatsCountRowsAndMemory) {
  const auto table = MakeTable("adagrad", 16);
  Pull(table.get(), Range(0, 100000), true);
  Erase(table.get(), Range(0, 100000, 4));
  const TableStats stats = table->Stats();
  EXPECT_EQ(stats.rows, 75000);
  EXPECT_EQ(stats.free_rows, 25000);
  EXPECT_EQ(stats.stripes, 64);
  EXPECT_EQ(stats.row_bytes, 136);
  EXPECT_GE(stats.slab_bytes, 100000 * 136);
  EXPECT_LE(stats.slab_bytes, 1.05 * 100000 * 136);
  EXPECT_GT(stats.index_bytes, 100000 * 5);
  EXPECT_LT(stats.index_bytes, 100000 * 14);
  EXPECT_GT(stats.min_stripe_rows, 900);
  EXPECT_LT(stats.max_stripe_rows, 1500);
  EXPECT_GE(stats.max_probe_length, 1);
}

TEST(TableTest, IndexesGrowOneAfterTheOther) {
  const auto table = MakeTable("sgd", 1);
  Pull(table.get(), Range(0, 200000), true);
  // Over a doubling of the rows the memory of the indexes rises in small
  // steps: no batch has to grow more than a few stripes.
  int64_t before = table->Stats().index_bytes;
  const int64_t start = before;
  for (int64_t n = 200000; n < 400000; n += 4000) {
    Pull(table.get(), Range(n, n + 4000), true);
    const int64_t after = table->Stats().index_bytes;
    EXPECT_LE(after - before, start / 8) << n;
    before = after;
  }
  EXPECT_GT(before, 1.6 * start);
}

TEST(StripeTest, LargeIndexesGrowInSmallSteps) {
  for (int stripe = 0; stripe < kStripes; ++stripe) {
    size_t before = Stripe::BucketsOf(stripe, 0);
    EXPECT_LE(before, 8u);
    for (int level = 1; level < 60; ++level) {
      const size_t buckets = Stripe::BucketsOf(stripe, level);
      const double growth = 1.0 * buckets / before;
      // The first levels are rounded up to whole buckets.
      EXPECT_GT(growth, 1.2) << stripe << " " << level;
      EXPECT_LT(growth, buckets > 40000 ? 1.26 : 2.01) << stripe << level;
      if (stripe > 0) {
        EXPECT_GE(buckets, Stripe::BucketsOf(stripe - 1, level));
        EXPECT_LE(buckets, Stripe::BucketsOf(stripe - 1, level + 1));
      }
      before = buckets;
    }
    // All rows that a stripe can number.
    EXPECT_GT(BucketIndex::Capacity(before), uint64_t{1} << 32);
  }
}

TEST(TableTest, TablesOfOneSeedAndAnotherNameStartDifferently) {
  TableConfig config = MakeConfig("sgd", 4);
  config.name = "other";
  const auto other = MakeTable(config);
  EXPECT_NE(Pull(MakeTable().get(), {1}, false), Pull(other.get(), {1}, false));
}

}  // namespace
}  // namespace tf_ext
