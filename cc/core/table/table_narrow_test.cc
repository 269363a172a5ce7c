// SPDX-License-Identifier: Apache-2.0
// Tables whose weights or slots are stored in 2 bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/rules/narrow.h"
#include "cc/core/support/simd_test_util.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"

namespace tf_ext {
namespace {

constexpr FieldType kFloat32 = FieldType::kFloat32;
constexpr FieldType kFloat16 = FieldType::kFloat16;
constexpr FieldType kBfloat16 = FieldType::kBfloat16;

struct Dtypes {
  FieldType weights;
  FieldType slots;
};

constexpr Dtypes kDtypes[] = {{kFloat16, kFloat32},
                              {kFloat16, kBfloat16},
                              {kBfloat16, kFloat32},
                              {kBfloat16, kBfloat16},
                              {kFloat32, kBfloat16}};

TableConfig NarrowConfig(const std::string& rule, int64_t dim,
                         const Dtypes& dtypes) {
  TableConfig config = MakeConfig(rule, dim);
  config.dtype = dtypes.weights;
  config.slot_dtype = dtypes.slots;
  return config;
}

std::vector<double> Hyperparameters(const std::string& rule) {
  std::vector<double> values;
  for (const Hyperparameter& each : FindRule(rule)->hyperparameters) {
    values.push_back(std::isnan(each.start) ? 0.05 : each.start);
  }
  return values;
}

std::vector<float> Gradients(int64_t n, int64_t step) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(std::sin(0.7 * i + step));
  }
  return values;
}

// All bytes of the rows, by sign.
std::map<int64_t, std::string> Rows(const Table& table) {
  const ExportedRows rows = Export(table, 0, -1, FieldNames(table));
  std::map<int64_t, std::string> by_sign;
  for (size_t i = 0; i < rows.signs.size(); ++i) {
    std::string& row = by_sign[rows.signs[i]];
    for (const std::vector<uint8_t>& field : rows.fields) {
      const size_t bytes = field.size() / rows.signs.size();
      row.append(reinterpret_cast<const char*>(field.data()) + i * bytes,
                 bytes);
    }
  }
  return by_sign;
}

void PushSteps(Table* table, const std::string& rule, int64_t steps,
               const ParallelFor& parallel_for) {
  const std::vector<double> h = Hyperparameters(rule);
  const std::vector<int64_t> signs = Range(-300, 1700);
  for (int64_t step = 1; step <= steps; ++step) {
    const std::vector<float> gradients =
        Gradients(signs.size() * table->config().dim, step);
    int64_t updated;
    ASSERT_TRUE(
        IsOk(table->Push(signs.data(), gradients.data(), signs.size(), h.data(),
                         h.size(), step, parallel_for, &updated)));
  }
}

TEST(TableNarrowTest, RowsTakeTheBytesOfTheirFields) {
  const auto row_bytes = [](const std::string& rule, const Dtypes& dtypes) {
    return MakeTable(NarrowConfig(rule, 16, dtypes))->Stats().row_bytes;
  };
  EXPECT_EQ(row_bytes("adagrad", {kFloat32, kFloat32}), 136);
  EXPECT_EQ(row_bytes("adagrad", {kFloat16, kFloat32}), 104);
  EXPECT_EQ(row_bytes("adagrad", {kBfloat16, kFloat32}), 104);
  EXPECT_EQ(row_bytes("adagrad", {kFloat16, kBfloat16}), 72);
  EXPECT_EQ(row_bytes("row_wise_adagrad", {kFloat32, kFloat32}), 80);
  EXPECT_EQ(row_bytes("row_wise_adagrad", {kFloat16, kFloat32}), 48);
}

TEST(TableNarrowTest, UnknownSignsReadTheRowThatTheyWillGet) {
  const InitializerConfig initializers[] = {
      {InitializerKind::kUniform, -1, 1},
      {InitializerKind::kNormal, 0.1f, 0.3f},
      {InitializerKind::kTruncatedNormal, 0, 2},
      {InitializerKind::kConstant, 0.3f, 0},
      {InitializerKind::kZeros, 0, 0}};
  const std::vector<int64_t> signs = Range(-50, 250);
  for (const Dtypes& dtypes : kDtypes) {
    for (int64_t dim : {1, 5, 16, 700}) {
      for (const InitializerConfig& initializer : initializers) {
        TableConfig config = NarrowConfig("adagrad", dim, dtypes);
        config.initializer = initializer;
        const auto table = MakeTable(config);
        const std::vector<float> unknown = Pull(table.get(), signs, false);
        EXPECT_EQ(Pull(table.get(), signs, true), unknown);
        EXPECT_EQ(Pull(table.get(), signs, false), unknown);
        config.dtype = kFloat32;
        const std::vector<float> exact =
            Pull(MakeTable(config).get(), signs, false);
        double sum = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
          // Rounded to one of the two neighbours.
          const double error = unknown[i] - exact[i];
          ASSERT_LT(std::fabs(error), std::fabs(exact[i]) / 128 + 1e-7);
          sum += error;
        }
        EXPECT_LT(std::fabs(sum / exact.size()),
                  5.0 / 128 / std::sqrt(exact.size()));
      }
    }
  }
}

// So rows that start alike are not rounded alike.
TEST(TableNarrowTest, InitialWeightsAreRoundedAsAtStepZero) {
  constexpr int64_t kDim = 700;
  const std::vector<int64_t> signs = {-3, 5, 1000};
  for (FieldType dtype : {kFloat16, kBfloat16}) {
    TableConfig config = NarrowConfig("sgd", kDim, {dtype, kFloat32});
    config.initializer = {InitializerKind::kConstant, 0.3f, 0};
    const std::vector<float> found = Pull(MakeTable(config).get(), signs, true);
    const uint64_t key =
        RoundingKey(RoundingStream(config.seed, config.name), 0);
    const std::vector<float> exact(kDim, 0.3f);
    std::vector<float> expected;
    for (int64_t sign : signs) {
      std::vector<uint16_t> stored(kDim);
      std::vector<float> weights(kDim);
      NarrowTo(dtype, exact.data(), kDim, RowRoundingKey(key, sign),
               PositionMultipliers(0, kDim).data(), stored.data());
      WidenTo(dtype, stored.data(), kDim, weights.data());
      expected.insert(expected.end(), weights.begin(), weights.end());
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(TableNarrowTest, AllOfASlotStartsWithTheNearestValue) {
  const auto table =
      MakeTable(NarrowConfig("adagrad", 5, {kFloat32, kBfloat16}));
  Pull(table.get(), {1, 2}, true);
  const ExportedRows rows = Export(*table, 0, -1, {"accumulator"});
  std::vector<uint16_t> found(10);
  ASSERT_EQ(rows.fields[0].size(), found.size() * sizeof(found[0]));
  std::memcpy(found.data(), rows.fields[0].data(), rows.fields[0].size());
  EXPECT_EQ(found, std::vector<uint16_t>(10, 0x3dcd));  // of 0.1
}

TEST(TableNarrowTest, SameBitsForThreadsBatchesAndInstructionSets) {
  for (const char* rule : {"adagrad", "adam", "row_wise_adagrad"}) {
    for (const Dtypes& dtypes : kDtypes) {
      TableConfig config = NarrowConfig(rule, 10, dtypes);
      config.statistics = 2;
      config.last_seen = LastSeen::kStep;
      const auto table = MakeTable(config);
      PushSteps(table.get(), rule, 3, SerialFor);
      const auto expected = Rows(*table);
      EXPECT_EQ(expected.size(), 2000u);
      for (SimdLevel level : SimdLevels()) {
        ScopedSimdLevel scoped(level);
        const auto other = MakeTable(config);
        PushSteps(other.get(), rule, 3, Threads(4));
        EXPECT_TRUE(Rows(*other) == expected) << SimdLevelName(level);
        EXPECT_EQ(Pull(other.get(), Range(-300, 1700), false),
                  Pull(table.get(), Range(-300, 1700), false));
      }
      config.seed = 18;
      config.initializer = {InitializerKind::kZeros, 0, 0};
      const auto seeded = MakeTable(config);
      config.seed = 19;
      const auto reseeded = MakeTable(config);
      PushSteps(seeded.get(), rule, 1, SerialFor);
      PushSteps(reseeded.get(), rule, 1, SerialFor);
      EXPECT_FALSE(Rows(*seeded) == Rows(*reseeded));
    }
  }
}

// Beside narrow fields, which leave them unaligned.
TEST(TableNarrowTest, StatisticsAndTimesAreThoseOfWideRows) {
  for (int64_t dim : {1, 3}) {
    TableConfig config =
        NarrowConfig("row_wise_adagrad", dim, {kFloat16, kBfloat16});
    config.statistics = 2;
    config.last_seen = LastSeen::kStep;
    const auto table = MakeTable(config);
    PushSteps(table.get(), "row_wise_adagrad", 4, SerialFor);
    const ExportedRows rows =
        Export(*table, 0, -1, {"show", "click", "last_seen"});
    ASSERT_EQ(rows.signs.size(), 2000u);
    for (size_t i = 0; i < rows.signs.size(); ++i) {
      EXPECT_EQ(FloatsOf(rows, 0, i), std::vector<float>{4});
      EXPECT_EQ(FloatsOf(rows, 1, i), std::vector<float>{0});
      int32_t seen;
      std::memcpy(&seen, rows.fields[2].data() + i * sizeof(seen),
                  sizeof(seen));
      EXPECT_EQ(seen, 4);
    }
  }
}

TEST(TableNarrowTest, StatsCountValuesAboveTheLargest) {
  const auto table = MakeTable(NarrowConfig("sgd", 4, {kFloat16, kFloat32}));
  EXPECT_EQ(table->Stats().saturated, 0);
  Push(table.get(), {1, 2}, {1e6, 0, 0, 0, 0, -1e5, 7e4, 0.5});
  EXPECT_EQ(table->Stats().saturated, 3);
  EXPECT_EQ(Pull(table.get(), {1}, false)[0], -65504);
  Push(table.get(), {1}, {-1, 0, 0, 0});
  EXPECT_EQ(table->Stats().saturated, 3);
}

TEST(TableNarrowTest, ConfigsAreReadAndWritten) {
  for (const Dtypes& dtypes : kDtypes) {
    const TableConfig config = NarrowConfig("adagrad", 4, dtypes);
    const std::string text = TableConfigToText(config);
    EXPECT_PRED2(Says, text,
                 std::string("dtype=") + FieldTypeName(dtypes.weights) + "\n");
    EXPECT_EQ(Says(text, "slot_dtype=bfloat16\n"), dtypes.slots == kBfloat16);
    TableConfig parsed;
    ASSERT_TRUE(ParseTableConfig(text, &parsed).ok());
    EXPECT_EQ(TableConfigToText(parsed), text);
  }
}

TEST(TableNarrowTest, RefusesOtherTypes) {
  const auto error = [](const TableConfig& config) {
    std::unique_ptr<Table> table;
    return Table::Create(config, &table).message();
  };
  TableConfig config = NarrowConfig("adagrad", 4, {kFloat32, kFloat16});
  EXPECT_PRED2(Says, error(config),
               "slot_dtype=float16 is not allowed; it must be one of float32, "
               "bfloat16");
  config.slot_dtype = kFloat32;
  config.dtype = FieldType::kInt32;
  EXPECT_PRED2(Says, error(config), "dtype=int32 is not allowed");
  config.dtype = kFloat16;
  config.initializer = {InitializerKind::kConstant, 65505, 0};
  EXPECT_PRED2(Says, error(config),
               "initializer.value=65505 is not allowed; it must be from -65504 "
               "to 65504, as dtype is float16");
  config.dtype = kBfloat16;
  EXPECT_EQ(error(config), "");
}

TEST(TableNarrowTest, RowsOfOtherTypesDiffer) {
  const TableConfig config = NarrowConfig("adagrad", 4, {kFloat16, kFloat32});
  TableConfig other = config;
  EXPECT_TRUE(CheckSameIdentity(config, other).ok());
  other.dtype = kFloat32;
  EXPECT_PRED2(Says, CheckSameIdentity(config, other).message(),
               "has dtype float16, but the rows were written by table \"test\" "
               "with dtype float32");
  other = config;
  other.slot_dtype = kBfloat16;
  EXPECT_PRED2(Says, CheckSameIdentity(config, other).message(),
               "accumulator[4] bfloat16");
}

}  // namespace
}  // namespace tf_ext
