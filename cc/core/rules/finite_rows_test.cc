// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/finite_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cc/core/support/simd_test_util.h"

namespace tf_ext {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  SimdLevel simd;
  int64_t length;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const SimdLevel simd : SimdLevels()) {
    for (const int64_t length : {1, 2, 7, 8, 9, 15, 16, 17, 24, 65}) {
      cases.push_back({simd, length});
    }
  }
  return cases;
}

// Limits values of three rows of each length.
class LimitTest : public testing::TestWithParam<Case> {
 protected:
  LimitTest() : level_(GetParam().simd), values_(3 * length(), 1.5f) {
    finite_.Add(false, 1, length(), false);
    for (int i = 0; i < 3; ++i) rows_[i] = bytes_.data() + 1 + i * bytes();
  }

  int64_t length() const { return GetParam().length; }
  // Values begin at an odd address, and are followed by others.
  int64_t bytes() const { return length() * 4 + 8; }
  void Fill() {
    bytes_.assign(bytes_.size(), 0xff);  // NaN around the values
    for (int i = 0; i < 3; ++i) {
      std::memcpy(rows_[i] + 1, &values_[i * length()], length() * 4);
    }
  }
  std::vector<float> Found() const {
    std::vector<float> found(values_.size());
    for (int i = 0; i < 3; ++i) {
      std::memcpy(&found[i * length()], rows_[i] + 1, length() * 4);
    }
    return found;
  }

  const ScopedSimdLevel level_;
  std::vector<float> values_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(4096, 0xff);
  uint8_t* rows_[3];
  FiniteRows finite_;
};

TEST_P(LimitTest, LimitsEachValueAndNoOther) {
  for (const auto& [value, limited] :
       std::vector<std::pair<float, float>>{{kInfinity, kLargest},
                                            {-kInfinity, -kLargest},
                                            {kNan, 0.0f},
                                            {-kNan, 0.0f}}) {
    for (size_t place = 0; place < values_.size(); ++place) {
      values_[place] = value;
      Fill();
      EXPECT_EQ(finite_.Limit(rows_, rows_, 3), 1) << place;
      values_[place] = limited;
      EXPECT_EQ(Found(), values_) << place;
      EXPECT_EQ(rows_[1][0], 0xff);
      values_[place] = 1.5f;
    }
  }
}

TEST_P(LimitTest, LeavesFiniteValues) {
  for (float value : {kLargest, -kLargest, 0.0f, -0.0f, 1e-45f}) {
    values_.assign(values_.size(), value);
    Fill();
    const std::vector<uint8_t> before = bytes_;
    EXPECT_EQ(finite_.Limit(rows_, rows_, 3), 0);
    EXPECT_EQ(bytes_, before);
  }
}

TEST_P(LimitTest, CountsAllValues) {
  values_.assign(values_.size(), kInfinity);
  Fill();
  EXPECT_EQ(finite_.Limit(rows_, rows_, 3), 3 * length());
  EXPECT_EQ(finite_.Limit(rows_, rows_, 3), 0);
}

INSTANTIATE_TEST_SUITE_P(AllLengths, LimitTest, testing::ValuesIn(Cases()));

TEST(FiniteRowsTest, LeavesInfinityOfNarrowValuesToTheirRounding) {
  FiniteRows finite;
  finite.Add(false, 0, 1, false);
  finite.Add(true, 4, 1, true);
  float row[2] = {kInfinity, kInfinity};
  uint8_t* rows[1] = {reinterpret_cast<uint8_t*>(row)};
  EXPECT_EQ(finite.Limit(rows, rows, 1), 1);
  EXPECT_EQ(row[0], kLargest);
  EXPECT_EQ(row[1], kInfinity);
  row[1] = kNan;
  EXPECT_EQ(finite.Limit(rows, rows, 1), 1);
  EXPECT_EQ(row[1], 0);
}

}  // namespace
}  // namespace tf_ext
