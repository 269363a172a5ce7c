// SPDX-License-Identifier: Apache-2.0
// Snapshots of a table: rows to chunks and back, deltas, saves while others
// push.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

void PushSome(Table* table, const std::vector<int64_t>& signs) {
  Push(table, signs, std::vector<float>(3 * signs.size(), 1), kAdagrad);
}

TEST(TableSnapshotTest, ReadsBackWhatWasWritten) {
  for (const int64_t rows : {0, 1, 5, 5000}) {
    const auto table = MakeTrained(rows);
    const Files files = Write(*table, false);
    const auto loaded = MakeTable("adagrad", 3);
    Load(files, StoredAs(*table), loaded.get());
    EXPECT_EQ(RowsOf(*loaded), RowsOf(*table));
    int64_t written = 0;
    for (const File& file : files) {
      written += file.written.rows;
      EXPECT_EQ(file.written.erased, 0);
      EXPECT_GT(file.bytes.size(), 0u);
    }
    EXPECT_EQ(written, rows);
  }
}

TEST(TableSnapshotTest, CompactionFreesTheMarksOfChanges) {
  constexpr int64_t kRows = 60000;
  int64_t given_back[2];
  for (const bool tracked : {false, true}) {
    const auto table = MakeTrained(kRows);
    if (tracked) {
      ASSERT_TRUE(table->BeginChainSave("one", "").ok());
      ASSERT_TRUE(table->EndChainSave("one", true).ok());
    }
    // Too few to be compacted by themselves.
    Erase(table.get(), Range(kRows / 6, kRows));
    ASSERT_TRUE(table->Compact(SerialFor, &given_back[tracked]).ok());
  }
  // Two bits for each row.
  constexpr int64_t kMarks = kRows * 2 / 8;
  EXPECT_GT(given_back[true], given_back[false] + kMarks / 2);
}

TEST(TableSnapshotTest, RowsGoToTheShardThatOwnsThem) {
  const auto table = MakeTrained(1000);
  const Files files = Write(*table, false);
  Rows together;
  for (int64_t shard = 0; shard < 3; ++shard) {
    const auto part = MakeTable("adagrad", 3);
    StoredRows stored = StoredAs(*table);
    stored.shard = shard;
    stored.shards = 3;
    Load(files, stored, part.get());
    const Rows rows = RowsOf(*part);
    for (const auto& row : rows) EXPECT_EQ(ShardOf(row.first, 3), shard);
    together.insert(rows.begin(), rows.end());
  }
  EXPECT_EQ(together, RowsOf(*table));
}

TEST(TableSnapshotTest, FieldsAreFoundByName) {
  const auto table = MakeTrained(10);
  StoredRows stored = StoredAs(*table);
  stored.fields.pop_back();
  const auto loaded = MakeTable("adagrad", 3);
  Load(Write(*table, false), stored, loaded.get());
  const ExportedRows before = Export(*table, 0, -1, FieldNames(*table));
  const ExportedRows after = Export(*loaded, 0, -1, FieldNames(*loaded));
  EXPECT_EQ(after.fields[0], before.fields[0]);
  EXPECT_EQ(FloatsOf(after, 1, 0), std::vector<float>(3, 0.1f));

  stored = StoredAs(*table);
  stored.fields[1].name = "momentum";
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "table \"test\" has no field \"momentum\"; its fields are "
            "weights, accumulator.");
  stored.fields[1].name = "accumulator";
  stored.fields[1].count = 1;
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "field \"accumulator\" of table \"test\" is float32[3], that of "
            "the snapshot is float32[1].");
  stored.fields[1] = {"accumulator", FieldType::kFloat32, 3, 24};
  EXPECT_FALSE(table->CheckStoredRows(stored).ok());
  stored.fields = {{"accumulator", FieldType::kFloat32, 3, 20}};
  EXPECT_EQ(table->CheckStoredRows(stored).message(),
            "the snapshot's rows have no field \"weights\".");
}

// A file of one chunk, of rows of a sign and `floats` of the sign's value.
File MakeFile(const std::vector<int64_t>& erased_before,
              const std::vector<int64_t>& signs, int floats,
              const std::vector<int64_t>& erased_after) {
  File file;
  const int64_t row_bytes = sizeof(int64_t) + floats * sizeof(float);
  file.format = {4096, row_bytes, 100};
  ChunkEncoder encoder(file.format);
  encoder.AddErased(erased_before.data(), erased_before.size(), false);
  for (const int64_t sign : signs) {
    uint8_t* const row = encoder.rows_end();
    RowSlabs::StoreSign(row, sign);
    for (int i = 0; i < floats; ++i) {
      const float value = 10 * sign + i;
      std::memcpy(row + sizeof(sign) + i * sizeof(value), &value,
                  sizeof(value));
    }
    encoder.AddRows(1);
  }
  encoder.AddErased(erased_after.data(), erased_after.size(), true);
  const ChunkEncoder::Chunk chunk = encoder.Finish(true);
  file.bytes.assign(reinterpret_cast<const char*>(chunk.data), chunk.bytes);
  return file;
}

TEST(TableSnapshotTest, AChunkIsAppliedInItsOrder) {
  const auto table = MakeTable("sgd", 1);
  Pull(table.get(), {1, 2, 3}, true);
  Load({MakeFile({1, 2}, {2, 4, 5}, 1, {3, 4})}, StoredAs(*table), table.get());
  EXPECT_EQ(RowsOf(*table), (Rows{{2, {20}}, {5, {50}}}));
}

TEST(TableSnapshotTest, FieldsAreWhereTheSnapshotHasThem) {
  const auto table = MakeTable("adagrad", 3);
  const StoredField weights = {"weights", FieldType::kFloat32, 3, 8};
  StoredField accumulator = {"accumulator", FieldType::kFloat32, 3, 20};
  StoredRows stored;
  stored.row_bytes = 8 + 8 * sizeof(float);
  const Files files = {MakeFile({}, {1}, 8, {})};
  const std::map<int64_t, std::vector<float>> by_offset = {
      {20, {13, 14, 15}},  // a neighbour of the weights
      {24, {14, 15, 16}},  // after a field that the table does not have
      {28, {15, 16, 17}}};
  for (const auto& [offset, values] : by_offset) {
    accumulator.offset = offset;
    stored.fields = {weights, accumulator};
    Load(files, stored, table.get());
    std::vector<float> row = {10, 11, 12};
    row.insert(row.end(), values.begin(), values.end());
    EXPECT_EQ(RowsOf(*table), (Rows{{1, row}})) << offset;
  }
}

// A chain of a table and what its snapshots load as.
class ChainTest : public testing::Test {
 protected:
  void Save(const std::string& id, bool commit = true) {
    const std::string base = table_->Chain();
    ASSERT_TRUE(IsOk(table_->BeginChainSave(id, base)));
    if (while_saving_) while_saving_();
    const Files files = Write(*table_, !base.empty());
    ASSERT_TRUE(IsOk(table_->EndChainSave(id, commit)));
    if (commit) chain_.push_back(files);
  }
  Rows Loaded() {
    const auto loaded = MakeTable("adagrad", 3);
    for (const Files& files : chain_) {
      Load(files, StoredAs(*table_), loaded.get());
    }
    return RowsOf(*loaded);
  }
  int64_t LastRows() const {
    int64_t rows = 0;
    for (const File& file : chain_.back()) rows += file.written.rows;
    return rows;
  }

  std::unique_ptr<Table> table_ = MakeTrained(1000);
  std::function<void()> while_saving_;
  std::vector<Files> chain_;
};

TEST_F(ChainTest, ADeltaHoldsWhatHasChanged) {
  Save("a");
  EXPECT_EQ(LastRows(), 1000);
  PushSome(table_.get(), {5, 7});
  Pull(table_.get(), {2000, 2001}, true);
  Pull(table_.get(), {1, 2, 3}, true);  // only read
  Erase(table_.get(), {10, 11, 7});
  Save("b");
  EXPECT_EQ(LastRows(), 3);
  EXPECT_EQ(Loaded(), RowsOf(*table_));
  Save("c");
  EXPECT_EQ(LastRows(), 0);
  EXPECT_EQ(table_->Chain(), "c");
}

TEST_F(ChainTest, WhatIsImportedIsInTheDelta) {
  Save("a");
  const std::vector<int64_t> signs = {5, 2000};  // one that is there already
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(
      table_->Import(signs.data(), 2, {{"weights", weights.data()}}, SerialFor)
          .ok());
  Save("b");
  EXPECT_EQ(LastRows(), 2);
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, ASignThatComesBackIsThere) {
  Save("a");
  Erase(table_.get(), {10});
  Pull(table_.get(), {10}, true);
  Save("b");
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, ClearIsInTheDelta) {
  Save("a");
  ClearRows(table_);
  Pull(table_.get(), {3, 4000}, true);
  Save("b");
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, AFailedSaveLosesNoChange) {
  Save("a");
  PushSome(table_.get(), {5});
  Erase(table_.get(), {6});
  while_saving_ = [this] {
    PushSome(table_.get(), {8});
    Erase(table_.get(), {5, 9});
    Pull(table_.get(), {9}, true);
  };
  Save("b", false);
  EXPECT_EQ(table_->Chain(), "a");
  while_saving_ = nullptr;
  PushSome(table_.get(), {12});
  Save("c");
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, WhatChangesDuringASaveIsInTheNext) {
  Save("a");
  PushSome(table_.get(), {5, 6});
  while_saving_ = [this] {
    PushSome(table_.get(), {6, 8});
    Erase(table_.get(), {5});
    Pull(table_.get(), {3000}, true);
  };
  Save("b");
  EXPECT_EQ(Loaded().count(5), 0u);
  while_saving_ = nullptr;
  Save("c");
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, AFailedFirstSaveLeavesNoChain) {
  Save("a", false);
  EXPECT_EQ(table_->Chain(), "");
  EXPECT_EQ(table_->BeginChainSave("c", "b").message(),
            "table \"test\" has no chain of incremental snapshots, so c cannot "
            "continue b.");
}

TEST_F(ChainTest, ThereIsOneChainATable) {
  Save("a");
  EXPECT_EQ(table_->BeginChainSave("x", "").message(),
            "table \"test\" has a chain whose last snapshot is a, so x cannot "
            "begin another.");
  EXPECT_EQ(table_->BeginChainSave("x", "y").message(),
            "table \"test\" has a chain whose last snapshot is a, so x cannot "
            "continue y.");
  ASSERT_TRUE(table_->BeginChainSave("b", "a").ok());
  EXPECT_FALSE(table_->BeginChainSave("c", "a").ok());
  EXPECT_FALSE(table_->SetChain("").ok());
  EXPECT_FALSE(table_->EndChainSave("c", true).ok());
  // What never began, or has ended, ends at any time.
  ASSERT_TRUE(table_->EndChainSave("c", false).ok());
  EXPECT_FALSE(table_->BeginChainSave("c", "a").ok());
  ASSERT_TRUE(table_->EndChainSave("b", true).ok());
  EXPECT_EQ(table_->BeginChainSave("c", "b").message(),
            "the save of c of table \"test\" was ended before it began.");
  ASSERT_TRUE(table_->BeginChainSave("d", "b").ok());
  ASSERT_TRUE(table_->EndChainSave("d", false).ok());
  ASSERT_TRUE(table_->EndChainSave("b", true).ok());
  ASSERT_TRUE(table_->EndChainSave("b", false).ok());
  EXPECT_EQ(table_->Chain(), "b");
  ASSERT_TRUE(table_->SetChain("").ok());
  EXPECT_EQ(table_->Chain(), "");
}

TEST_F(ChainTest, ALoadedTableContinuesTheChain) {
  Save("a");
  ClearRows(table_);
  Load(chain_[0], StoredAs(*table_), table_.get());
  ASSERT_TRUE(table_->SetChain("a").ok());
  PushSome(table_.get(), {5});
  Save("b");
  EXPECT_EQ(LastRows(), 1);
  EXPECT_EQ(Loaded(), RowsOf(*table_));
}

TEST_F(ChainTest, MarksAreSmall) {
  table_ = MakeTrained(200000);
  const int64_t before = table_->Stats().slab_bytes;
  Save("a");
  const int64_t bytes = table_->Stats().slab_bytes - before;
  EXPECT_GT(bytes, 0);
  // Two bits a row; each of 64 stripes has a word of each kind to round up.
  EXPECT_LE(bytes, 2 * 200000 / 8 + kStripes * 16);
}

TEST_F(ChainTest, SignsThatComeAndGoTakeBoundedMemory) {
  Save("a");
  const int64_t before = table_->Stats().slab_bytes;
  for (int i = 0; i < 2000; ++i) {
    Pull(table_.get(), {1, 2, 3, 5000}, true);
    Erase(table_.get(), {1, 2, 3, 5000});
  }
  EXPECT_LT(table_->Stats().slab_bytes - before, 2000);
}

// Rows are constant-valued, and so is each update: a torn row shows.
TEST(TableSnapshotTest, SavesWhileOthersPush) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  TableConfig config = MakeConfig("momentum", 16);
  config.initializer = {InitializerKind::kConstant, 1, 0};
  const auto table = MakeTable(config);
  constexpr int64_t kStay = 20000;
  Pull(table.get(), Range(0, kStay), true);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      while (!stop) {
        std::vector<int64_t> signs(500);
        for (int64_t& sign : signs) sign = random() % (kStay + 5000);
        Push(table.get(), signs, std::vector<float>(signs.size() * 16, 0.5f),
             {0.1, 0, 0.9, 0});
        // Others come and go.
        for (int64_t& sign : signs) sign = kStay + random() % 5000;
        Erase(table.get(), signs);
      }
    });
  }
  std::vector<Files> chain;
  for (int save = 0; save < 6; ++save) {
    const std::string base = table->Chain();
    ASSERT_TRUE(table->BeginChainSave(std::to_string(save), base).ok());
    chain.push_back(Write(*table, !base.empty(), 2, 1 << 16));
    ASSERT_TRUE(table->EndChainSave(std::to_string(save), save != 3).ok());
    if (save == 3) chain.pop_back();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(table->BeginChainSave("last", table->Chain()).ok());
  chain.push_back(Write(*table, true));
  ASSERT_TRUE(table->EndChainSave("last", true).ok());

  const auto loaded = MakeTable(config);
  for (const Files& files : chain) {
    Load(files, StoredAs(*table), loaded.get());
    const Rows rows = RowsOf(*loaded);
    for (int64_t sign = 0; sign < kStay; ++sign) {
      ASSERT_EQ(rows.count(sign), 1u) << sign;
    }
    for (const auto& [sign, values] : rows) {
      for (int i = 1; i < 16; ++i) {
        ASSERT_EQ(values[i], values[0]) << "torn row of " << sign;
        ASSERT_EQ(values[16 + i], values[16]) << "torn slots of " << sign;
      }
    }
  }
  EXPECT_EQ(RowsOf(*loaded), RowsOf(*table));
}

}  // namespace
}  // namespace tf_ext
