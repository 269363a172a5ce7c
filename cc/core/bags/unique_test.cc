// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/unique.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

struct Result {
  UniqueSigns unique;
  std::vector<int32_t> inverse;
};

Result FindUnique(const std::vector<int64_t>& signs, int64_t num_shards) {
  Result result;
  result.inverse.assign(signs.size(), -1);
  EXPECT_TRUE(IsOk(UniqueByShard(signs.data(), signs.size(), num_shards,
                                 &result.unique, result.inverse.data())));
  return result;
}

// The plain way: a map and a sort that is stable.
void ExpectRight(const std::vector<int64_t>& signs, int64_t num_shards) {
  const Result result = FindUnique(signs, num_shards);
  std::vector<int64_t> order;
  std::unordered_map<int64_t, int64_t> counts;
  for (const int64_t sign : signs) {
    if (counts[sign]++ == 0) order.push_back(sign);
  }
  if (num_shards > 1 && num_shards <= 64) {
    std::stable_sort(order.begin(), order.end(), [](int64_t a, int64_t b) {
      return StripeOf(TableHash(a)) < StripeOf(TableHash(b));
    });
  }
  std::vector<int64_t> expected;
  std::vector<int64_t> split_sizes(num_shards, 0);
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    for (const int64_t sign : order) {
      if (num_shards > 1 && ShardOf(sign, num_shards) != shard) continue;
      expected.push_back(sign);
      ++split_sizes[shard];
    }
  }
  ASSERT_EQ(result.unique.signs, expected);
  ASSERT_EQ(result.unique.split_sizes, split_sizes);
  ASSERT_EQ(result.unique.counts.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(result.unique.counts[i], counts[expected[i]]);
  }
  for (size_t i = 0; i < signs.size(); ++i) {
    ASSERT_EQ(expected[result.inverse[i]], signs[i]);
  }
}

TEST(UniqueTest, KeepsTheOrderOfFirstAppearance) {
  const Result result = FindUnique({5, 3, 5, -1, 3, 5}, 1);
  EXPECT_EQ(result.unique.signs, (std::vector<int64_t>{5, 3, -1}));
  EXPECT_EQ(result.unique.counts, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_EQ(result.unique.split_sizes, (std::vector<int64_t>{3}));
  EXPECT_EQ(result.inverse, (std::vector<int32_t>{0, 1, 0, 2, 1, 0}));
}

TEST(UniqueTest, ExtremeSignsAreOrdinary) {
  const int64_t kMin = std::numeric_limits<int64_t>::min();
  const int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t num_shards : {1, 2, 5}) {
    ExpectRight({0, -1, -2, kMin, kMax, 1, kMax, kMin, -2, -1, 0}, num_shards);
  }
}

TEST(UniqueTest, AnEmptyBatchHasEmptyShards) {
  const Result result = FindUnique({}, 3);
  EXPECT_TRUE(result.unique.signs.empty());
  EXPECT_TRUE(result.unique.counts.empty());
  EXPECT_EQ(result.unique.split_sizes, (std::vector<int64_t>{0, 0, 0}));
}

TEST(UniqueTest, AgreesWithAMapOnRandomBatches) {
  // Sizes around the block, and large after small and small after large: the
  // scratch is used again.
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    for (const int64_t n :
         {1, 31, 32, 33, 64, 5000, 70000, 200000, 3, 2000, 65, 70000}) {
      const uint64_t range = 1 + random() % (2 * n);
      const int64_t step = random() % 2 == 0 ? 1 : int64_t{1} << 20;
      std::vector<int64_t> signs(n);
      for (int64_t& sign : signs) {
        sign = (static_cast<int64_t>(random() % range) - 3) * step;
      }
      for (const int64_t num_shards : {1, 2, 7, 64, 65}) {
        ExpectRight(signs, num_shards);
      }
    }
  }
}

TEST(UniqueTest, NothingStaysOfTheScratchOfALargeBatch) {
  std::vector<int64_t> signs(150000);
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = i;
  ExpectRight(signs, 1);
  // The first small batch after it gives memory back; the next ones have its
  // signs, at other places.
  signs.resize(100);
  ExpectRight(signs, 1);
  std::reverse(signs.begin(), signs.end());
  ExpectRight(signs, 1);
  signs.resize(150, 7);
  ExpectRight(signs, 1);
}

// The x with x ^ (x >> shift) == y.
uint64_t UndoShift(uint64_t y, int shift) {
  uint64_t x = y;
  for (int known = shift; known < 64; known += shift) x = y ^ (x >> shift);
  return x;
}

uint64_t InverseOf(uint64_t odd) {
  uint64_t inverse = odd;  // right in 3 bits; each step doubles them
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

// The sign with this TableHash.
int64_t SignOf(uint64_t hash) {
  uint64_t x = UndoShift(hash, 31) * InverseOf(0x94d049bb133111ebu);
  x = UndoShift(x, 27) * InverseOf(0xbf58476d1ce4e5b9u);
  return static_cast<int64_t>(UndoShift(x, 30) - 0x9e3779b97f4a7c15u);
}

TEST(UniqueTest, SignsThatShareSlotAndHalfOfTheHashAreDistinct) {
  std::vector<int64_t> signs;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t hash = 0xdeadbeef00000123u + (i % 50 << 20);
    signs.push_back(SignOf(hash));
    ASSERT_EQ(TableHash(signs.back()), hash);
  }
  ExpectRight(signs, 1);
  ExpectRight(signs, 3);
}

TEST(UniqueTest, ShardsAreEvenAndIndependentOfStripes) {
  std::vector<int64_t> signs(100000);
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = i;
  for (const int64_t num_shards : {2, 3, 8}) {
    const Result result = FindUnique(signs, num_shards);
    const double even = 1e5 / num_shards;
    for (const int64_t size : result.unique.split_sizes) {
      EXPECT_NEAR(size, even, 0.05 * even);
    }
    // The signs of one shard still use all 64 stripes evenly.
    std::vector<int64_t> stripes(64, 0);
    for (int64_t i = 0; i < result.unique.split_sizes[0]; ++i) {
      ++stripes[TableHash(result.unique.signs[i]) >> 58];
    }
    for (const int64_t size : stripes) {
      EXPECT_NEAR(size, even / 64, 0.3 * even / 64);
    }
  }
}

TEST(UniqueTest, ThreadsDoNotShareScratch) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::vector<int64_t> signs(5000);
      for (size_t i = 0; i < signs.size(); ++i) signs[i] = i * i % 997 + t;
      for (int round = 0; round < 10; ++round) ExpectRight(signs, 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(UniqueTest, ImpossibleSizesAreErrors) {
  UniqueSigns unique;
  const auto message = [&unique](int64_t n, int64_t num_shards) {
    const Status status =
        UniqueByShard(nullptr, n, num_shards, &unique, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message(-1, 1),
            "the number of signs is -1; it must be from 0 to 2147483647.");
  EXPECT_EQ(message(int64_t{1} << 31, 1),
            "the number of signs is 2147483648; it must be from 0 to "
            "2147483647.");
  EXPECT_EQ(message(0, 0), "num_shards is 0; it must be from 1 to 1048576.");
  EXPECT_EQ(message(0, kMaxShards + 1),
            "num_shards is 1048577; it must be from 1 to 1048576.");
}

}  // namespace
}  // namespace tf_ext
