// SPDX-License-Identifier: Apache-2.0
// Pushes whose updates are beyond float32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cc/core/rules/rule_spec.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/simd_test_util.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"

namespace tf_ext {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TableFiniteTest, LimitsAndCountsWeights) {
  const auto table = MakeTable("sgd", 4);
  const std::vector<float> before = Pull(table.get(), {1, 2}, true);
  // Learning rate 10.
  Push(table.get(), {1, 2}, {3e38f, -3e38f, 1, 0, 0, 0, 0, 0}, {10, 0});
  std::vector<float> rows = Pull(table.get(), {1, 2}, false);
  EXPECT_EQ(rows[0], -kLargest);
  EXPECT_EQ(rows[1], kLargest);
  EXPECT_EQ(rows[2], before[2] - 10);
  for (int j = 3; j < 8; ++j) EXPECT_EQ(rows[j], before[j]);
  EXPECT_EQ(table->Stats().saturated, 2);
  // Back to zero, not to NaN.
  Push(table.get(), {1}, {-kLargest, kLargest, 0, 0}, {1, 0});
  rows = Pull(table.get(), {1}, false);
  EXPECT_EQ(rows[0], 0);
  EXPECT_EQ(rows[1], 0);
  EXPECT_EQ(table->Stats().saturated, 2);
}

TEST(TableFiniteTest, LimitsAndCountsSlots) {
  const auto table = MakeTable("adagrad", 4);
  const std::vector<double> hyperparameters = {0.1, 0, 1e-7};
  Push(table.get(), {1}, {3e38f, 1, 1, 1}, hyperparameters);
  EXPECT_EQ(table->Stats().saturated, 1);
  const ExportedRows rows = Export(*table, 0, -1, {"accumulator"});
  EXPECT_EQ(FloatsOf(rows, 0, 0)[0], kLargest);
}

TEST(TableFiniteTest, PushesOfImportedInfinityMakeItFinite) {
  const auto table = MakeTable("sgd", 2);
  const int64_t sign = 5;
  const float weights[] = {kInfinity, std::nanf("")};
  ASSERT_TRUE(table->Import(&sign, 1, {{"weights", weights}}, SerialFor).ok());
  Push(table.get(), {5}, {1, 1});
  // Infinity minus its weight decay is NaN.
  EXPECT_EQ(Pull(table.get(), {5}, false), (std::vector<float>{0, 0}));
  EXPECT_EQ(table->Stats().saturated, 2);
}

// Of pushed values at the ends of float32, by all rules.
class ExtremesTest : public testing::TestWithParam<
                         std::tuple<std::string, SimdLevel, FieldType>> {};

TEST_P(ExtremesTest, KeepRowsFiniteAndOthersAsTheyAre) {
  const auto& [rule, simd, type] = GetParam();
  const ScopedSimdLevel level(simd);
  const std::vector<Hyperparameter>& numbers = FindRule(rule)->hyperparameters;
  // Such a rate would move all rows far.
  const bool moves_all = FindRule(rule)->absent != nullptr;
  for (const int64_t dim : {1, 5, 8, 19}) {
    TableConfig config = MakeConfig(rule, dim);
    config.dtype = type;
    if (type != FieldType::kFloat32) config.slot_dtype = FieldType::kBfloat16;
    const auto table = MakeTable(config), calm = MakeTable(config);
    std::mt19937 random(7);
    for (int64_t step = 1; step <= 60; ++step) {
      std::vector<double> hyperparameters;
      for (const Hyperparameter& each : numbers) {
        const double usual = std::isnan(each.start) ? 0.5 : each.start;
        const bool huge =
            !moves_all && each.range.high == kNoBound && random() % 3 == 0;
        hyperparameters.push_back(huge ? 3e38 : usual);
      }
      std::vector<float> gradients(dim);
      for (float& value : gradients) value = random() % 2 == 0 ? 3e38f : -3e38f;
      const int64_t size = static_cast<int64_t>(hyperparameters.size());
      const auto push = [&](Table* to, int64_t sign, int64_t rows = 1) {
        int64_t updated = 0;
        ASSERT_TRUE(
            IsOk(to->Push(&sign, gradients.data(), rows, hyperparameters.data(),
                          size, step, SerialFor, &updated)));
      };
      push(table.get(), 1);
      // Some rules move all rows in each step.
      push(calm.get(), 1, 0);
      gradients.assign(dim, 1e-3f);
      for (double& number : hyperparameters) {
        if (number == 3e38) number = 0.5;
      }
      push(table.get(), 2);
      push(calm.get(), 2);
    }
    EXPECT_GT(table->Stats().saturated, 0);
    EXPECT_EQ(calm->Stats().saturated, 0);
    for (const Field& field : table->layout().fields()) {
      if (field.type == FieldType::kInt32) continue;
      const ExportedRows rows = Export(*table, 0, -1, {field.name});
      const ExportedRows its = Export(*calm, 0, -1, {field.name});
      ASSERT_EQ(rows.signs.size(), 2u);
      for (size_t i = 0; i < rows.signs.size(); ++i) {
        const size_t bytes = rows.fields[0].size() / 2;
        const uint8_t* const values = rows.fields[0].data() + i * bytes;
        if (rows.signs[i] == 2) {
          EXPECT_EQ(std::vector<uint8_t>(values, values + bytes),
                    its.fields[0]);
        }
        std::vector<float> floats(field.count);
        WidenTo(field.type, values, field.count, floats.data());
        for (const float value : floats) {
          EXPECT_TRUE(std::isfinite(value)) << field.name << " " << value;
        }
      }
    }
  }
}

std::vector<std::string> TrainingRules() {
  std::vector<std::string> names;
  for (const RuleSpec* spec : AllRules()) {
    if (spec->prepare != nullptr) names.push_back(spec->name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    AllRules, ExtremesTest,
    testing::Combine(testing::ValuesIn(TrainingRules()),
                     testing::ValuesIn(SimdLevels()),
                     testing::Values(FieldType::kFloat32, FieldType::kFloat16,
                                     FieldType::kBfloat16)));

}  // namespace
}  // namespace tf_ext
