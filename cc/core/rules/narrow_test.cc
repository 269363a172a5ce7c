// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/narrow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/narrow_test_util.h"
#include "cc/core/support/simd_test_util.h"

namespace tf_ext {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class NarrowTest : public testing::TestWithParam<Format> {
 protected:
  float Widen(uint16_t half) const {
    float value;
    WidenTo(GetParam().type, &half, 1, &value);
    return value;
  }
  uint16_t Nearest(float value, int64_t saturates = 0) const {
    uint16_t half;
    EXPECT_EQ(NarrowToNearest(GetParam().type, &value, 1, &half), saturates)
        << value;
    return half;
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, NarrowTest, testing::ValuesIn(kFormats),
                         [](const testing::TestParamInfo<Format>& info) {
                           return std::string(FieldTypeName(info.param.type));
                         });

std::vector<uint16_t> AllHalves() {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = i;
  return halves;
}

TEST_P(NarrowTest, WidensEveryValueOnEveryInstructionSet) {
  const std::vector<uint16_t> halves = AllHalves();
  for (SimdLevel level : SimdLevels()) {
    ScopedSimdLevel scoped(level);
    // Dims with and without a function of their own, all with a remainder for
    // some width.
    for (int64_t dim : {1, 5, 8, 16, 27, 32, 64}) {
      const int64_t rows = static_cast<int64_t>(halves.size()) / dim;
      std::vector<uint8_t> stored(rows * dim * 2 + 1);
      std::memcpy(stored.data() + 1, halves.data(), rows * dim * 2);
      std::vector<const uint8_t*> row_pointers;
      std::vector<int64_t> positions;
      for (int64_t i = 0; i < rows; ++i) {
        row_pointers.push_back(stored.data() + i * dim * 2);
        positions.push_back(i * dim);
      }
      std::vector<float> out(rows * dim, -7);
      // Not aligned, as the fields of a row.
      WidenRowsOf(GetParam().type, dim)(
          row_pointers.data(), 1, positions.data(), static_cast<int>(rows), dim,
          out.data());
      for (int64_t i = 0; i < rows * dim; ++i) {
        const double expected = GetParam().Value(halves[i]);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(out[i])) << i;
        } else {
          ASSERT_EQ(out[i], expected) << i << " " << SimdLevelName(level);
          ASSERT_EQ(std::signbit(out[i]), std::signbit(expected)) << i;
        }
      }
    }
  }
}

TEST_P(NarrowTest, RepresentableValuesStay) {
  for (uint16_t half : AllHalves()) {
    const float value = Widen(half);
    if (std::isnan(value) || std::isinf(value)) continue;
    ASSERT_EQ(Nearest(value), half);
    const uint16_t multiplier = 0x79b1;
    uint16_t rounded;
    ASSERT_EQ(NarrowTo(GetParam().type, &value, 1, ~uint64_t{0}, &multiplier,
                       &rounded),
              0);
    ASSERT_EQ(rounded, half);
  }
}

TEST_P(NarrowTest, RoundsToTheNearestAndTiesToEven) {
  const Format& format = GetParam();
  std::mt19937 random(3);
  std::vector<float> values;
  // Below, at and above the middle of neighbours, of each exponent.
  for (uint32_t half = 0; half < format.largest(); half += 1 + half % 7) {
    const float middle =
        static_cast<float>((format.Value(half) + format.Value(half + 1)) / 2);
    values.insert(values.end(), {middle, std::nextafter(middle, 0.0f),
                                 std::nextafter(middle, kInf), -middle});
  }
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (float value : values) {
    if (std::fabs(value) > format.Value(format.largest())) continue;
    const uint32_t below = format.Below(value);
    uint32_t expected = below;
    if (below < format.largest()) {
      const double down = std::fabs(value) - format.Value(below);
      const double up = format.Value(below + 1) - std::fabs(value);
      if (up < down || (up == down && below % 2 == 1)) ++expected;
    }
    if (std::signbit(value)) expected |= 0x8000;
    ASSERT_EQ(Nearest(value), expected) << value;
  }
}

TEST_P(NarrowTest, LimitsMagnitudesAndKeepsNan) {
  const Format& format = GetParam();
  const float largest = static_cast<float>(format.Value(format.largest()));
  const uint16_t multiplier = 1;
  for (float value : {std::nextafter(largest, kInf), 3e38f * 1.1f, kInf}) {
    if (value <= largest) continue;
    for (float sign : {1.0f, -1.0f}) {
      const float signed_value = sign * value;
      const uint16_t expected =
          static_cast<uint16_t>(format.largest() | (sign < 0 ? 0x8000 : 0));
      EXPECT_EQ(Nearest(signed_value, 1), expected);
      // Whatever the random bits are.
      for (uint64_t key : {uint64_t{0}, ~uint64_t{0}}) {
        uint16_t half;
        EXPECT_EQ(
            NarrowTo(format.type, &signed_value, 1, key, &multiplier, &half),
            1);
        EXPECT_EQ(half, expected);
      }
    }
  }
  for (uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu}) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    EXPECT_TRUE(std::isnan(Widen(Nearest(value))));
    uint16_t half;
    EXPECT_EQ(
        NarrowTo(format.type, &value, 1, ~uint64_t{0}, &multiplier, &half), 0);
    EXPECT_TRUE(std::isnan(Widen(half)));
  }
}

// What becomes of a value in many rows, at many steps and positions.
TEST_P(NarrowTest, TheExpectedValueIsTheValue) {
  const Format& format = GetParam();
  constexpr int64_t kPositions = 40;
  constexpr int64_t kRows = 500;
  constexpr int64_t kSteps = 50;  // 10^6 roundings of each value
  const std::vector<uint16_t> multipliers = PositionMultipliers(3, kPositions);
  const uint64_t stream = RoundingStream(11, "table");
  for (double value :
       {0.3, -0.7, 1.0001, 1e-3, 3.14159e4, -6.2e-5, 3e-5, 1.7e-7, 2e-8}) {
    const float from = static_cast<float>(value);
    const std::vector<float> values(kPositions, from);
    const uint32_t below = format.Below(from);
    const double low = format.Value(below);
    const double high = format.Value(below + 1);
    const double p = (std::fabs(from) - low) / (high - low);
    double ups = 0;
    double first_ups = 0;
    double both_ups = 0;
    std::vector<uint16_t> halves(kPositions);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const uint64_t key = RoundingKey(stream, step);
      for (int64_t sign = 0; sign < kRows; ++sign) {
        NarrowTo(format.type, values.data(), kPositions,
                 RowRoundingKey(key, sign), multipliers.data(), halves.data());
        for (uint16_t half : halves) {
          ASSERT_EQ((half & 0x8000) != 0, from < 0);
          const uint32_t magnitude = half & 0x7fff;
          ASSERT_TRUE(magnitude == below || magnitude == below + 1) << value;
          ups += magnitude - below;
        }
        first_ups += (halves[0] & 0x7fff) - below;
        both_ups +=
            ((halves[0] & 0x7fff) - below) * ((halves[1] & 0x7fff) - below);
      }
    }
    const double n = 1.0 * kPositions * kRows * kSteps;
    const double deviation = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(ups / n, p, 4.5 * deviation + 1e-4) << value;
    // Positions are rounded independently of each other.
    const double pairs = 1.0 * kRows * kSteps;
    EXPECT_NEAR(both_ups / pairs, p * p, 5 / std::sqrt(pairs)) << value;
    EXPECT_NEAR(first_ups / pairs, p, 5 / std::sqrt(pairs)) << value;
  }
}

TEST(NarrowKeyTest, SeedsTablesStepsAndSignsDiffer) {
  EXPECT_NE(RoundingStream(1, "a"), RoundingStream(2, "a"));
  EXPECT_NE(RoundingStream(1, "a"), RoundingStream(1, "b"));
  const uint64_t stream = RoundingStream(1, "a");
  EXPECT_NE(RoundingKey(stream, 1), RoundingKey(stream, 2));
  const uint64_t key = RoundingKey(stream, 1);
  EXPECT_NE(RowRoundingKey(key, 1), RowRoundingKey(key, 2));
  EXPECT_NE(RowRoundingKey(key, 5), RowRoundingKey(RoundingKey(stream, 2), 5));
}

}  // namespace
}  // namespace tf_ext
