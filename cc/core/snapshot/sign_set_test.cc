// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/sign_set.h"

#include <cstdint>
#include <limits>
#include <random>
#include <unordered_set>
#include <vector>

#include "gtest/gtest.h"

namespace tf_ext {
namespace {

TEST(SignSetTest, EverySignIsLikeAnyOther) {
  SignSet set;
  int64_t size = 0;
  for (const int64_t sign : {int64_t{0}, int64_t{-1}, int64_t{1},
                             std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(set.Contains(sign)) << sign;
    EXPECT_TRUE(set.Add(sign)) << sign;
    EXPECT_TRUE(set.Contains(sign)) << sign;
    EXPECT_FALSE(set.Add(sign)) << sign;
    EXPECT_TRUE(set.Remove(sign)) << sign;
    EXPECT_FALSE(set.Contains(sign)) << sign;
    EXPECT_FALSE(set.Remove(sign)) << sign;
    EXPECT_EQ(set.size(), size) << sign;
    EXPECT_TRUE(set.Add(sign)) << sign;
    EXPECT_EQ(set.size(), ++size);
  }
}

TEST(SignSetTest, HoldsWhatTheStandardLibrarysDoes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  SignSet set;
  std::unordered_set<int64_t> expected;
  for (int i = 0; i < 200000; ++i) {
    const int64_t sign = static_cast<int64_t>(random() % 150000) - 75000;
    EXPECT_EQ(set.Contains(sign), expected.count(sign) != 0);
    if (random() % 3 == 0) {
      EXPECT_EQ(set.Remove(sign), expected.erase(sign) == 1);
    } else {
      EXPECT_EQ(set.Add(sign), expected.insert(sign).second);
    }
  }
  EXPECT_EQ(set.size(), static_cast<int64_t>(expected.size()));
  const std::vector<int64_t> signs = set.Signs();
  EXPECT_EQ(std::unordered_set<int64_t>(signs.begin(), signs.end()), expected);
  EXPECT_EQ(signs.size(), expected.size());
}

}  // namespace
}  // namespace tf_ext
