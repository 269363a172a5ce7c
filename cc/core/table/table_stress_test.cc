// SPDX-License-Identifier: Apache-2.0
// Threads, churn and random operations. Run under the thread and address
// sanitizers too.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cc/core/table/bucket_index.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stress_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

TEST(TableStressTest, FirstTouchByManyThreadsMakesOneWholeRow) {
  const int64_t kDim = 33;
  const auto table = MakeTable("adagrad", kDim);
  const int64_t kRounds = 200;
  const int64_t kSigns = 100;
  std::vector<std::vector<float>> seen(kThreads);
  Together(kThreads, [&](int t) {
    for (int64_t round = 0; round < kRounds; ++round) {
      const std::vector<float> rows =
          Pull(table.get(), Range(round * kSigns, (round + 1) * kSigns), true);
      seen[t].insert(seen[t].end(), rows.begin(), rows.end());
    }
  });
  EXPECT_EQ(table->Size(), kRounds * kSigns);
  EXPECT_EQ(Export(*table).signs.size(), static_cast<size_t>(kRounds * kSigns));
  const std::vector<float> expected =
      Pull(MakeTable("adagrad", kDim).get(), Range(0, kRounds * kSigns), false);
  for (int t = 0; t < kThreads; ++t) EXPECT_TRUE(seen[t] == expected) << t;
}

TEST(TableStressTest, RowsAreNeverTorn) {
  // Long rows and few of them, so that threads meet in the same ones.
  const int64_t kDim = 512;
  const auto table = MakeConstantTable("sgd", kDim);
  const std::vector<int64_t> signs = Range(0, 64);
  std::atomic<int64_t> torn{0};
  Together(kThreads, [&](int t) {
    for (int round = 0; round < 1500; ++round) {
      if (t == 0) {
        Push(table.get(), signs,
             std::vector<float>(signs.size() * kDim, round % 7 - 3.0f));
      } else if (t == 1) {
        Erase(table.get(), Range(round % 5, 64, 5));
      } else {
        torn += CountTorn(Pull(table.get(), signs, t == 2), kDim);
      }
    }
  });
  EXPECT_EQ(torn, 0);
}

// A reader that meets a writer takes another way; it inserts no more there.
TEST(TableStressTest, ReadersInsertNothingBesideAWriter) {
  const auto table = MakeTable();
  const std::vector<int64_t> signs = Range(0, 20000);
  const std::vector<int64_t> absent = Range(20000, 40000);
  Pull(table.get(), signs, true);
  const std::vector<float> expected = Pull(MakeTable().get(), absent, false);
  std::atomic<bool> read{false};
  int64_t others = 0;
  Together(2, [&](int t) {
    if (t == 0) {
      while (!read) Push(table.get(), signs, std::vector<float>(80000, 1));
      return;
    }
    for (int round = 0; round < 50; ++round) {
      if (Pull(table.get(), absent, false) != expected) ++others;
    }
    read = true;
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(table->Size(), 20000);
}

// Readers hold locks nearly always, and there is always one who does.
TEST(TableStressTest, PushesComeThroughBesideEndlessPulls) {
  const auto table = MakeConstantTable("sgd", 4);
  const std::vector<int64_t> signs = Range(0, 20000);
  Pull(table.get(), signs, true);
  std::atomic<bool> pushed{false};
  std::atomic<int64_t> torn{0};
  Together(kThreads, [&](int t) {
    if (t > 0) {
      while (!pushed) torn += CountTorn(Pull(table.get(), signs, false), 4);
      return;
    }
    for (int round = 0; round < 50; ++round) {
      Push(table.get(), signs, std::vector<float>(signs.size() * 4, 1));
    }
    pushed = true;
  });
  EXPECT_EQ(torn, 0);
  const std::vector<float> rows = Pull(table.get(), signs, false);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 1.0f - 50), 80000);
}

TEST(TableStressTest, EveryUpdateOfSeveralPushersIsThere) {
  // Batches of different sizes lock different stripes at once.
  const auto table = MakeConstantTable("sgd", 8);
  const int64_t kRounds = 100;
  const auto signs_of = [](int t) { return int64_t{350} << t; };
  Together(kThreads, [&](int t) {
    const std::vector<int64_t> signs = Range(0, signs_of(t));
    const std::vector<float> gradients(signs.size() * 8, -1);
    for (int64_t round = 0; round < kRounds; ++round) {
      Push(table.get(), signs, gradients);
    }
  });
  std::vector<float> expected(signs_of(kThreads - 1) * 8, 1);
  for (int t = 0; t < kThreads; ++t) {
    for (int64_t i = 0; i < signs_of(t) * 8; ++i) expected[i] += kRounds;
  }
  EXPECT_EQ(Pull(table.get(), Range(0, signs_of(kThreads - 1)), false),
            expected);
}

TEST(TableStressTest, AWalkSeesEveryPermanentRowOnceAndWhole) {
  const int64_t kDim = 16;
  const auto table = MakeConstantTable("adagrad", kDim);
  const int64_t kPermanent = 5000;
  const auto import = [&](const std::vector<int64_t>& signs, float value) {
    // Weights and accumulators of a row are always the same number.
    const std::vector<float> values(signs.size() * kDim, value);
    const std::vector<ConstFieldData> fields = {{"weights", values.data()},
                                                {"accumulator", values.data()}};
    EXPECT_TRUE(
        table->Import(signs.data(), signs.size(), fields, SerialFor).ok());
  };
  import(Range(0, kPermanent), 2);
  std::atomic<bool> stop{false};
  Together(kThreads, [&](int t) {
    if (t == 0) {
      for (int walk = 0; walk < 10; ++walk) {
        std::map<int64_t, int> seen;
        int64_t cursor = 0;
        while (cursor != -1) {
          const ExportedRows rows =
              Export(*table, cursor, 700, {"weights", "accumulator"});
          for (size_t i = 0; i < rows.signs.size(); ++i) {
            ++seen[rows.signs[i]];
            const std::vector<float> weights = FloatsOf(rows, 0, i);
            EXPECT_TRUE(IsConstant(weights.data(), kDim));
            EXPECT_EQ(weights, FloatsOf(rows, 1, i));
          }
          cursor = rows.next_cursor;
        }
        for (int64_t sign = 0; sign < kPermanent; ++sign) {
          ASSERT_EQ(seen[sign], 1) << sign;
        }
      }
      stop = true;
      return;
    }
    // Others come and go, and the permanent ones are written to.
    for (int64_t round = 0; !stop; ++round) {
      const int64_t begin = (t + 1) * 1000000 + round % 50 * 1000;
      import(Range(begin, begin + 1000), static_cast<float>(round));
      import(Range(0, kPermanent, 7), static_cast<float>(round));
      EXPECT_EQ(Erase(table.get(), Range(begin, begin + 1000)), 1000);
    }
  });
  EXPECT_EQ(table->Size(), kPermanent);
}

TEST(TableStressTest, MaintenanceDuringTraining) {
  const int64_t kDim = 4;
  const auto table = MakeConstantTable("sgd", kDim);
  std::atomic<int64_t> torn{0};
  Together(kThreads, [&](int t) {
    std::mt19937_64 random(t);
    for (int round = 0; round < 60; ++round) {
      std::vector<int64_t> signs(2500);
      for (int64_t& sign : signs) sign = random() % 20000;
      if (t == 0 && round % 10 == 9) {
        ClearRows(table);
        EXPECT_GE(table->Size(), 0);
      } else if (t == 0) {
        const TableStats stats = table->Stats();
        EXPECT_LE(stats.rows, 20000);
        EXPECT_LE(static_cast<int64_t>(Export(*table).signs.size()), 20000);
      } else {
        torn += CountTorn(Pull(table.get(), signs, true), kDim);
        Push(table.get(), signs, std::vector<float>(signs.size() * kDim, 1));
      }
    }
  });
  EXPECT_EQ(torn, 0);
  const std::vector<int64_t> left = Export(*table).signs;
  EXPECT_EQ(Erase(table.get(), left), static_cast<int64_t>(left.size()));
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableStressTest, SameRowsInTheSameOrderForOneAndManyThreads) {
  const uint64_t seed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::vector<ExportedRows> exported;
  for (const int threads : {0, 1, 3, 8}) {
    const ParallelFor parallel = threads == 0 ? SerialFor : Threads(threads);
    const auto table = MakeTable("adagrad", 8);
    std::mt19937_64 random(seed);
    for (int step = 0; step < 4; ++step) {
      std::vector<int64_t> signs(50000);
      std::vector<float> gradients(signs.size() * 8);
      for (int64_t& sign : signs) sign = random() % 60000;
      for (float& gradient : gradients) gradient = 1e-3f * (random() % 100);
      std::vector<float> out(signs.size() * 8);
      ASSERT_TRUE(
          table->Pull(signs.data(), 30000, true, out.data(), parallel).ok());
      const double hyperparameters[] = {0.05, 0, 1e-7};
      int64_t count = 0;
      ASSERT_TRUE(table
                      ->Push(signs.data(), gradients.data(), signs.size(),
                             hyperparameters, 3, 1, parallel, &count)
                      .ok());
      ASSERT_TRUE(
          table->Erase(signs.data() + 20000, 5000, parallel, &count).ok());
    }
    exported.push_back(Export(*table, 0, -1, FieldNames(*table)));
  }
  for (const ExportedRows& rows : exported) {
    EXPECT_EQ(rows.signs, exported[0].signs);
    EXPECT_EQ(rows.fields, exported[0].fields);
  }
}

TEST(TableStressTest, ALargeBatchIsTheSameAsManySmallOnes) {
  const uint64_t seed = 20240608;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const int64_t n = 100000;
  std::mt19937_64 random(seed);
  std::vector<int64_t> signs(n);
  std::vector<float> weights(n);
  for (int64_t i = 0; i < n; ++i) {
    signs[i] = random() % 30000;
    weights[i] = static_cast<float>(i);
  }
  const auto large = MakeTable("sgd", 1);
  ASSERT_TRUE(
      large->Import(signs.data(), n, {{"weights", weights.data()}}, Threads(3))
          .ok());
  const auto small = MakeTable("sgd", 1);
  for (int64_t i = 0; i < n; i += 1000) {
    ASSERT_TRUE(
        small->Import(&signs[i], 1000, {{"weights", &weights[i]}}, SerialFor)
            .ok());
  }
  // Rows in the order of first appearance, the last value of each.
  EXPECT_EQ(Export(*large).signs, Export(*small).signs);
  EXPECT_EQ(Export(*large).fields, Export(*small).fields);
}

TEST(TableStressTest, AgreesWithAMapOverRandomOperations) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto table = MakeTable("sgd", 1);
    std::unordered_map<int64_t, float> model;
    std::mt19937_64 random(seed);
    for (int step = 0; step < 300; ++step) {
      // The range rises, so that the indexes grow many times, and falls again.
      const uint64_t range = 1 + random() % (step < 200 ? step * 500 + 1 : 99);
      std::vector<int64_t> signs(random() % 3000);
      for (int64_t& sign : signs) {
        sign = static_cast<int64_t>(random() % range) - 50;
      }
      const bool insert = random() % 2 == 0;
      const auto value = [&](int64_t sign) {
        const auto it = model.find(sign);
        return it != model.end() ? it->second
                                 : Pull(table.get(), {sign}, false)[0];
      };
      switch (random() % 3) {
        case 0: {
          std::vector<float> expected;
          for (const int64_t sign : signs) {
            expected.push_back(value(sign));
            if (insert) model.emplace(sign, expected.back());
          }
          ASSERT_EQ(Pull(table.get(), signs, insert), expected);
          break;
        }
        case 1: {
          std::vector<float> gradients;
          for (const int64_t sign : signs) {
            gradients.push_back(0.25f * (random() % 9));
            model[sign] = value(sign) - gradients.back();
          }
          Push(table.get(), signs, gradients);
          break;
        }
        case 2: {
          int64_t erased = 0;
          for (const int64_t sign : signs) erased += model.erase(sign);
          ASSERT_EQ(Erase(table.get(), signs), erased);
          break;
        }
      }
      ASSERT_EQ(table->Size(), static_cast<int64_t>(model.size()));
    }
    const ExportedRows rows = Export(*table);
    ASSERT_EQ(rows.signs.size(), model.size());
    for (size_t i = 0; i < rows.signs.size(); ++i) {
      float weight;
      std::memcpy(&weight, &rows.fields[0][i * 4], 4);
      ASSERT_EQ(weight, model.at(rows.signs[i]));
    }
  }
}

TEST(TableStressTest, ChurnDoesNotGrowMemoryNorLengthenProbes) {
  const auto table = MakeTable("adagrad", 8);
  const int64_t kRows = 20000;
  Pull(table.get(), Range(0, kRows), true);
  const int64_t erase_batch = 2000;
  TableStats first;
  for (int64_t round = 0; round < 200; ++round) {
    const int64_t begin = round * erase_batch;
    EXPECT_EQ(Erase(table.get(), Range(begin, begin + erase_batch)),
              erase_batch);
    Pull(table.get(), Range(kRows + begin, kRows + begin + erase_batch), true);
    if (round == 19) first = table->Stats();
  }
  const TableStats last = table->Stats();
  EXPECT_EQ(last.rows, kRows);
  EXPECT_LE(last.slab_bytes, 1.1 * first.slab_bytes);
  EXPECT_LE(last.slab_bytes, 1.3 * kRows * last.row_bytes);
  EXPECT_LE(last.index_bytes, 2 * first.index_bytes);
  EXPECT_LE(last.max_probe_length, 16);
  // With every row erased, no bucket says that an entry went past it: a
  // search for an absent sign ends at its home, and so does every new entry.
  Erase(table.get(), Export(*table).signs);
  EXPECT_EQ(table->Stats().max_probe_length, 0);
  Pull(table.get(), Range(0, 1000), true);
  EXPECT_EQ(table->Stats().max_probe_length, 1);
}

TEST(BucketIndexTest, ChurnDoesNotLengthenSearches) {
  const uint64_t seed = 20240609;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  size_t buckets = 101;
  int grown = 0;
  BucketIndex index(buckets);
  std::vector<uint64_t> hashes;
  while (!index.Crowded(hashes.size())) {
    hashes.push_back(random());
    index.Insert(hashes.back(), hashes.size() - 1);
  }
  const auto find = [&](uint32_t row) {
    return index.Find(hashes[row], [row](uint32_t at) { return at == row; });
  };
  for (int i = 0; i < 300000; ++i) {
    const uint32_t row = random() % hashes.size();
    ASSERT_EQ(
        index.Erase(hashes[row], [row](uint32_t at) { return at == row; }),
        row);
    ASSERT_EQ(find(row), kNoRow);
    if (index.Crowded(hashes.size() - 1)) {
      ++grown;
      index = BucketIndex(buckets *= 2);
      for (uint32_t r = 0; r < hashes.size(); ++r) {
        if (r != row) index.Insert(hashes[r], r);
      }
    }
    hashes[row] = random();
    index.Insert(hashes[row], row);
  }
  EXPECT_EQ(grown, 1);
  for (uint32_t row = 0; row < hashes.size(); ++row) ASSERT_EQ(find(row), row);
  // Slots of a bucket have the tag looked for with probability 0.02, so rows
  // compared for absent signs count the buckets visited.
  const int kSearches = 100000;
  int64_t compared = 0;
  for (int i = 0; i < kSearches; ++i) {
    index.Find(random(), [&compared](uint32_t) {
      ++compared;
      return false;
    });
  }
  EXPECT_LT(compared, 0.03 * kSearches);
}

}  // namespace
}  // namespace tf_ext
