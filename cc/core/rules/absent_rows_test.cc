// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/absent_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/core/support/simd_test_util.h"
#include "cc/core/support/status_test_util.h"

namespace tf_ext {
namespace {

constexpr AdamMoments kDefault = {0.9, 0.999, 1e-7, true};

// Rows of a field caught_up, weights, m and v.
struct Rows {
  Rows(int64_t n, int64_t dim)
      : dim(dim), stride(4 + 12 * dim), bytes(n * stride) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 0.1f);
    for (int64_t i = 0; i < n; ++i) {
      rows.push_back(&bytes[i * stride]);
      for (int64_t j = 0; j < dim; ++j) {
        At(i, 0)[j] = normal(random);
        At(i, 1)[j] = normal(random);
        // So that epsilon is from next to nothing to nearly all.
        At(i, 2)[j] = std::exp2(-4.0f * static_cast<float>((i + j) % 16));
      }
    }
  }
  AbsentFields fields() const {
    const int64_t bytes = 4 * dim;
    return {{FieldType::kFloat32, 4},
            {FieldType::kFloat32, 4 + bytes},
            {FieldType::kFloat32, 4 + 2 * bytes},
            0};
  }
  float* At(int64_t i, int field) {
    return reinterpret_cast<float*>(rows[i] + 4 + 4 * dim * field);
  }
  void SetCaughtUp(int64_t i, int32_t step) {
    std::memcpy(rows[i], &step, sizeof(step));
  }
  std::vector<float> Read(const AbsentRows& absent) {
    const int64_t n = static_cast<int64_t>(rows.size());
    std::vector<float> out(n * dim);
    std::vector<int64_t> positions(n);
    for (int64_t i = 0; i < n; ++i) positions[i] = i * dim;
    absent.Read(*absent.history().view(), rows.data(), positions.data(), n,
                out.data());
    return out;
  }

  int64_t dim;
  int64_t stride;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t*> rows;
};

// The rate of a schedule that warms up, waves, and falls at once.
double RateOf(int64_t step) {
  const double t = static_cast<double>(step);
  const double rate = 0.1 * std::min(1.0, t / 50) * (1.5 + std::sin(t / 70));
  return step % 1000 > 700 ? rate / 10 : rate;
}

// What has moved a weight from step `first` + 1 to `last`.
double Moved(const AdamMoments& moments, double m, double v, int64_t first,
             int64_t last, double l2 = 0) {
  double moved = 0;
  for (int64_t t = first + 1; t <= last; ++t) {
    m *= moments.beta_1;
    v *= moments.beta_2;
    const double td = static_cast<double>(t);
    const double alpha = RateOf(t) *
                         std::sqrt(1 - std::pow(moments.beta_2, td)) /
                         (1 - std::pow(moments.beta_1, td));
    moved = moved * (1 - RateOf(t) * l2) +
            alpha * m / (std::sqrt(v) + moments.epsilon);
  }
  return moved;
}

TEST(AbsentRowsTest, MovesAsAMatrixDoes) {
  constexpr int64_t kSteps = 3000;
  constexpr int64_t kDim = 16;
  for (const AdamMoments& moments :
       std::vector<AdamMoments>{kDefault,
                                {0.9, 0.999, 0},
                                {0.9, 0.999, 1e-3},
                                {0.9, 0.999, 10},
                                {0.9, 0.98, 1e-3},
                                {0.5, 0.9, 1e-3},
                                {0.99, 0.999, 1e-3},
                                {0.0, 0.999, 1e-3}}) {
    AbsentRows absent(moments, kDim, Rows(0, kDim).fields(), {});
    std::vector<int32_t> pushed = {0,    1,    2,    17,   100,  699,
                                   700,  1001, 1500, 1711, 2500, 2900,
                                   2998, 2999, 3000, 3001};
    for (int64_t t = 1; t <= kSteps; ++t) {
      const AbsentHistory::Step step =
          absent.history().Advance(RateOf(t), t, 0);
      ASSERT_EQ(step.now, t);
      ASSERT_EQ(step.step, t);
      ASSERT_EQ(step.before->now(), t - 1);
    }
    Rows rows(pushed.size(), kDim);
    for (size_t i = 0; i < pushed.size(); ++i) rows.SetCaughtUp(i, pushed[i]);
    const std::vector<float> read = rows.Read(absent);
    Rows moved = rows;
    for (size_t i = 0; i < pushed.size(); ++i) {
      moved.rows[i] = &moved.bytes[i * moved.stride];
    }
    absent.CatchUp(*absent.history().view(), moved.rows.data(),
                   moved.rows.data(), moved.rows.data(), pushed.size());
    for (size_t i = 0; i < pushed.size(); ++i) {
      for (int64_t j = 0; j < kDim; ++j) {
        const double m = rows.At(i, 1)[j], v = rows.At(i, 2)[j];
        const double by = Moved(moments, m, v, pushed[i], kSteps);
        const double before = rows.At(i, 0)[j];
        const double expected = before - by;
        EXPECT_NEAR(read[i * kDim + j], expected,
                    6e-7 * std::abs(by) + 1.3e-7 * std::abs(before))
            << pushed[i] << " " << j << " beta_2 " << moments.beta_2
            << " epsilon " << moments.epsilon;
        EXPECT_EQ(moved.At(i, 0)[j], read[i * kDim + j]);
        const double ago =
            static_cast<double>(std::max<int64_t>(kSteps - pushed[i], 0));
        EXPECT_NEAR(moved.At(i, 1)[j], m * std::pow(moments.beta_1, ago),
                    1e-6 * std::abs(m));
        EXPECT_NEAR(moved.At(i, 2)[j] / v, std::pow(moments.beta_2, ago), 1e-6);
      }
    }
  }
}

TEST(AbsentRowsTest, HasTheSameBitsOnEachInstructionSet) {
  for (const AdamMoments& moments :
       std::vector<AdamMoments>{kDefault, {0.9, 0.98, 1e-3}}) {
    for (const int64_t dim : {1, 3, 8, 16, 17, 32, 64}) {
      std::vector<float> expected;
      std::vector<uint8_t> expected_bytes;
      for (const SimdLevel simd : SimdLevels()) {
        const ScopedSimdLevel level(simd);
        Rows rows(61, dim);
        AbsentRows absent(moments, dim, rows.fields(), {});
        for (int64_t t = 1; t <= 300; ++t) {
          absent.history().Advance(RateOf(t), 0, 0);
        }
        for (int32_t i = 0; i < 61; ++i) rows.SetCaughtUp(i, 5 * i);
        const std::vector<float> read = rows.Read(absent);
        absent.CatchUp(*absent.history().view(), rows.rows.data(),
                       rows.rows.data(), rows.rows.data(), 61);
        if (expected.empty()) {
          expected = read;
          expected_bytes = rows.bytes;
        }
        EXPECT_EQ(std::memcmp(read.data(), expected.data(),
                              read.size() * sizeof(float)),
                  0)
            << SimdLevelName(simd) << " dim " << dim;
        EXPECT_EQ(rows.bytes, expected_bytes) << SimdLevelName(simd);
      }
    }
  }
}

TEST(AbsentRowsTest, ShrinksWithTheWeights) {
  constexpr double kL2 = 0.01;
  constexpr int64_t kDim = 4;
  AbsentRows absent(kDefault, kDim, Rows(0, kDim).fields(), {});
  const std::vector<int32_t> pushed = {0, 3, 50, 400, 900, 1195};
  for (int64_t t = 1; t <= 1200; ++t) {
    absent.history().Advance(RateOf(t), 0, kL2);
  }
  Rows rows(pushed.size(), kDim);
  for (size_t i = 0; i < pushed.size(); ++i) rows.SetCaughtUp(i, pushed[i]);
  const std::vector<float> read = rows.Read(absent);
  for (size_t i = 0; i < pushed.size(); ++i) {
    double left = 1;
    for (int64_t t = pushed[i] + 1; t <= 1200; ++t) left *= 1 - RateOf(t) * kL2;
    for (int64_t j = 0; j < kDim; ++j) {
      const double by = Moved(kDefault, rows.At(i, 1)[j], rows.At(i, 2)[j],
                              pushed[i], 1200, kL2);
      EXPECT_NEAR(left * read[i * kDim + j], left * rows.At(i, 0)[j] - by,
                  1e-6 * (std::abs(by) + left * std::abs(rows.At(i, 0)[j])));
    }
  }
}

TEST(AbsentHistoryTest, GoesOnFromAState) {
  for (const int64_t before : {0, 1, 100, 166, 167, 168, 3000}) {
    AbsentHistory history(kDefault), copy(kDefault);
    copy.Advance(7, 0, 0);
    for (int64_t t = 1; t <= before; ++t) {
      history.Advance(RateOf(t), 0, t % 3 * 0.1);
    }
    const std::string state = history.State();
    EXPECT_EQ(AbsentHistory::ClockOf(state), before);
    ASSERT_TRUE(IsOk(copy.SetState(state)));
    for (int64_t t = before + 1; t <= before + 500; ++t) {
      EXPECT_EQ(copy.State(), history.State()) << t;
      if (t % 100 == 0 || t < before + 3) {
        float sums[2][AbsentWeights::kMostTerms] = {};
        for (int64_t step = 0; step <= t; ++step) {
          history.view()->Get(step, sums[0]);
          copy.view()->Get(step, sums[1]);
          ASSERT_EQ(std::memcmp(sums[0], sums[1], sizeof(sums[0])), 0);
        }
      }
      for (AbsentHistory* each : {&history, &copy}) {
        each->Advance(RateOf(t), 0, 0.2);
      }
    }
  }
}

TEST(AbsentHistoryTest, BeginsAfterStepsThatMovedNothing) {
  for (const int64_t before : {0, 1, 166, 167, 168, 169, 1000}) {
    AbsentHistory still(kDefault), begun(kDefault);
    for (int64_t t = 1; t <= before; ++t) still.Advance(0, 0, 0);
    for (int64_t t = 1; t <= 500; ++t) begun.Advance(RateOf(t), 0, 0.2);
    begun.BeginAfter(before);
    AbsentHistory copy(kDefault);
    ASSERT_TRUE(IsOk(copy.SetState(begun.State())));
    for (int64_t t = before; t <= before + 500; ++t) {
      EXPECT_EQ(begun.view()->now(), t);
      for (int64_t step = 0; step <= t; ++step) {
        float sums[3][AbsentWeights::kMostTerms] = {};
        still.view()->Get(step, sums[0]);
        begun.view()->Get(step, sums[1]);
        copy.view()->Get(step, sums[2]);
        ASSERT_EQ(std::memcmp(sums[0], sums[1], sizeof(sums[0])), 0);
        ASSERT_EQ(std::memcmp(sums[0], sums[2], sizeof(sums[0])), 0);
        if (t == before) {
          EXPECT_EQ(sums[0][0], 0);
        }
      }
      for (AbsentHistory* each : {&still, &begun, &copy}) {
        EXPECT_EQ(each->Advance(RateOf(t), 0, 0.2).step, t + 1);
      }
    }
  }
  AbsentHistory last(kDefault);
  last.BeginAfter(AbsentHistory::kLast);
  EXPECT_EQ(AbsentHistory::ClockOf(last.State()), AbsentHistory::kLast);
}

TEST(AbsentHistoryTest, TakesFewLines) {
  // After the bias correction, a constant rate is one line of those that are
  // as long as they can be; a schedule of any length takes some thousands.
  AbsentHistory constant(kDefault), cosine(kDefault);
  for (int64_t t = 1; t <= 60000; ++t) {
    constant.Advance(0.1, 0, 0);
    cosine.Advance(0.05 * (1 + std::cos(t * M_PI / 60000)), 0, 0);
  }
  EXPECT_LT(constant.State().size(), 100000);
  EXPECT_LT(cosine.State().size(), 200000);
}

TEST(AbsentHistoryTest, RefusesDamagedStates) {
  AbsentHistory history(kDefault);
  for (int64_t t = 1; t <= 1000; ++t) history.Advance(RateOf(t), 0, 0);
  const std::string state = history.State();
  const auto refused = [&](std::string changed, const char* what) {
    const Status status = history.SetState(changed);
    EXPECT_NE(status.message().find(what), std::string::npos)
        << what << ": " << status.message();
    EXPECT_EQ(history.State(), state);
  };
  const auto with = [&](size_t at, auto value) {
    std::string changed = state;
    std::memcpy(&changed[at], &value, sizeof(value));
    return changed;
  };
  refused("", "too early");
  refused(state.substr(0, 55), "too early");
  refused(state.substr(0, state.size() - 1), "size");
  refused(state + "x", "size");
  refused(with(0, int64_t{2}), "version");
  refused(with(8, int64_t{5}), "other betas");
  refused(with(16, int64_t{8}), "other betas");
  for (const int64_t clock : {int64_t{-1}, int64_t{INT64_MAX}}) {
    refused(with(24, clock), "clock");
  }
  refused(with(24, int64_t{1001}), "last steps");
  for (const int64_t lines : {int64_t{-1}, INT64_MAX / 8, int64_t{3}}) {
    refused(with(32, lines), "size");
  }
  refused(with(40, int64_t{-1}), "last steps");
  refused(with(48, int64_t{7}), "last steps");
  refused(with(56, std::nan("")), "finite");
  refused(with(56, 1e300), "a sum is out of range");
  refused(with(56 + 3 * sizeof(double), -1e300), "a sum is out of range");
  const size_t steps = 56 + 9 * sizeof(double);
  for (const double alpha : {-1.0, std::nan(""), 1e300}) {
    refused(with(steps, alpha), "range");
  }
  for (const double grow : {0.5, 2.0, std::nan("")}) {
    refused(with(steps + 8, grow), "range");
  }
  const size_t lines = steps + 166 * 2 * sizeof(double);
  refused(with(lines + 4, int32_t{0}), "order");
  refused(with(lines, int32_t{-5}), "order");
  refused(with(state.size() - 4, std::nanf("")), "finite");
}

TEST(AbsentHistoryTest, RefusesBetas) {
  for (const AdamMoments& moments : std::vector<AdamMoments>{
           {0.9, 0.81, 0}, {0.9, 0.5, 0}, {0, 0, 0}, {0.999, 0.999, 0}}) {
    EXPECT_NE(AbsentWeights::Check(moments).message().find("0.9957"),
              std::string::npos);
  }
  EXPECT_NE(AbsentWeights::Check({0.9, 0.9, 0}).message().find("exactly"),
            std::string::npos);
  EXPECT_TRUE(AbsentWeights::Check(kDefault).ok());
}

TEST(AbsentHistoryTest, CorrectsTheBiasOfEitherCount) {
  AbsentHistory pushes(kDefault), steps({0.9, 0.999, 1e-7, false});
  EXPECT_EQ(pushes.Advance(0.1, 1000, 0).step, 1);
  EXPECT_EQ(steps.Advance(0.1, 1000, 0).step, 1000);
  float sums[2][AbsentWeights::kMostTerms];
  pushes.view()->Get(0, sums[0]);
  steps.view()->Get(0, sums[1]);
  EXPECT_NEAR(
      sums[0][0] / sums[1][0],
      AdamStepSize(1, 0.9, 0.999, 1) / AdamStepSize(1, 0.9, 0.999, 1000), 1e-6);
}

TEST(AbsentHistoryTest, EndsItsClock) {
  // A state of a late step: one line since the beginning.
  AbsentHistory history(kDefault);
  for (int64_t t = 1; t <= 400; ++t) history.Advance(0, 0, 0);
  std::string state = history.State();
  for (const auto& [at, value] : std::vector<std::pair<size_t, int64_t>>{
           {24, AbsentHistory::kLast - 1},
           {48, AbsentHistory::kLast - 2 - 166}}) {
    std::memcpy(&state[at], &value, sizeof(value));
  }
  ASSERT_TRUE(IsOk(history.SetState(state)));
  EXPECT_EQ(history.Advance(0.1, 0, 0).now, AbsentHistory::kLast);
  EXPECT_EQ(history.Advance(0.1, 0, 0).now, AbsentHistory::kLast);
  float sums[AbsentWeights::kMostTerms];
  history.view()->Get(AbsentHistory::kLast - 1, sums);
  EXPECT_NEAR(sums[0], 0.1 * 0.9 / std::sqrt(0.999), 1e-3);
}

}  // namespace
}  // namespace tf_ext
