// SPDX-License-Identifier: Apache-2.0
// Rows that are exported from a table and imported into another.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// The bytes of each row.
std::map<int64_t, std::vector<uint8_t>> RowsBySign(const ExportedRows& rows) {
  std::map<int64_t, std::vector<uint8_t>> found;
  for (size_t i = 0; i < rows.signs.size(); ++i) {
    std::vector<uint8_t>& row = found[rows.signs[i]];
    for (const std::vector<uint8_t>& field : rows.fields) {
      const size_t bytes = field.size() / rows.signs.size();
      const auto at = field.begin() + i * bytes;
      row.insert(row.end(), at, at + bytes);
    }
  }
  return found;
}

TEST(TableExportTest, ExportWalksInBatchesOfAnyLimit) {
  const auto table = MakeTable("adagrad", 4);
  Pull(table.get(), Range(0, 5000), true);
  Erase(table.get(), Range(0, 5000, 3));
  const std::vector<std::string> fields = {"accumulator", "weights"};
  const ExportedRows all = Export(*table, 0, -1, fields);
  EXPECT_EQ(all.next_cursor, -1);
  EXPECT_EQ(std::set<int64_t>(all.signs.begin(), all.signs.end()).size(),
            static_cast<size_t>(table->Size()));
  for (const int64_t limit : {1, 7, 64, 1000, 4999, 10000}) {
    ExportedRows walked;
    walked.fields.resize(2);
    int64_t cursor = 0;
    while (cursor != -1) {
      const ExportedRows rows = Export(*table, cursor, limit, fields);
      ASSERT_LE(static_cast<int64_t>(rows.signs.size()), limit);
      walked.signs.insert(walked.signs.end(), rows.signs.begin(),
                          rows.signs.end());
      for (int f = 0; f < 2; ++f) {
        walked.fields[f].insert(walked.fields[f].end(), rows.fields[f].begin(),
                                rows.fields[f].end());
      }
      cursor = rows.next_cursor;
    }
    EXPECT_EQ(RowsBySign(walked), RowsBySign(all)) << limit;
    EXPECT_EQ(walked.signs.size(), all.signs.size()) << limit;
  }
}

TEST(TableExportTest, WholeStripesAreInTheOrderOfTheirRows) {
  const auto table = MakeTable();
  std::vector<int64_t> signs = SignsInStripe(0, 10000);
  const std::vector<int64_t> others = SignsInStripe(63, 9000);
  const int64_t size = signs.size();
  Pull(table.get(), signs, true);
  Pull(table.get(), others, true);
  // Just enough for the first stripe, and not quite enough for both.
  for (const int64_t limit : {size, size + 8999}) {
    const ExportedRows first = Export(*table, 0, limit);
    EXPECT_EQ(first.signs, signs);
    const ExportedRows second = Export(*table, first.next_cursor, limit);
    EXPECT_EQ(second.signs, others);
    EXPECT_EQ(second.next_cursor, -1);
  }
  // In parts, the first of them in the order of hashes.
  const ExportedRows part = Export(*table, 0, size - 1);
  EXPECT_EQ(part.signs.size(), signs.size() - 1);
  EXPECT_NE(part.signs[0], signs[0]);
  // The last row of the first stripe, and no part of the next one.
  const ExportedRows rest = Export(*table, part.next_cursor, 9000);
  EXPECT_EQ(rest.signs.size(), 1u);
  EXPECT_EQ(Export(*table, rest.next_cursor, 9000).signs, others);

  signs.insert(signs.end(), others.begin(), others.end());
  EXPECT_EQ(Export(*table, 0, size + 9000).signs, signs);
  EXPECT_EQ(Export(*table).signs, signs);
}

TEST(TableExportTest, ExportOfLimitZeroStaysWhereItIs) {
  const auto table = MakeTable();
  EXPECT_EQ(Export(*table, 0, 0).next_cursor, -1);
  Pull(table.get(), {1, 2, 3}, true);
  const ExportedRows rows = Export(*table, 0, 0);
  EXPECT_TRUE(rows.signs.empty());
  EXPECT_EQ(Export(*table, rows.next_cursor).signs.size(), 3u);
}

TEST(TableExportTest, ExportRefusesWhatIsNotThere) {
  const auto table = MakeTable("adagrad");
  ExportedRows rows;
  EXPECT_PRED2(Says, table->Export(0, -1, {"momentum"}, &rows).message(),
               "no field \"momentum\"; its fields are weights, "
               "accumulator");
  EXPECT_PRED2(Says, table->Export(-7, -1, {}, &rows).message(),
               "cursor is -7");
  EXPECT_PRED2(Says, table->Export(0, -2, {}, &rows).message(), "limit is -2");
  // A place beyond the rows of a stripe: on with the next stripe.
  Pull(table.get(), Range(0, 1000), true);
  const int64_t beyond = (int64_t{1} << 57) - 1;
  EXPECT_EQ(static_cast<int64_t>(Export(*table, beyond).signs.size()),
            table->Size() - table->StripeSizes()[0]);
  EXPECT_TRUE(Export(*table, INT64_MAX).signs.empty());
}

TEST(TableExportTest, ImportRestoresAnExportWithRowsAndSlots) {
  const auto source = MakeTable("adam", 8);
  const std::vector<double> hyperparameters = {0.01, 0, 0.9, 0.999, 1e-7};
  const std::vector<int64_t> signs = Range(-5000, 5000);
  Push(source.get(), signs, std::vector<float>(80000, 0.5f), hyperparameters);
  const std::vector<std::string> names = FieldNames(*source);
  const ExportedRows rows = Export(*source, 0, -1, names);
  const auto target = MakeTable("adam", 8);
  Pull(target.get(), Range(0, 100), true);
  std::vector<ConstFieldData> fields;
  for (size_t f = 0; f < names.size(); ++f) {
    fields.push_back({names[f], rows.fields[f].data()});
  }
  ASSERT_TRUE(
      target->Import(rows.signs.data(), rows.signs.size(), fields, Threads(3))
          .ok());
  EXPECT_EQ(target->Size(), source->Size());
  // Training goes on as if it had never stopped.
  for (Table* table : {source.get(), target.get()}) {
    Push(table, signs, std::vector<float>(80000, 0.25f), hyperparameters);
  }
  EXPECT_EQ(Pull(target.get(), signs, false), Pull(source.get(), signs, false));
}

TEST(TableExportTest, ImportOfSomeFieldsStartsTheOthers) {
  const auto table = MakeTable("adagrad", 2);
  const std::vector<float> start = Pull(table.get(), {5, 6}, false);
  const std::vector<int64_t> signs = {5, 6, 5};
  const std::vector<float> accumulator = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(table
                  ->Import(signs.data(), 3,
                           {{"accumulator", accumulator.data()}}, SerialFor)
                  .ok());
  EXPECT_EQ(table->Size(), 2);
  EXPECT_EQ(Pull(table.get(), {5, 6}, false), start);
  std::map<int64_t, std::pair<float, float>> found;
  const ExportedRows rows = Export(*table, 0, -1, {"accumulator"});
  for (size_t i = 0; i < 2; ++i) {
    float pair[2];
    std::memcpy(pair, &rows.fields[0][8 * i], 8);
    found[rows.signs[i]] = {pair[0], pair[1]};
  }
  EXPECT_EQ(found[5], std::make_pair(5.0f, 6.0f));  // the last one wins
  EXPECT_EQ(found[6], std::make_pair(3.0f, 4.0f));
}

TEST(TableExportTest, ImportRefusesUnknownAndRepeatedFields) {
  const auto table = MakeTable();
  const int64_t sign = 1;
  const float weights[4] = {}, others[4] = {};
  EXPECT_PRED2(Says,
               table->Import(&sign, 1, {{"m", weights}}, SerialFor).message(),
               "no field \"m\"; its fields are weights");
  EXPECT_PRED2(
      Says,
      table
          ->Import(&sign, 1, {{"weights", weights}, {"weights", others}},
                   SerialFor)
          .message(),
      "\"weights\" appears twice");
  EXPECT_EQ(table->Size(), 0);
}

}  // namespace
}  // namespace tf_ext
