// SPDX-License-Identifier: Apache-2.0
#include "cc/core/initializers/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/support/simd_test_util.h"
#include "cc/core/table/config.h"

namespace tf_ext {
namespace {

constexpr InitializerKind kKinds[] = {
    InitializerKind::kZeros, InitializerKind::kConstant,
    InitializerKind::kUniform, InitializerKind::kNormal,
    InitializerKind::kTruncatedNormal};

const std::vector<int64_t>& Signs() {
  static const std::vector<int64_t> signs = {
      0,
      -1,
      1,
      -2,
      1000000007,
      int64_t{1} << 32,
      std::numeric_limits<int64_t>::min(),
      std::numeric_limits<int64_t>::max()};
  return signs;
}

TableConfig Config(InitializerKind kind, int64_t dim, float a = -0.5f,
                   float b = 1.5f) {
  TableConfig config;
  config.name = "deep";
  config.dim = dim;
  config.seed = 17;
  config.initializer = {kind, a, b};
  return config;
}

Initializer Make(const TableConfig& config) {
  return Initializer(config.initializer, config.name, config.seed, config.dim);
}

std::vector<float> Row(const TableConfig& config, int64_t sign) {
  std::vector<float> row(config.dim);
  Make(config).Fill(sign, row.data());
  return row;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// `rows` rows of signs 0, 1, ... one after the other.
std::vector<float> Samples(const TableConfig& config, int64_t rows) {
  const Initializer initializer = Make(config);
  std::vector<float> samples(rows * config.dim);
  for (int64_t sign = 0; sign < rows; ++sign) {
    initializer.Fill(sign, samples.data() + sign * config.dim);
  }
  return samples;
}

double Mean(const std::vector<float>& samples) {
  double sum = 0;
  for (float sample : samples) sum += sample;
  return sum / static_cast<double>(samples.size());
}

double Stddev(const std::vector<float>& samples) {
  const double mean = Mean(samples);
  double sum = 0;
  for (float sample : samples) sum += (sample - mean) * (sample - mean);
  return std::sqrt(sum / static_cast<double>(samples.size()));
}

// Of samples of mean 0, with `lag` between the members of a pair.
double Correlation(const std::vector<float>& x, const std::vector<float>& y) {
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += static_cast<double>(x[i]) * y[i];
    xx += static_cast<double>(x[i]) * x[i];
    yy += static_cast<double>(y[i]) * y[i];
  }
  return xy / std::sqrt(xx * yy);
}

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// sqrt(n) times the greatest distance of the distribution functions
// (Kolmogorov-Smirnov): above 1.95 for one in 1,000 of fair samples.
template <class Cdf>
double KolmogorovSmirnov(std::vector<float> samples, const Cdf& cdf) {
  std::sort(samples.begin(), samples.end());
  const double n = static_cast<double>(samples.size());
  double worst = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double p = cdf(samples[i]);
    worst = std::max({worst, (i + 1) / n - p, p - i / n});
  }
  return worst * std::sqrt(n);
}

// z with NormalCdf(z) = u, by bisection.
double NormalQuantile(double u) {
  double low = -10, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    (NormalCdf(middle) < u ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// The number of [0, 1) that a position gets, from its definition.
double Uniform01(const TableConfig& config, int64_t sign, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t stream =
      Mix64(Mix64(config.seed + kGolden) ^ Fingerprint64(config.name));
  const uint64_t state =
      Mix64(stream ^ Mix64(static_cast<uint64_t>(sign) + kGolden));
  const uint64_t bits = Mix64(state + (position + 1) * kGolden);
  return static_cast<double>(bits >> 40 | 1) / 16777216.0;
}

TEST(InitializerTest, SameBitsOnEveryInstructionSet) {
  std::vector<int64_t> dims = {128, 1000};
  for (int64_t dim = 1; dim <= 67; ++dim) dims.push_back(dim);
  for (InitializerKind kind : kKinds) {
    for (int64_t dim : dims) {
      const TableConfig config = Config(kind, dim);
      for (int64_t sign : Signs()) {
        ScopedSimdLevel scalar(SimdLevel::kScalar);
        const std::vector<uint32_t> expected = Bits(Row(config, sign));
        for (SimdLevel level : SimdLevels()) {
          ScopedSimdLevel scoped(level);
          ASSERT_EQ(Bits(Row(config, sign)), expected)
              << SimdLevelName(level) << ", kind " << static_cast<int>(kind)
              << ", dim " << dim << ", sign " << sign;
        }
      }
    }
  }
}

TEST(InitializerTest, WritesTheRowOnlyAtAnyAlignment) {
  for (SimdLevel level : SimdLevels()) {
    ScopedSimdLevel scoped(level);
    for (int64_t dim : {1, 3, 4, 8, 15, 16, 17, 33, 64}) {
      const TableConfig config = Config(InitializerKind::kNormal, dim);
      for (int64_t shift = 0; shift < 16; ++shift) {
        // As tight as can be, so that a sanitizer sees any other access.
        std::vector<float> buffer(shift + dim, 77.0f);
        Make(config).Fill(5, buffer.data() + shift);
        for (int64_t i = 0; i < shift; ++i) EXPECT_EQ(buffer[i], 77.0f);
        EXPECT_EQ(std::vector<float>(buffer.begin() + shift, buffer.end()),
                  Row(config, 5));
      }
    }
  }
}

// A model's rows must not change with the library: these bits stay for ever.
TEST(InitializerTest, GoldenBits) {
  const auto row = [](InitializerKind kind, int64_t sign) {
    return Bits(Row(Config(kind, 4), sign));
  };
  using Golden = std::vector<uint32_t>;
  EXPECT_EQ(row(InitializerKind::kUniform, 0),
            Golden({0x3ed4b73c, 0x3ea768dc, 0xbe586a48, 0x3f216b26}));
  EXPECT_EQ(row(InitializerKind::kUniform, -1),
            Golden({0x3fb745eb, 0x3f537432, 0x3f64cf1a, 0x3f21bc2a}));
  EXPECT_EQ(row(InitializerKind::kNormal, 0),
            Golden({0xbf28c354, 0xbf53eff7, 0xc005dce9, 0xbe81c845}));
  EXPECT_EQ(row(InitializerKind::kNormal, -1),
            Golden({0x400f1648, 0x3e061fa8, 0x3e8be44c, 0xbe809378}));
  EXPECT_EQ(row(InitializerKind::kTruncatedNormal, 0),
            Golden({0xbf26e6da, 0xbf500f9d, 0xbffe8856, 0xbe8792dd}));
  EXPECT_EQ(row(InitializerKind::kTruncatedNormal, -1),
            Golden({0x3ff25b32, 0x3dce1dc8, 0x3e70a4d0, 0xbe866c7b}));
}

TEST(InitializerTest, ValuesOfTheDefinition) {
  // Relative error of the quantile: 6e-7; of the affine map: two roundings.
  for (int64_t sign : Signs()) {
    const TableConfig uniform = Config(InitializerKind::kUniform, 37);
    const TableConfig normal = Config(InitializerKind::kNormal, 37);
    const TableConfig truncated = Config(InitializerKind::kTruncatedNormal, 37);
    const std::vector<float> uniform_row = Row(uniform, sign);
    const std::vector<float> normal_row = Row(normal, sign);
    const std::vector<float> truncated_row = Row(truncated, sign);
    const double tail = NormalCdf(-2);
    for (int64_t j = 0; j < 37; ++j) {
      const double u = Uniform01(uniform, sign, j);
      EXPECT_NEAR(uniform_row[j], -0.5 + 2.0 * u, 2e-7);
      const double z = NormalQuantile(u);
      EXPECT_NEAR(normal_row[j], -0.5 + 1.5 * z,
                  1e-6 * (0.5 + 1.5 * std::fabs(z)));
      const double inner = NormalQuantile(tail + u * (1 - 2 * tail));
      EXPECT_NEAR(truncated_row[j], -0.5 + 1.5 * inner,
                  1e-6 * (0.5 + 1.5 * std::fabs(inner)));
    }
  }
}

TEST(InitializerTest, ZerosAndConstant) {
  EXPECT_EQ(Row(Config(InitializerKind::kZeros, 3), 9),
            std::vector<float>({0, 0, 0}));
  EXPECT_EQ(Row(Config(InitializerKind::kConstant, 3, 0.25f), 9),
            std::vector<float>({0.25f, 0.25f, 0.25f}));
}

TEST(InitializerTest, ValueDoesNotDependOnDim) {
  const std::vector<float> longest =
      Row(Config(InitializerKind::kNormal, 100), 3);
  for (int64_t dim : {1, 4, 16, 31, 64}) {
    EXPECT_EQ(Row(Config(InitializerKind::kNormal, dim), 3),
              std::vector<float>(longest.begin(), longest.begin() + dim));
  }
}

TEST(InitializerTest, SignsSeedsAndTablesHaveDistinctRows) {
  std::set<std::vector<float>> rows;
  size_t made = 0;
  const auto add = [&](const TableConfig& config, int64_t sign) {
    rows.insert(Row(config, sign));
    ++made;
  };
  const TableConfig config = Config(InitializerKind::kNormal, 4);
  for (int64_t i = 1; i <= 20000; ++i) {
    add(config, i);
    add(config, -i);
    add(config, i << 32);
    add(config, std::numeric_limits<int64_t>::min() + i);
  }
  for (uint64_t seed = 100; seed < 300; ++seed) {
    for (const char* name : {"a", "b", "", "deep"}) {
      TableConfig other = config;
      other.seed = seed;
      other.name = name;
      for (int64_t sign : Signs()) add(other, sign);
    }
  }
  EXPECT_EQ(rows.size(), made);
}

TEST(InitializerTest, PositionsOfARowAreDistinct) {
  const std::vector<float> row = Row(Config(InitializerKind::kNormal, 64), 12);
  EXPECT_EQ(std::set<float>(row.begin(), row.end()).size(), row.size());
}

TEST(InitializerTest, NormalDistribution) {
  const std::vector<float> samples =
      Samples(Config(InitializerKind::kNormal, 16, 0.5f, 2.0f), 1 << 16);
  const double n = static_cast<double>(samples.size());
  EXPECT_NEAR(Mean(samples), 0.5, 4 * 2.0 / std::sqrt(n));
  EXPECT_NEAR(Stddev(samples), 2.0, 4 * 2.0 / std::sqrt(2 * n));
  EXPECT_LT(KolmogorovSmirnov(
                samples, [](double x) { return NormalCdf((x - 0.5) / 2.0); }),
            1.95);
  // A million samples reach 4.5 stddev or further, but not 7.
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  EXPECT_LT(*low, 0.5 - 2 * 4.2);
  EXPECT_GT(*low, 0.5 - 2 * 7);
  EXPECT_GT(*high, 0.5 + 2 * 4.2);
  EXPECT_LT(*high, 0.5 + 2 * 7);
}

TEST(InitializerTest, TruncatedNormalDistribution) {
  const std::vector<float> samples = Samples(
      Config(InitializerKind::kTruncatedNormal, 16, 0.5f, 2.0f), 1 << 16);
  const double n = static_cast<double>(samples.size());
  const double tail = NormalCdf(-2);
  // Of a normal distribution cut at two stddev.
  const double stddev = 2.0 * 0.879626;
  EXPECT_NEAR(Mean(samples), 0.5, 4 * stddev / std::sqrt(n));
  EXPECT_NEAR(Stddev(samples), stddev, 4 * stddev / std::sqrt(2 * n));
  EXPECT_LT(KolmogorovSmirnov(samples,
                              [tail](double x) {
                                return (NormalCdf((x - 0.5) / 2.0) - tail) /
                                       (1 - 2 * tail);
                              }),
            1.95);
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  EXPECT_GE(*low, 0.5f - 2 * 2.0f);
  EXPECT_LE(*high, 0.5f + 2 * 2.0f);
  EXPECT_LT(*low, 0.5 - 2 * 1.999);
  EXPECT_GT(*high, 0.5 + 2 * 1.999);
}

TEST(InitializerTest, UniformDistribution) {
  const std::vector<float> samples =
      Samples(Config(InitializerKind::kUniform, 16, -1.0f, 3.0f), 1 << 16);
  const double n = static_cast<double>(samples.size());
  const double stddev = 4.0 / std::sqrt(12.0);
  EXPECT_NEAR(Mean(samples), 1.0, 4 * stddev / std::sqrt(n));
  EXPECT_NEAR(Stddev(samples), stddev, 4 * stddev / std::sqrt(n));
  EXPECT_LT(KolmogorovSmirnov(samples, [](double x) { return (x + 1) / 4.0; }),
            1.95);
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  EXPECT_GE(*low, -1.0f);
  EXPECT_LT(*high, 3.0f);
}

TEST(InitializerTest, UniformStaysBelowMaxvalWhenRoundingWouldReachIt) {
  for (float range : {1e-7f, 1e-6f, 1e-5f}) {
    const float maxval = 1.0f + range;
    for (float value :
         Samples(Config(InitializerKind::kUniform, 16, 1.0f, maxval), 1000)) {
      ASSERT_GE(value, 1.0f);
      ASSERT_LT(value, maxval);
    }
  }
  EXPECT_EQ(Row(Config(InitializerKind::kUniform, 2, 1.0f, 1.0f), 0),
            std::vector<float>({1.0f, 1.0f}));
}

TEST(InitializerTest, NeighboursAreNotCorrelated) {
  constexpr int64_t kRows = 1 << 14;
  constexpr int64_t kDim = 16;
  const TableConfig config = Config(InitializerKind::kNormal, kDim, 0, 1);
  const std::vector<float> x = Samples(config, kRows);
  const double bound = 4 / std::sqrt(static_cast<double>(x.size()));
  const auto lagged = [&x](int64_t lag) {
    return Correlation(std::vector<float>(x.begin(), x.end() - lag),
                       std::vector<float>(x.begin() + lag, x.end()));
  };
  EXPECT_NEAR(lagged(1), 0, bound) << "positions";
  EXPECT_NEAR(lagged(kDim), 0, bound) << "signs";
  EXPECT_NEAR(lagged(kDim + 1), 0, bound) << "signs and positions";
  EXPECT_NEAR(lagged(kDim - 1), 0, bound) << "signs and positions";
  TableConfig other = config;
  other.seed = config.seed + 1;
  EXPECT_NEAR(Correlation(x, Samples(other, kRows)), 0, bound) << "seeds";
  other = config;
  other.name = "deeq";
  EXPECT_NEAR(Correlation(x, Samples(other, kRows)), 0, bound) << "tables";
}

TEST(CpuTest, LevelForTestingIsAtMostTheBest) {
  for (SimdLevel level :
       {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    ScopedSimdLevel scoped(level);
    EXPECT_EQ(CurrentSimdLevel(), std::min(level, BestSimdLevel()));
  }
  EXPECT_EQ(CurrentSimdLevel(), BestSimdLevel());
}

TEST(CpuTest, LevelsHaveNames) {
  EXPECT_EQ(std::string(SimdLevelName(SimdLevel::kScalar)), "scalar");
  EXPECT_EQ(std::string(SimdLevelName(SimdLevel::kAvx2)), "avx2");
  EXPECT_EQ(std::string(SimdLevelName(SimdLevel::kAvx512)), "avx512");
}

}  // namespace
}  // namespace tf_ext
