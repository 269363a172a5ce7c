// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cc/core/rules/update_rule.h"
#include "cc/core/rules/update_rule_test_util.h"

namespace tf_ext {
namespace {

// With m = 0 before, g = 1 and no epsilon: the step of a row is alpha times
// (1 - beta_1) / sqrt(v), which shows alpha.
TEST(AdamStepTest, BiasCorrectionOfEveryStep) {
  for (const auto& [beta_1, beta_2] : std::vector<std::pair<double, double>>{
           {0.9, 0.999}, {0.0, 0.5}, {0.999, 0.99999}}) {
    for (int32_t before :
         {0, 1, 2, 9, 254, 255, 256, 257, 1000, 65534, 65535, 65536, 1000000,
          16777215, 16777216, 2147483645, 2147483646}) {
      Trainer trainer(AdamRule(true), 1, 1);
      *trainer.rows().Step(0) = before;
      trainer.Push({0.1, 0, beta_1, beta_2, 0}, 1, {1.0f});
      const double t = before + 1.0;
      const double alpha =
          0.1 * std::sqrt(1 - std::pow(beta_2, t)) / (1 - std::pow(beta_1, t));
      const double step = alpha * (1 - beta_1) / std::sqrt(1 - beta_2);
      EXPECT_NEAR(-trainer.rows().Floats(0, "weights")[0], step, 5e-7 * step)
          << "beta_1 " << beta_1 << ", beta_2 " << beta_2 << ", step " << t;
      EXPECT_EQ(*trainer.rows().Step(0), before + 1);
    }
  }
}

TEST(AdamStepTest, StepOfTheRowSaturates) {
  Trainer trainer(AdamRule(true), 1, 1);
  *trainer.rows().Step(0) = std::numeric_limits<int32_t>::max();
  trainer.Push({0.1, 0, 0.9, 0.999, 0}, 1, {1.0f});
  EXPECT_EQ(*trainer.rows().Step(0), std::numeric_limits<int32_t>::max());
  EXPECT_NEAR(trainer.rows().Floats(0, "weights")[0],
              -0.1 * 0.1 / std::sqrt(0.001), 1e-6);
}

// Rows can be imported with any step.
TEST(AdamStepTest, NegativeStepCountsAsNone) {
  Trainer trainer(AdamRule(true), 1, 1);
  *trainer.rows().Step(0) = -5;
  trainer.Push({0.1, 0, 0.9, 0.999, 0}, 1, {1.0f});
  EXPECT_EQ(*trainer.rows().Step(0), 1);
  EXPECT_NEAR(trainer.rows().Floats(0, "weights")[0], -0.1, 1e-7);
}

TEST(AdamStepTest, RowsCountTheirOwnSteps) {
  Trainer trainer(AdamRule(true), 1, 2);
  *trainer.rows().Step(1) = 100;
  trainer.Push({0.1, 0, 0.9, 0.999, 0}, 12345, {1.0f, 1.0f});
  EXPECT_NEAR(trainer.rows().Floats(0, "weights")[0], -0.1, 1e-7);
  EXPECT_NEAR(trainer.rows().Floats(1, "weights")[0],
              -0.1 * std::sqrt(1 - std::pow(0.999, 101)) /
                  (1 - std::pow(0.9, 101)) * 0.1 / std::sqrt(0.001),
              1e-7);
}

TEST(AdamStepTest, GlobalStepZeroIsTheFirst) {
  for (int64_t step : {0, 1}) {
    Trainer trainer(AdamRule(false), 1, 1);
    trainer.Push({0.1, 0, 0.9, 0.999, 0}, step, {1.0f});
    EXPECT_NEAR(trainer.rows().Floats(0, "weights")[0], -0.1, 1e-7);
  }
}

}  // namespace
}  // namespace tf_ext
