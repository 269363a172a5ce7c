// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/gradient_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cc/core/support/status_test_util.h"

namespace tf_ext {
namespace {

// The last block first: what a block does must not depend on others.
void BackwardsFor(int64_t blocks, const std::function<void(int64_t)>& fn) {
  for (int64_t block = blocks - 1; block >= 0; --block) fn(block);
}

std::vector<float> Sums(const std::vector<float>& values,
                        const std::vector<int32_t>& segments, int64_t dim,
                        int64_t count) {
  // What is there before must not matter.
  std::vector<float> sums(count * dim, -7.0f);
  const int64_t n = static_cast<int64_t>(segments.size());
  const int64_t first = n / 3;
  EXPECT_TRUE(IsOk(SumSegments({{values.data(), first},
                                {nullptr, 0},
                                {values.data() + first * dim, n - first}},
                               segments.data(), dim, count, BackwardsFor,
                               sums.data())));
  return sums;
}

// Number of values, dim.
class SumSegmentsTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(SumSegmentsTest, AddsInOrderToTheBit) {
  const auto [n, dim] = GetParam();
  const int64_t count = n / 2 + 3;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n * dim);
  for (float& value : values) value = normal(random);
  std::vector<int32_t> segments(n);
  for (int64_t i = 0; i < n; ++i) {
    // Rising, as of one worker, then anywhere.
    segments[i] = static_cast<int32_t>(i < n / 3 ? i : random() % count);
  }
  std::vector<float> expected(count * dim, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t d = 0; d < dim; ++d) {
      expected[segments[i] * dim + d] += values[i * dim + d];
    }
  }
  const std::vector<float> sums = Sums(values, segments, dim, count);
  EXPECT_EQ(std::memcmp(sums.data(), expected.data(),
                        expected.size() * sizeof(float)),
            0);
}

INSTANTIATE_TEST_SUITE_P(
    All, SumSegmentsTest,
    testing::Combine(testing::Values(0, 1, 20, 20000),
                     testing::Values(1, 3, 7, 8, 16, 32, 40)),
    [](const auto& info) {
      return "n" + std::to_string(std::get<0>(info.param)) + "_dim" +
             std::to_string(std::get<1>(info.param));
    });

TEST(SumSegments, ZerosOfEitherSignBecomePositive) {
  const std::vector<float> sums = Sums({-0.0f}, {0}, 1, 1);
  EXPECT_FALSE(std::signbit(sums[0]));
}

TEST(SumSegments, RefusesSegmentsThatAreNotThere) {
  for (const int32_t bad : {-1, 2, std::numeric_limits<int32_t>::max()}) {
    const float values[2] = {1, 1};
    const int32_t segments[2] = {1, bad};
    float sums[2];
    const Status status =
        SumSegments({{values, 2}}, segments, 1, 2, SerialFor, sums);
    EXPECT_EQ(status.message(), "segments[1] is " + std::to_string(bad) +
                                    "; it must be at least 0 and below "
                                    "count, 2.");
  }
}

TEST(AllWithin, LooksAtEveryValue) {
  for (const int64_t n : {1, 5, 100000}) {
    std::vector<float> values(n, -2.0f);
    EXPECT_TRUE(AllWithin(values.data(), n, 2.0f));
    for (const float bad :
         {2.5f, -2.5f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (const int64_t place : {int64_t{0}, n / 2, n - 1}) {
        values[place] = bad;
        EXPECT_FALSE(AllWithin(values.data(), n, 2.0f))
            << bad << " at " << place << " of " << n;
        values[place] = 2.0f;
      }
    }
  }
  EXPECT_TRUE(AllWithin(nullptr, 0, 2.0f));
}

}  // namespace
}  // namespace tf_ext
