// SPDX-License-Identifier: Apache-2.0
// Stored rows that are converted to the types of a table.

#include "cc/core/table/row_conversion.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "cc/core/rules/narrow.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

std::unique_ptr<Table> MakeNarrow(FieldType dtype, FieldType slot_dtype) {
  TableConfig config = MakeConfig("adagrad", 3);
  config.dtype = dtype;
  config.slot_dtype = slot_dtype;
  return MakeTable(config);
}

// Sets the weights of rows of float32.
void SetWeights(Table* table, const std::vector<int64_t>& signs,
                const std::vector<float>& weights) {
  ASSERT_TRUE(IsOk(table->Import(signs.data(), signs.size(),
                                 {{"weights", weights.data()}}, SerialFor)));
}

StoredRows ConvertedFrom(const Table& table, ConvertedValues* converted) {
  StoredRows stored = StoredAs(table);
  stored.converted = converted;
  return stored;
}

TEST(RowConversionTest, RoundsToNearestAndCounts) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto table = MakeNarrow(FieldType::kFloat32, FieldType::kFloat32);
  SetWeights(table.get(), {1, 2}, {1, 0.1f, 2049, -1e6f, inf, nan});
  const auto small = MakeNarrow(FieldType::kFloat16, FieldType::kBfloat16);
  ConvertedValues converted;
  Load(Write(*table, false), ConvertedFrom(*table, &converted), small.get());
  const std::vector<float> weights = Pull(small.get(), {1, 2}, false);
  const std::vector<float> expected = {1, 0x1.998p-4f, 2048, -65504, 65504};
  EXPECT_EQ(std::vector<float>(weights.begin(), weights.end() - 1), expected);
  EXPECT_TRUE(std::isnan(weights.back()));
  // Six weights, and six accumulators of 0.1f.
  EXPECT_EQ(converted.values, 12);
  EXPECT_EQ(converted.rounded, 4 + 6);
  EXPECT_EQ(converted.saturated, 2);
  EXPECT_EQ(small->Stats().saturated, 2);
}

TEST(RowConversionTest, EveryTypeBecomesEveryOther) {
  const FieldType types[] = {FieldType::kFloat32, FieldType::kFloat16,
                             FieldType::kBfloat16};
  const std::vector<int64_t> signs = Range(0, 300);
  // Values that all types have.
  std::vector<float> weights(3 * signs.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(i % 97) / 64 - 0.5f;
  }
  for (const FieldType from : types) {
    const auto table = MakeNarrow(from, FieldType::kFloat32);
    std::vector<uint8_t> stored(weights.size() * FieldTypeBytes(from));
    NarrowToNearest(from, weights.data(), weights.size(), stored.data());
    ASSERT_TRUE(table
                    ->Import(signs.data(), signs.size(),
                             {{"weights", stored.data()}}, SerialFor)
                    .ok());
    const Files files = Write(*table, false);
    for (const FieldType to : types) {
      const auto loaded = MakeNarrow(to, FieldType::kFloat32);
      ConvertedValues converted;
      Load(files, ConvertedFrom(*table, &converted), loaded.get());
      EXPECT_EQ(Pull(loaded.get(), signs, false), weights);
      EXPECT_EQ(converted.values, from == to ? 0 : 900);
      EXPECT_EQ(converted.rounded, 0);
      EXPECT_EQ(converted.saturated, 0);
    }
  }
}

TEST(RowConversionTest, OnlyRowsOfTheShardAreConvertedAndCounted) {
  const auto table = MakeNarrow(FieldType::kFloat32, FieldType::kFloat32);
  const std::vector<int64_t> signs = Range(0, 500);
  SetWeights(table.get(), signs, std::vector<float>(1500, 0.1f));
  const Files files = Write(*table, false);
  int64_t values = 0;
  for (int64_t shard = 0; shard < 3; ++shard) {
    const auto part = MakeNarrow(FieldType::kBfloat16, FieldType::kFloat32);
    ConvertedValues converted;
    StoredRows stored = ConvertedFrom(*table, &converted);
    stored.shard = shard;
    stored.shards = 3;
    Load(files, stored, part.get());
    EXPECT_EQ(converted.values, 3 * part->Size());
    EXPECT_EQ(converted.rounded, 3 * part->Size());
    values += converted.values;
  }
  EXPECT_EQ(values, 1500);
}

TEST(RowConversionTest, OtherTypesAreRefusedWithoutIt) {
  const auto table = MakeNarrow(FieldType::kFloat16, FieldType::kBfloat16);
  StoredRows stored = StoredAs(*table);
  stored.fields[0].type = FieldType::kFloat32;
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "field \"weights\" of table \"test\" is float16[3], that of the "
            "snapshot is float32[3].");
  ConvertedValues converted;
  stored.converted = &converted;
  stored.row_bytes = 19;
  // As far as the bytes of a row allow.
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "field \"weights\" should be at byte 8 of the snapshot's rows, "
            "which have 19 bytes.");
  stored.row_bytes = 26;
  stored.fields[1].offset = 20;
  EXPECT_TRUE(table->CheckStoredRows(stored).ok());
  stored.fields[1].type = FieldType::kInt32;
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "field \"accumulator\" of table \"test\" is bfloat16[3], that of "
            "the snapshot is int32[3].");
  stored.fields[1] = {"accumulator", FieldType::kFloat32, 1, 20};
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "field \"accumulator\" of table \"test\" is bfloat16[3], that of "
            "the snapshot is float32[1].");
}

}  // namespace
}  // namespace tf_ext
