// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/shrinkage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cc/core/support/simd_test_util.h"

namespace tf_ext {
namespace {

constexpr int64_t kField = 3;  // unaligned
constexpr double kUnits = 0x1p47;
constexpr long double kLn2 = 0.693147180559945309417L;

struct Strength {
  double l2;
  double l1;
};
constexpr Strength kStrengths[] = {{0.02, 0}, {0, 0.003}, {0.02, 0.003}};

// Rows of dim weights, each with how far it has been shrunk.
struct Rows {
  Rows(int64_t n, int64_t dim) : weights(n * dim), bytes(n * kBytes), dim(dim) {
    std::mt19937_64 random(7);
    for (float& weight : weights) {
      weight = static_cast<float>(static_cast<int64_t>(random())) * 0x1p-62f;
    }
    for (int64_t i = 0; i < n; ++i) rows.push_back(&bytes[i * kBytes]);
  }

  void SetShrunk(int64_t i, int64_t shrunk) {
    std::memcpy(&bytes[i * kBytes + kField], &shrunk, sizeof(shrunk));
  }
  void Shrink(const Shrinkage& shrinkage, int64_t now) {
    const auto at = [this](int64_t i) { return &weights[i * dim]; };
    shrinkage.Shrink(rows.data(), now, static_cast<int64_t>(rows.size()), at,
                     at);
  }

  static constexpr int64_t kBytes = 16;
  std::vector<float> weights;
  std::vector<uint8_t> bytes;
  std::vector<const uint8_t*> rows;
  int64_t dim;
};

TEST(ShrinkageTest, HasTheSameBitsOnEachInstructionSet) {
  constexpr int64_t kRows = 61;
  for (const Strength& strength : kStrengths) {
    for (const int64_t dim : {1, 3, 8, 16, 17, 32, 64}) {
      std::vector<float> expected;
      for (const SimdLevel simd : SimdLevels()) {
        const ScopedSimdLevel level(simd);
        const Shrinkage shrinkage(strength.l2, strength.l1, dim, kField);
        Rows rows(kRows, dim);
        constexpr int64_t kNow = int64_t{1} << 57;
        for (int64_t i = 0; i < kRows; ++i) {
          // From next to nothing to more than all, and beyond now.
          const int64_t behind =
              (int64_t{1} << std::min<int64_t>(i, 55)) * 5 / 4;
          rows.SetShrunk(i, i == 0   ? kNotShrunk
                            : i == 1 ? kNow + (int64_t{1} << 46)
                                     : kNow - behind);
        }
        rows.Shrink(shrinkage, kNow);
        if (expected.empty()) expected = rows.weights;
        EXPECT_EQ(std::memcmp(expected.data(), rows.weights.data(),
                              expected.size() * sizeof(float)),
                  0)
            << SimdLevelName(simd) << " dim " << dim;
        const Rows before(kRows, dim);
        for (size_t i = 55 * dim; i < rows.weights.size(); ++i) {
          EXPECT_EQ(rows.weights[i], 0);
        }
        // Neither a row that was not pushed nor one beyond now has changed.
        EXPECT_TRUE(std::equal(rows.weights.begin(),
                               rows.weights.begin() + 2 * dim,
                               before.weights.begin()));
      }
    }
  }
}

TEST(ShrinkageTest, RecordsHowFarRowsOfAnyNumberAreShrunk) {
  constexpr int64_t kNow = int64_t{1} << 50;
  const Shrinkage shrinkage(0.02, 0, 3, kField);
  for (int64_t n = 0; n < 60; ++n) {
    Rows rows(n, 3);
    for (int64_t i = 0; i < n; ++i) {
      rows.SetShrunk(i, i % 3 == 0 ? kNotShrunk : kNow + 9 - i);
    }
    Rows expected(n, 3);
    expected.bytes = rows.bytes;
    expected.Shrink(shrinkage, kNow);
    std::vector<uint8_t*> recorded;
    for (int64_t i = 0; i < n; ++i) {
      recorded.push_back(&rows.bytes[i * Rows::kBytes]);
    }
    const auto at = [&rows](int64_t i) { return &rows.weights[i * 3]; };
    shrinkage.ShrinkAndRecord(recorded.data(), kNow, n, at, at);
    EXPECT_EQ(rows.weights, expected.weights);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t before = shrinkage.Get(expected.rows[i]);
      EXPECT_EQ(shrinkage.Get(recorded[i]), std::max(before, kNow));
    }
  }
}

// As of a forged file.
TEST(ShrinkageTest, AnyNumberBelowZeroIsARowThatWasNotPushed) {
  constexpr int64_t kNow = int64_t{1} << 50;
  const Shrinkage shrinkage(0.02, 0, 1, kField);
  const std::vector<int64_t> numbers = {
      -1, -2, -kNow, std::numeric_limits<int64_t>::min(),
      std::numeric_limits<int64_t>::min() + kNow};
  Rows rows(numbers.size(), 1);
  const std::vector<float> before = rows.weights;
  std::vector<uint8_t*> recorded;
  for (size_t i = 0; i < numbers.size(); ++i) {
    rows.SetShrunk(i, numbers[i]);
    recorded.push_back(&rows.bytes[i * Rows::kBytes]);
  }
  rows.Shrink(shrinkage, kNow);
  EXPECT_EQ(rows.weights, before);
  const auto at = [&rows](int64_t i) { return &rows.weights[i]; };
  shrinkage.ShrinkAndRecord(recorded.data(), kNow, numbers.size(), at, at);
  EXPECT_EQ(rows.weights, before);
  for (const uint8_t* row : recorded) EXPECT_EQ(shrinkage.Get(row), kNow);
}

TEST(ShrinkageTest, AbsentStepsAreOne) {
  for (const Strength& strength : kStrengths) {
    Shrinkage shrinkage(strength.l2, strength.l1, 1, kField);
    Rows rows(100, 1);
    const std::vector<float> before = rows.weights;
    std::vector<long double> expected(before.begin(), before.end());
    for (int step = 0; step < 200; ++step) {
      const double rate = 0.2 + 0.1 * std::sin(step);
      if (step == 100) {
        // Half of the way at once, and the rest.
        rows.Shrink(shrinkage, shrinkage.now());
        for (int64_t i = 0; i < 100; ++i) rows.SetShrunk(i, shrinkage.now());
      }
      shrinkage.Advance(rate);
      for (long double& each : expected) {
        const long double left =
            (1 - static_cast<long double>(rate) * strength.l2) *
                std::fabs(each) -
            static_cast<long double>(rate) * strength.l1;
        each = std::copysign(std::max(left, 0.0L), each);
      }
    }
    rows.Shrink(shrinkage, shrinkage.now());
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_NEAR(static_cast<double>(rows.weights[i]),
                  static_cast<double>(expected[i]), 3e-7 * std::fabs(before[i]))
          << before[i];
    }
  }
}

TEST(ShrinkageTest, TheClockIsTheSameInAnyOrder) {
  std::vector<double> rates;
  for (int i = 0; i < 500; ++i) rates.push_back(0.3 / (i + 1));
  Shrinkage forwards(0.1, 0, 1, kField), backwards(0.1, 0, 1, kField);
  long double sum = 0;
  for (const double rate : rates) {
    forwards.Advance(rate);
    sum -= std::log1p(-static_cast<long double>(rate) * 0.1L) / kLn2;
  }
  std::reverse(rates.begin(), rates.end());
  for (const double rate : rates) backwards.Advance(rate);
  EXPECT_EQ(forwards.now(), backwards.now());
  EXPECT_NEAR(forwards.now() / kUnits, static_cast<double>(sum), 1e-11);
}

TEST(ShrinkageTest, TheClockTakesStepsOfAllSizes) {
  for (const double x : {0.0, 1e-12, 1e-6, 0.1, 0.49, 0.5, 0.7, 0.999999}) {
    Shrinkage shrinkage(1, 0, 1, kField);
    shrinkage.Advance(x);
    const double expected = static_cast<double>(-std::log1p(-x) / kLn2);
    EXPECT_NEAR(shrinkage.now() / kUnits, expected, 1e-14 + 1e-14 * expected)
        << x;
  }
  Shrinkage shrinkage(0, 1e6, 1, kField);
  for (int i = 0; i < 5; ++i) shrinkage.Advance(1e6);
  EXPECT_EQ(shrinkage.now(), int64_t{1} << 62);  // where it ends
}

TEST(ShrinkageTest, SmallWeightsAreRoundedToTheNearest) {
  const Shrinkage shrinkage(0.5, 0, 2, kField);
  Rows rows(1, 2);
  rows.SetShrunk(0, 0);
  const uint16_t stored[] = {0x3f80, 0xc000};  // 1 and -2 in bfloat16
  std::vector<uint8_t> bytes(sizeof(stored));
  std::memcpy(bytes.data(), stored, sizeof(stored));
  // 2^-0.5 is .70711: of bfloat16, .70703 is the nearest.
  shrinkage.ShrinkStored(rows.rows.data(), int64_t{1} << 46, 1,
                         FieldType::kBfloat16, bytes.data(), 4);
  uint16_t found[2];
  std::memcpy(found, bytes.data(), sizeof(found));
  EXPECT_EQ(found[0], 0x3f35);
  EXPECT_EQ(found[1], 0xbfb5);
}

}  // namespace
}  // namespace tf_ext
