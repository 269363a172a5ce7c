// SPDX-License-Identifier: Apache-2.0
// Update rules on rows with narrow fields.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/narrow.h"
#include "cc/core/rules/narrow_test_util.h"
#include "cc/core/rules/update_rule_test_util.h"
#include "cc/core/support/simd_test_util.h"

namespace tf_ext {
namespace {

struct RuleCase {
  const char* name;
  RuleConfig rule;
  std::vector<double> hyperparameters;
};

std::vector<RuleCase> RuleCases() {
  const RuleConfig rmsprop =
      Rule("rmsprop").Set("centered", 1).Set("momentum_field", 1);
  return {{"sgd", Rule("sgd"), {0.05, 0.02}},
          {"momentum", Rule("momentum"), {0.05, 0.02, 0.8, 1}},
          {"adagrad", Rule("adagrad"), {0.05, 0.02, 1e-3}},
          {"row_wise_adagrad", Rule("row_wise_adagrad"), {0.05, 0.02, 1e-3}},
          {"adam_by_row", AdamRule(true), {0.05, 0.02, 0.8, 0.95, 1e-3}},
          {"adam_global", AdamRule(false), {0.05, 0.02, 0.8, 0.95, 1e-3}},
          {"ftrl", Rule("ftrl"), {0.05, 0.02, -0.5, 0.01, 0.02, 0.03, 0.04}},
          {"rmsprop", rmsprop, {0.05, 0.02, 0.8, 0.6, 1e-3}},
          {"lion", Rule("lion"), {0.05, 0.02, 0.8, 0.95}}};
}

struct Dtypes {
  FieldType weights;
  FieldType slots;
};

constexpr Dtypes kDtypes[] = {{FieldType::kFloat16, FieldType::kFloat32},
                              {FieldType::kFloat16, FieldType::kBfloat16},
                              {FieldType::kBfloat16, FieldType::kFloat32},
                              {FieldType::kBfloat16, FieldType::kBfloat16},
                              {FieldType::kFloat32, FieldType::kBfloat16}};

// Rows of a table, in memory of their own, and its rule.
struct NarrowTable {
  NarrowTable(const RuleCase& test_case, int64_t dim, Dtypes dtypes, int64_t n)
      : config(Config(test_case.rule, dim)), rows(n) {
    config.dtype = dtypes.weights;
    config.slot_dtype = dtypes.slots;
    layout.emplace(config);
    rule.emplace(config.rule, dim, layout->offsets(),
                 layout->narrow(RoundingStream(5, "t")));
    bytes.resize(n * layout->stride());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sign = 1000 - 7 * i;
      std::memcpy(row(i), &sign, sizeof(sign));
    }
  }
  uint8_t* row(int64_t i) { return bytes.data() + i * layout->stride(); }
  std::vector<float> Get(int64_t i, const Field& field) {
    std::vector<float> values(field.count);
    WidenTo(field.type, row(i) + field.offset, field.count, values.data());
    return values;
  }
  void Set(int64_t i, const Field& field, const std::vector<float>& values) {
    NarrowToNearest(field.type, values.data(), field.count,
                    row(i) + field.offset);
  }
  // Returns how many values were limited.
  int64_t Push(const std::vector<double>& hyperparameters, int64_t step,
               const std::vector<float>& gradients) {
    std::vector<uint8_t*> pointers;
    std::vector<int64_t> index;
    for (int64_t i = 0; i < rows; ++i) {
      pointers.push_back(row(i));
      index.push_back(rows - 1 - i);
    }
    return rule
        ->Prepare(hyperparameters.data(),
                  static_cast<int64_t>(hyperparameters.size()), step)
        .Update(pointers.data(), gradients.data(), index.data(), rows);
  }

  TableConfig config;
  int64_t rows;
  std::optional<RowLayout> layout;
  std::optional<UpdateRule> rule;
  std::vector<uint8_t> bytes;
};

// Values as trained rows have them; a step is a number of pushes.
void Randomise(std::mt19937* random, NarrowTable* table) {
  std::normal_distribution<float> normal(0.0f, 0.5f);
  for (int64_t i = 0; i < table->rows; ++i) {
    for (const Field& field : table->layout->fields()) {
      if (field.type == FieldType::kInt32) {
        const int32_t step = static_cast<int32_t>((*random)() % 1000);
        std::memcpy(table->row(i) + field.offset, &step, sizeof(step));
        continue;
      }
      const bool square = field.name == "accumulator" || field.name == "v" ||
                          field.name == "velocity";
      std::vector<float> values(field.count);
      for (float& value : values) {
        value = normal(*random);
        if (square) value = value * value + 4.0f;
      }
      table->Set(i, field, values);
    }
  }
}

std::vector<float> Gradients(std::mt19937* random, int64_t n) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(*random);
  return values;
}

class NarrowRuleTest : public testing::TestWithParam<RuleCase> {};

INSTANTIATE_TEST_SUITE_P(Rules, NarrowRuleTest, testing::ValuesIn(RuleCases()),
                         [](const testing::TestParamInfo<RuleCase>& info) {
                           return std::string(info.param.name);
                         });

TEST_P(NarrowRuleTest, SameBitsOnEveryInstructionSet) {
  for (const Dtypes& dtypes : kDtypes) {
    for (int64_t dim :
         {1, 2, 3, 4, 7, 8, 9, 16, 17, 24, 31, 32, 40, 64, 100, 1000, 3000}) {
      const int64_t rows = dim < 100 ? 37 : 3;
      std::vector<uint8_t> expected;
      for (SimdLevel level : SimdLevels()) {
        ScopedSimdLevel scoped(level);
        std::mt19937 random(static_cast<uint32_t>(dim));
        NarrowTable table(GetParam(), dim, dtypes, rows);
        Randomise(&random, &table);
        const std::vector<uint8_t> before = table.bytes;
        for (int64_t step = 1; step <= 3; ++step) {
          table.Push(GetParam().hyperparameters, step,
                     Gradients(&random, rows * dim));
        }
        if (level == SimdLevel::kScalar) expected = table.bytes;
        ASSERT_NE(table.bytes, before);
        ASSERT_EQ(table.bytes, expected)
            << SimdLevelName(level) << ", dim " << dim << ", "
            << FieldTypeName(dtypes.weights) << " "
            << FieldTypeName(dtypes.slots);
      }
    }
  }
}

// Each value is one of the two next to what the rule computes in float32 of the
// stored values, whose error is tested by itself; so the error of a push is
// below the distance between representable values.
TEST_P(NarrowRuleTest, RoundsWhatTheRuleComputesInFloat32) {
  constexpr int64_t kDim = 19;
  constexpr int64_t kRows = 40;
  for (const Dtypes& dtypes : kDtypes) {
    std::mt19937 random(9);
    NarrowTable narrow(GetParam(), kDim, dtypes, kRows);
    NarrowTable wide(GetParam(), kDim,
                     {FieldType::kFloat32, FieldType::kFloat32}, kRows);
    if (!narrow.layout->narrow(0)) continue;  // sgd has no slots
    Randomise(&random, &narrow);
    int64_t changed = 0;
    int64_t up = 0;
    for (int64_t step = 1; step <= 3; ++step) {
      for (int64_t i = 0; i < kRows; ++i) {
        for (size_t f = 0; f < wide.layout->fields().size(); ++f) {
          const Field& from = narrow.layout->fields()[f];
          wide.Set(i, wide.layout->fields()[f], narrow.Get(i, from));
        }
      }
      const std::vector<float> gradients = Gradients(&random, kRows * kDim);
      EXPECT_EQ(narrow.Push(GetParam().hyperparameters, step, gradients), 0);
      EXPECT_EQ(wide.Push(GetParam().hyperparameters, step, gradients), 0);
      for (int64_t i = 0; i < kRows; ++i) {
        for (size_t f = 0; f < wide.layout->fields().size(); ++f) {
          const Field& field = narrow.layout->fields()[f];
          const std::vector<float> found = narrow.Get(i, field);
          const std::vector<float> exact =
              wide.Get(i, wide.layout->fields()[f]);
          for (int64_t j = 0; j < field.count; ++j) {
            if (FieldTypeBytes(field.type) == 4) {
              ASSERT_EQ(std::memcmp(&found[j], &exact[j], 4), 0)
                  << field.name << " " << j;
              continue;
            }
            const Format& format =
                kFormats[field.type == FieldType::kFloat16 ? 0 : 1];
            const uint32_t below = format.Below(exact[j]);
            const double low = format.Value(below);
            const double high = format.Value(below + 1);
            const double magnitude = std::fabs(found[j]);
            ASSERT_TRUE(magnitude == low || magnitude == high)
                << field.name << " " << found[j] << " for " << exact[j];
            ASSERT_TRUE(std::signbit(found[j]) == std::signbit(exact[j]));
            ++changed;
            up += magnitude == high;
          }
        }
      }
    }
    ASSERT_GT(changed, 0);
    EXPECT_GT(up, changed / 10);
    EXPECT_LT(up, changed * 9 / 10);
  }
}

// Weights, slots and steps: each value of a row is rounded by bits of its own,
// which the sign and the position decide.
TEST(ComputedRowsTest, EveryValueIsRoundedByItsSignAndPosition) {
  constexpr int64_t kRows = 11;
  const uint64_t key = RoundingKey(RoundingStream(5, "t"), 9);
  for (SimdLevel level : SimdLevels()) {
    ScopedSimdLevel scoped(level);
    for (int64_t dim : {1, 3, 8, 16, 24}) {
      NarrowRows narrow(RoundingStream(5, "t"), true, true);
      narrow.Add(FieldType::kFloat16, dim, 8);
      narrow.Add(FieldType::kBfloat16, dim, 8 + 2 * dim);
      std::vector<std::vector<uint8_t>> rows(kRows);
      std::vector<uint8_t*> stored;
      ASSERT_GE(narrow.capacity(), kRows);
      // The value that is rounded most differently, of either type.
      const std::vector<float> values(dim, 1.00390625f + 0.00048828125f);
      for (int64_t i = 0; i < kRows; ++i) {
        rows[i].resize(8 + 4 * dim);
        const int64_t sign = 7 * i - 30;
        std::memcpy(rows[i].data(), &sign, sizeof(sign));
        stored.push_back(rows[i].data());
      }
      ComputedRows computed(narrow);
      computed.Widen(stored.data(), kRows);
      for (int64_t i = 0; i < kRows; ++i) {
        std::memcpy(computed.weights()[i], values.data(), 4 * dim);
        std::memcpy(computed.slots()[i] + 4 * dim, values.data(), 4 * dim);
      }
      EXPECT_EQ(computed.Narrow(key), 0);
      for (int64_t i = 0; i < kRows; ++i) {
        std::vector<uint8_t> expected = rows[i];
        const uint64_t row_key = RowRoundingKey(key, 7 * i - 30);
        NarrowTo(FieldType::kFloat16, values.data(), dim, row_key,
                 PositionMultipliers(0, dim).data(), expected.data() + 8);
        NarrowTo(FieldType::kBfloat16, values.data(), dim, row_key,
                 PositionMultipliers(dim, dim).data(),
                 expected.data() + 8 + 2 * dim);
        ASSERT_EQ(rows[i], expected) << SimdLevelName(level) << " " << dim;
      }
    }
  }
}

TEST(NarrowRuleErrorTest, ValuesAboveTheLargestAreCounted) {
  const RuleCase sgd = {"sgd", Rule("sgd"), {1, 0}};
  for (SimdLevel level : SimdLevels()) {
    ScopedSimdLevel scoped(level);
    NarrowTable table(sgd, 20, kDtypes[0], 3);
    std::vector<float> gradients(60, 0.5f);
    gradients[3] = -1e6f;
    gradients[19] = 1e6f;
    gradients[59] = -65505;
    gradients[58] = -65504;
    EXPECT_EQ(table.Push({1, 0}, 1, gradients), 3) << SimdLevelName(level);
    const Field& weights = table.layout->fields()[0];
    // Gradients are in the reverse order of rows.
    EXPECT_EQ(table.Get(2, weights)[3], 65504);
    EXPECT_EQ(table.Get(2, weights)[19], -65504);
    EXPECT_EQ(table.Get(0, weights)[19], 65504);
    EXPECT_EQ(table.Get(0, weights)[18], 65504);
    EXPECT_EQ(table.Get(1, weights)[0], -0.5);
  }
}

// Updates far below the distance between values are not lost.
TEST(NarrowRuleErrorTest, ManySmallUpdatesAddUp) {
  const RuleCase sgd = {"sgd", Rule("sgd"), {1, 0}};
  constexpr int64_t kDim = 16;
  constexpr int64_t kRows = 64;
  constexpr int64_t kSteps = 1000;  // 10^6 updates
  constexpr double kUpdate = 1e-5;
  for (const Format& format : kFormats) {
    NarrowTable table(sgd, kDim, {format.type, FieldType::kFloat32}, kRows);
    const Field& weights = table.layout->fields()[0];
    for (int64_t i = 0; i < kRows; ++i) {
      table.Set(i, weights, std::vector<float>(kDim, 1.0f));
    }
    const std::vector<float> gradients(kRows * kDim, -kUpdate);
    for (int64_t step = 1; step <= kSteps; ++step) {
      table.Push({1, 0}, step, gradients);
    }
    double sum = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      for (float value : table.Get(i, weights)) sum += value;
    }
    const double distance = std::ldexp(1, -format.fraction_bits);
    const double deviation = std::sqrt(kSteps * kUpdate / distance) * distance /
                             std::sqrt(1.0 * kRows * kDim);
    EXPECT_NEAR(sum / (kRows * kDim), 1 + kSteps * kUpdate, 4.5 * deviation);
    EXPECT_LT(4.5 * deviation, kSteps * kUpdate);
  }
}

}  // namespace
}  // namespace tf_ext
