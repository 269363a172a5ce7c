// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/update_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/update_rule_test_util.h"
#include "cc/core/support/simd_test_util.h"

namespace tf_ext {
namespace {

// A rule and values for all its hyperparameters, none of which is zero.
struct Case {
  std::string name;
  RuleConfig rule;
  std::vector<double> hyperparameters;
  // The weights 0.3, -0.7, 1.1 after three pushes, as Keras 3.15 computes them
  // with the same hyperparameters (row_wise_adagrad: as NumPy does).
  std::vector<float> keras;
};

std::ostream& operator<<(std::ostream& out, const Case& test_case) {
  return out << test_case.name;
}

RuleConfig RmspropRule(bool centered, bool momentum_field) {
  return Rule("rmsprop")
      .Set("centered", centered)
      .Set("momentum_field", momentum_field);
}

std::vector<double> FtrlHyperparameters(double learning_rate_power) {
  return {0.05, 0.02, learning_rate_power, 0.01, 0.02, 0.03, 0.04};
}

std::vector<Case> Cases() {
  return {
      {"sgd",
       Rule("sgd"),
       {0.05, 0.02},
       {0.29911342f, -0.71055204f, 1.1002064f}},
      {"momentum",
       Rule("momentum"),
       {0.05, 0.02, 0.8, 0},
       {0.29313344f, -0.60060203f, 1.0980476f}},
      {"nesterov",
       Rule("momentum"),
       {0.05, 0.02, 0.8, 1},
       {0.29433936f, -0.632712f, 1.1012818f}},
      {"adagrad",
       Rule("adagrad"),
       {0.05, 0.02, 1e-3},
       {0.28711057f, -0.6741101f, 1.1042336f}},
      {"row_wise_adagrad",
       Rule("row_wise_adagrad"),
       {0.05, 0.02, 1e-3},
       {0.29939848f, -0.6684282f, 1.0982403f}},
      {"adam_by_row",
       AdamRule(true),
       {0.05, 0.02, 0.8, 0.95, 1e-3},
       {0.26587063f, -0.6158213f, 1.0514747f}},
      {"adam_global",
       AdamRule(false),
       {0.05, 0.02, 0.8, 0.95, 1e-3},
       {0.26587063f, -0.6158213f, 1.0514747f}},
      {"ftrl",
       Rule("ftrl"),
       FtrlHyperparameters(-0.5),
       {0.080726005f, -0.42349064f, 0.0015471333f}},
      {"ftrl_other_power",
       Rule("ftrl"),
       FtrlHyperparameters(-0.7),
       {0.101614974f, -0.50090694f, 0.0020607165f}},
      {"ftrl_fixed_rate",
       Rule("ftrl"),
       FtrlHyperparameters(0),
       {-0.00034375017f, -0.009925323f, 0.0f}},
      {"rmsprop",
       RmspropRule(false, false),
       {0.05, 0.02, 0.8, 0, 1e-3},
       {0.25028113f, -0.6389891f, 1.1427072f}},
      {"rmsprop_momentum",
       RmspropRule(false, true),
       {0.05, 0.02, 0.8, 0.6, 1e-3},
       {0.20150237f, -0.5045555f, 1.1008134f}},
      {"rmsprop_centered",
       RmspropRule(true, false),
       {0.05, 0.02, 0.8, 0, 1e-3},
       {0.2391015f, -0.61826885f, 1.1460357f}},
      {"rmsprop_centered_momentum",
       RmspropRule(true, true),
       {0.05, 0.02, 0.8, 0.6, 1e-3},
       {0.1790158f, -0.465928f, 1.1034877f}},
      {"lion",
       Rule("lion"),
       {0.05, 0.02, 0.8, 0.95},
       {0.24915089f, -0.64805204f, 1.0468533f}},
  };
}

std::vector<float> Normals(std::mt19937* random, int64_t n) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(*random);
  return values;
}

// One value of a row in float64: the formulas of the Keras documentation and
// of the papers, not the order of operations of the code under test.
struct Reference {
  double w, g;
  double accumulator, linear, m, v, momentum, velocity, average;
};

void ReferenceUpdate(const Case& test_case, double t, double mean_square,
                     Reference* r) {
  const RuleConfig& config = test_case.rule;
  const std::string rule = config.spec().name;
  const std::vector<double>& h = test_case.hyperparameters;
  const double rate = h[0];
  const double g = r->g;
  r->w *= 1 - h[1] * rate;
  if (rule == "sgd") {
    r->w -= rate * g;
  } else if (rule == "momentum") {
    r->momentum = h[2] * r->momentum - rate * g;
    r->w += h[3] != 0 ? h[2] * r->momentum - rate * g : r->momentum;
  } else if (rule == "adagrad" || rule == "row_wise_adagrad") {
    r->accumulator += rule == "adagrad" ? g * g : mean_square;
    r->w -= rate * g / std::sqrt(r->accumulator + h[2]);
  } else if (rule == "adam") {
    r->m = h[2] * r->m + (1 - h[2]) * g;
    r->v = h[3] * r->v + (1 - h[3]) * g * g;
    const double alpha =
        rate * std::sqrt(1 - std::pow(h[3], t)) / (1 - std::pow(h[2], t));
    r->w -= alpha * r->m / (std::sqrt(r->v) + h[4]);
  } else if (rule == "ftrl") {
    const double sum = r->accumulator + g * g;
    const double sigma =
        (std::pow(sum, -h[2]) - std::pow(r->accumulator, -h[2])) / rate;
    r->linear += g + 2 * h[5] * r->w - sigma * r->w;
    r->accumulator = sum;
    const double quadratic = (std::pow(sum, -h[2]) + h[6]) / rate + 2 * h[4];
    const double sign = r->linear > 0 ? 1 : -1;
    r->w = std::fabs(r->linear) <= h[3] ? 0
                                        : (sign * h[3] - r->linear) / quadratic;
  } else if (rule == "rmsprop") {
    r->velocity = h[2] * r->velocity + (1 - h[2]) * g * g;
    double variance = r->velocity;
    if (config.Get("centered") != 0) {
      r->average = h[2] * r->average + (1 - h[2]) * g;
      variance -= r->average * r->average;
    }
    double step = rate * g / std::sqrt(variance + h[4]);
    if (config.Get("momentum_field") != 0) {
      step = r->momentum = h[3] * r->momentum + step;
    }
    r->w -= step;
  } else if (rule == "lion") {
    const double direction = h[2] * r->momentum + (1 - h[2]) * g;
    r->momentum = h[3] * r->momentum + (1 - h[3]) * g;
    r->w -= direction > 0 ? rate : direction < 0 ? -rate : 0;
  } else {
    FAIL() << "no reference for " << rule;
  }
}

class UpdateRuleTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Rules, UpdateRuleTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

TEST_P(UpdateRuleTest, SameBitsOnEveryInstructionSet) {
  constexpr int64_t kCount = 3;
  std::vector<int64_t> dims = {128, 1000};
  for (int64_t dim = 1; dim <= 67; ++dim) dims.push_back(dim);
  for (int64_t dim : dims) {
    std::vector<uint64_t> expected;
    for (SimdLevel level : SimdLevels()) {
      ScopedSimdLevel scoped(level);
      std::mt19937 random(dim);
      Trainer trainer(GetParam().rule, dim, kCount);
      trainer.Randomise(&random);
      const std::vector<uint64_t> before = trainer.rows().bits();
      for (int64_t step = 1; step <= 5; ++step) {
        trainer.Push(GetParam().hyperparameters, step,
                     Normals(&random, kCount * dim));
      }
      if (level == SimdLevel::kScalar) expected = trainer.rows().bits();
      ASSERT_NE(trainer.rows().bits(), before);
      ASSERT_EQ(trainer.rows().bits(), expected)
          << SimdLevelName(level) << ", dim " << dim;
    }
  }
}

// A value and the scale that its rounding errors have.
void ExpectClose(float found, double expected, double scale,
                 const std::string& what) {
  EXPECT_NEAR(found, expected, 2e-6 * (std::fabs(expected) + scale)) << what;
}

TEST_P(UpdateRuleTest, FollowsTheReferenceInDoublePrecision) {
  for (int64_t dim : {1, 3, 4, 8, 16, 19, 32, 64, 100}) {
    std::mt19937 random(1000 + dim);
    Trainer trainer(GetParam().rule, dim, 1);
    trainer.Randomise(&random);
    Rows& rows = trainer.rows();
    const auto get = [&](const char* name, int64_t j) -> double {
      const Field* field = trainer.layout().Find(name);
      if (field == nullptr) return 0;
      return rows.Floats(0, name)[field->count == 1 ? 0 : j];
    };
    for (int64_t push = 1; push <= 3; ++push) {
      const std::vector<float> gradients = Normals(&random, dim);
      double mean_square = 0;
      for (float g : gradients) mean_square += static_cast<double>(g) * g / dim;
      std::vector<Reference> references;
      std::vector<double> before;
      for (int64_t j = 0; j < dim; ++j) {
        references.push_back({get("weights", j), gradients[j],
                              get("accumulator", j), get("linear", j),
                              get("m", j), get("v", j), get("momentum", j),
                              get("velocity", j), get("average_gradient", j)});
        before.push_back(references.back().w);
      }
      const bool by_row = trainer.layout().Find("step") != nullptr;
      const int64_t t = by_row ? *rows.Step(0) + 1 : 5 + push;
      trainer.Push(GetParam().hyperparameters, t, gradients);
      if (by_row) {
        EXPECT_EQ(*rows.Step(0), t);
      }
      for (int64_t j = 0; j < dim; ++j) {
        Reference& r = references[j];
        ReferenceUpdate(GetParam(), t, mean_square, &r);
        const auto expect = [&](const char* name, double expected,
                                double scale) {
          if (trainer.layout().Find(name) == nullptr) return;
          ExpectClose(get(name, j), expected, scale, name);
        };
        expect("weights", r.w, std::fabs(before[j]));
        expect("accumulator", r.accumulator, 0);
        // The root's difference is divided by the learning rate.
        expect("linear", r.linear, 20 * std::fabs(before[j]));
        expect("m", r.m, std::fabs(r.g));
        expect("v", r.v, 0);
        expect("momentum", r.momentum, std::fabs(r.g));
        expect("velocity", r.velocity, 0);
        expect("average_gradient", r.average, std::fabs(r.g));
      }
    }
  }
}

TEST_P(UpdateRuleTest, FollowsKeras) {
  Trainer trainer(GetParam().rule, 3, 1);
  float* weights = trainer.rows().Floats(0, "weights");
  weights[0] = 0.3f;
  weights[1] = -0.7f;
  weights[2] = 1.1f;
  const std::vector<std::vector<float>> gradients = {
      {0.5f, -1.25f, 0.03f}, {-0.75f, -0.5f, 0.0f}, {0.25f, 2.0f, -0.1f}};
  for (int64_t push = 0; push < 3; ++push) {
    trainer.Push(GetParam().hyperparameters, push + 1, gradients[push]);
  }
  for (int64_t j = 0; j < 3; ++j) {
    // Keras rounds Adam's betas to float32 before it takes their powers.
    EXPECT_NEAR(weights[j], GetParam().keras[j],
                2e-6 * (std::fabs(GetParam().keras[j]) + 0.1))
        << "weight " << j;
  }
}

TEST_P(UpdateRuleTest, UpdatesTheGivenRowsWithTheGivenGradients) {
  constexpr int64_t kDim = 5;
  Trainer all(GetParam().rule, kDim, 4);
  Trainer one(GetParam().rule, kDim, 1);
  std::mt19937 random(7);
  const std::vector<float> gradients = Normals(&random, 4 * kDim);
  const std::vector<uint64_t> fresh = all.rows().bits();
  const int64_t stride = all.layout().stride() / 8;

  // Row 2 with gradient 3 and row 0 with gradient 1.
  const std::vector<double>& h = GetParam().hyperparameters;
  std::vector<uint8_t*> rows = {all.rows().row(2), all.rows().row(0)};
  const std::vector<int64_t> index = {3, 1};
  all.rule()
      .Prepare(h.data(), static_cast<int64_t>(h.size()), 1)
      .Update(rows.data(), gradients.data(), index.data(), 2);
  one.Push(h, 1,
           std::vector<float>(gradients.begin() + 3 * kDim, gradients.end()));

  const std::vector<uint64_t>& bits = all.rows().bits();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(bits[i * stride], static_cast<uint64_t>(i)) << "sign";
  }
  for (int64_t k = 1; k < stride; ++k) {
    EXPECT_EQ(bits[2 * stride + k], one.rows().bits()[k]);
    EXPECT_EQ(bits[stride + k], fresh[stride + k]) << "row 1 is not in it";
    EXPECT_EQ(bits[3 * stride + k], fresh[3 * stride + k]) << "nor row 3";
  }
  EXPECT_NE(all.rows().Floats(0, "weights")[0], 0.0f);
}

TEST_P(UpdateRuleTest, ZeroDenominatorMakesNoStep) {
  if (GetParam().name == "lion") GTEST_SKIP() << "it divides by nothing";
  std::vector<double> h = GetParam().hyperparameters;
  RuleConfig rule = GetParam().rule;
  if (HasKey(rule, "initial_accumulator_value")) {
    rule.Set("initial_accumulator_value", 0);
  }
  for (const std::string& name : {std::string("epsilon"), std::string("beta"),
                                  std::string("l2_regularization_strength")}) {
    const auto& all = rule.spec().hyperparameters;
    for (size_t i = 0; i < all.size(); ++i) {
      if (name == all[i].name) h[i] = 0;
    }
  }
  // Zero, and one whose square underflows.
  for (float gradient : {0.0f, 1e-30f}) {
    for (SimdLevel level : SimdLevels()) {
      ScopedSimdLevel scoped(level);
      Trainer trainer(rule, 17, 1);
      for (int64_t step = 1; step <= 3; ++step) {
        trainer.Push(h, step, std::vector<float>(17, gradient));
      }
      for (const Field& field : trainer.layout().fields()) {
        if (field.type != FieldType::kFloat32) continue;
        for (int64_t j = 0; j < field.count; ++j) {
          EXPECT_LT(std::fabs(trainer.rows().Floats(0, field.name)[j]), 1e-25f)
              << field.name << " on " << SimdLevelName(level);
        }
      }
    }
  }
}

TEST_P(UpdateRuleTest, CheckTellsTheCount) {
  const UpdateRule rule = MakeRule(Config(GetParam().rule, 4));
  const std::vector<double>& h = GetParam().hyperparameters;
  const int64_t count = static_cast<int64_t>(h.size());
  EXPECT_TRUE(rule.Check(h.data(), count, 0).ok());
  const Status status = rule.Check(h.data(), count - 1, 0);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("must be " + std::to_string(count) +
                                  " numbers (learning_rate, weight_decay"),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("found " + std::to_string(count - 1)),
            std::string::npos)
      << status.message();
}

TEST_P(UpdateRuleTest, CheckRefusesEveryHyperparameterOutOfRange) {
  const UpdateRule rule = MakeRule(Config(GetParam().rule, 4));
  const auto& all = GetParam().rule.spec().hyperparameters;
  const int64_t count = static_cast<int64_t>(all.size());
  ASSERT_EQ(GetParam().hyperparameters.size(), all.size());
  const auto message = [&](int64_t i, double value) {
    std::vector<double> h = GetParam().hyperparameters;
    h[i] = value;
    const Status status = rule.Check(h.data(), count, 1);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
        << all[i].name << " " << value;
    return status.message();
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = all[i].name;
    const bool falls = name == "learning_rate_power";
    for (double value : {std::nan(""), infinity, -infinity, 1e39, -1e39,
                         falls ? 0.25 : -0.25}) {
      EXPECT_EQ(message(i, value).find(name + " of "), 0u);
    }
    EXPECT_NE(message(i, falls ? 0.25 : -0.25)
                  .find(falls ? "found 0.25" : "found -0.25"),
              std::string::npos);
    if (name == "rho" || name == "momentum" || name == "beta_1" ||
        name == "beta_2") {
      EXPECT_NE(message(i, 1.0).find("at least 0 and less than 1, found 1"),
                std::string::npos);
    }
  }
}

UpdateRule MakeRule(const RuleConfig& rule) {
  return MakeRule(Config(rule, 4));
}

TEST(UpdateRuleCheckTest, FtrlNeedsALearningRate) {
  std::vector<double> h = FtrlHyperparameters(-0.5);
  const UpdateRule rule = MakeRule(Rule("ftrl"));
  // Zero in float64, and in float32 only.
  h[0] = 0;
  EXPECT_EQ(rule.Check(h.data(), 7, 1).message(),
            "learning_rate of ftrl must be more than 0 and finite in float32, "
            "because the rule divides by it, found 0");
  h[0] = 1e-60;
  EXPECT_EQ(rule.Check(h.data(), 7, 1).message(),
            "learning_rate of ftrl must be more than 0 and finite in float32, "
            "because the rule divides by it, found 1e-60");
}

TEST(UpdateRuleCheckTest, OtherRulesMayHaveALearningRateOfZero) {
  const std::vector<double> h = {0, 0};
  EXPECT_TRUE(MakeRule(Rule("sgd")).Check(h.data(), 2, 1).ok());
}

TEST(UpdateRuleCheckTest, NesterovIsAFlag) {
  const std::vector<double> h = {0.1, 0, 0.9, 0.5};
  EXPECT_EQ(MakeRule(Rule("momentum")).Check(h.data(), 4, 1).message(),
            "nesterov of momentum must be 0 or 1, found 0.5");
}

TEST(UpdateRuleCheckTest, RmspropMomentumNeedsItsField) {
  const std::vector<double> h = {0.1, 0, 0.9, 0.5, 1e-7};
  EXPECT_EQ(MakeRule(RmspropRule(false, false)).Check(h.data(), 5, 1).message(),
            "momentum of rmsprop must be 0 in a table whose rows have no "
            "momentum field, found 0.5; create the table with "
            "momentum_field=1 to use momentum");
  EXPECT_TRUE(MakeRule(RmspropRule(false, true)).Check(h.data(), 5, 1).ok());
}

TEST(UpdateRuleCheckTest, StepIsNotNegative) {
  const std::vector<double> h = {0.1, 0};
  EXPECT_EQ(MakeRule(Rule("sgd")).Check(h.data(), 2, -3).message(),
            "step must be 0 or more, found -3");
}

TEST(LionTest, NoDirectionMakesNoStep) {
  Trainer trainer(Rule("lion"), 17, 1);
  trainer.Push({0.1, 0, 0.9, 0.99}, 1, std::vector<float>(17, 0.0f));
  EXPECT_EQ(trainer.rows().bits(), Rows(trainer.layout(), 1).bits());
}

TEST(UpdateRuleSlotTest, SlotsStartAsKerasStartsThem) {
  for (const char* kind : {"adagrad", "row_wise_adagrad", "ftrl"}) {
    const RowLayout layout(Config(Rule(kind), 4));
    EXPECT_FLOAT_EQ(layout.Find("accumulator")->start, 0.2f);
  }
  for (const auto& [rule, names] :
       std::vector<std::pair<RuleConfig, std::vector<std::string>>>{
           {Rule("momentum"), {"momentum"}},
           {AdamRule(true), {"m", "v", "step"}},
           {Rule("ftrl"), {"linear"}},
           {RmspropRule(true, true),
            {"velocity", "momentum", "average_gradient"}}}) {
    const RowLayout layout(Config(rule, 4));
    for (const std::string& name : names) {
      EXPECT_EQ(layout.Find(name)->start, 0) << name;
    }
  }
}

}  // namespace
}  // namespace tf_ext
