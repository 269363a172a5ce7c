// SPDX-License-Identifier: Apache-2.0
// Compaction: rows do not change, walks stay correct, and memory is returned.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
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

int64_t Compact(Table* table, const ParallelFor& parallel = SerialFor) {
  int64_t bytes = -1;
  EXPECT_TRUE(IsOk(table->Compact(parallel, &bytes)));
  return bytes;
}

int64_t Bytes(const Table& table) {
  const TableStats stats = table.Stats();
  return stats.slab_bytes + stats.index_bytes;
}

// A table whose rows have been trained, so that no two have the same bytes.
std::unique_ptr<Table> MakeTrained(int64_t rows, int64_t dim) {
  auto table = MakeTable("adagrad", dim);
  const std::vector<int64_t> signs = Range(0, rows);
  std::vector<float> gradients(rows * dim);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = i % 1009;
  Push(table.get(), signs, gradients, {0.5, 0, 1e-7});
  return table;
}

TEST(TableCompactTest, RowsStayAndMemoryIsAFreshTables) {
  for (const ParallelFor& parallel : {ParallelFor(SerialFor), Threads(3)}) {
    const auto table = MakeTrained(60000, 3);
    std::vector<int64_t> gone = Range(0, 60000);
    std::mt19937_64 random(7);
    std::shuffle(gone.begin(), gone.end(), random);
    gone.resize(50000);
    EXPECT_EQ(Erase(table.get(), gone), 50000);
    const Rows expected = RowsOf(*table);
    const int64_t before = Bytes(*table);
    const int64_t given_back = Compact(table.get(), parallel);
    EXPECT_EQ(given_back, before - Bytes(*table));
    EXPECT_EQ(RowsOf(*table), expected);
    const TableStats stats = table->Stats();
    EXPECT_EQ(stats.rows, 10000);
    EXPECT_EQ(stats.free_rows, 0);
    const auto fresh = MakeTrained(10000, 3);
    // The numbers of rows of its stripes differ slightly.
    EXPECT_LE(stats.index_bytes, 1.05 * fresh->Stats().index_bytes);
    // A partly used page of 4 KiB in the last chunk of each stripe.
    EXPECT_LE(stats.slab_bytes, fresh->Stats().slab_bytes + kStripes * 4096);
    EXPECT_EQ(Compact(table.get()), 0);

    // The table remains usable.
    EXPECT_EQ(Erase(table.get(), gone), 0);
    Pull(table.get(), Range(0, 80000), true);
    EXPECT_EQ(table->Size(), 80000);
    EXPECT_EQ(Export(*table).signs.size(), 80000u);
    EXPECT_EQ(Erase(table.get(), Range(0, 80000)), 80000);
    Compact(table.get());
    EXPECT_EQ(Bytes(*table), 0);
    EXPECT_EQ(Pull(table.get(), gone, false),
              Pull(MakeTable("adagrad", 3).get(), gone, false));
    Pull(table.get(), Range(0, 1000), true);
    EXPECT_EQ(table->Size(), 1000);
  }
}

TEST(TableCompactTest, NothingIsMovedWhereNothingIsFree) {
  const auto table = MakeTrained(20000, 3);
  const ExportedRows before = Export(*table, 0, -1, FieldNames(*table));
  EXPECT_EQ(Compact(table.get()), 0);
  EXPECT_EQ(Export(*table, 0, -1, FieldNames(*table)).fields, before.fields);
  EXPECT_EQ(Compact(MakeTable().get()), 0);
}

TEST(TableCompactTest, RowsLongerThanAChunkMoveToo) {
  const int64_t kDim = 65536;  // 512 KiB per row
  const auto table = MakeTable("adagrad", kDim);
  for (int64_t sign = 0; sign < 150; ++sign) Pull(table.get(), {sign}, true);
  const std::vector<float> kept = Pull(table.get(), {147, 148, 149}, false);
  EXPECT_EQ(Erase(table.get(), Range(0, 147)), 147);
  Compact(table.get());
  EXPECT_EQ(Pull(table.get(), {147, 148, 149}, false), kept);
  EXPECT_EQ(table->Stats().free_rows, 0);
  EXPECT_LE(Bytes(*table), 3 * (table->layout().stride() + 4096));
}

TEST(TableCompactTest, ALargeErasureEndsWithIt) {
  // 2 KiB per row: 80 MiB.
  const auto table = MakeTable("sgd", 510);
  Pull(table.get(), Range(0, 40000), true);
  EXPECT_EQ(Erase(table.get(), Range(0, 16000)), 16000);
  EXPECT_EQ(table->Stats().free_rows, 16000);  // less than half
  const int64_t before = Bytes(*table);
  EXPECT_EQ(Erase(table.get(), Range(16000, 38000)), 22000);
  EXPECT_EQ(table->Stats().free_rows, 0);
  EXPECT_LE(Bytes(*table), before / 6);
  // A small table keeps its memory, however much of it is free.
  EXPECT_EQ(Erase(table.get(), Range(38000, 39900)), 1900);
  EXPECT_EQ(table->Stats().free_rows, 1900);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages, resident;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(TableCompactTest, ResidentMemoryFollowsTheRows) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory would be measured";
#endif
  const int64_t kDim = 16;
  const std::vector<int64_t> all = Range(0, 1000000);
  std::vector<int64_t> by_stripe = all;
  std::sort(by_stripe.begin(), by_stripe.end(), [](int64_t a, int64_t b) {
    return StripeOf(TableHash(a)) < StripeOf(TableHash(b));
  });
  const auto insert = [](Table* table, const std::vector<int64_t>& signs,
                         int64_t n) {
    for (auto at = signs.begin(); at < signs.begin() + n; at += 50000) {
      Pull(table, {at, at + 50000}, true);
    }
  };
  insert(MakeTable("adagrad", kDim).get(), all, 50000);  // for batch buffers
  int64_t before = ResidentBytes();
  auto fresh = MakeTable("adagrad", kDim);
  insert(fresh.get(), all, 100000);
  const int64_t fresh_bytes = ResidentBytes() - before;
  fresh = nullptr;
  EXPECT_LE(ResidentBytes() - before, fresh_bytes / 4);

  before = ResidentBytes();
  const auto table = MakeTable("adagrad", kDim);
  // In the last round, one stripe after the other, so that the remaining rows
  // are spread over all regions.
  for (int round = 0; round < 3; ++round) {
    if (round == 2) ClearRows(table);
    insert(table.get(), round == 2 ? by_stripe : all, 1000000);
    EXPECT_GT(ResidentBytes() - before, 130 << 20);
    const int64_t kept = 300000 * round;
    for (int64_t begin = 0; begin < 1000000; begin += 50000) {
      if (begin >= kept && begin < kept + 100000) continue;
      Erase(table.get(), Range(begin, begin + 50000));
    }
    Compact(table.get());
    EXPECT_EQ(table->Size(), 100000);
    EXPECT_LE(ResidentBytes() - before, fresh_bytes * 13 / 10) << round;
    EXPECT_LE(Bytes(*table), fresh_bytes * 13 / 10);
  }
}

TEST(TableCompactTest, WalksInPiecesSeeEachRowOnceWhateverIsMoved) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto table = MakeTable("sgd", 1);
    std::map<int64_t, float> model;
    // A walk: its position, the rows that it must see, and those it has seen.
    struct Walk {
      int64_t cursor = 0;
      std::map<int64_t, float> permanent;
      std::map<int64_t, int> seen;
    };
    std::vector<Walk> walks;
    int ended = 0;
    for (int step = 0; step < 600; ++step) {
      // From small and large ranges of signs, so that there are free rows in
      // all parts of the stripes.
      const uint64_t range = 1 + random() % (step % 300 < 150 ? 60000 : 9000);
      std::vector<int64_t> signs(random() % 3000);
      for (int64_t& sign : signs) sign = random() % range;
      switch (random() % 5) {
        case 0: {
          const std::vector<float> rows = Pull(table.get(), signs, true);
          for (size_t i = 0; i < signs.size(); ++i) {
            const auto it = model.emplace(signs[i], rows[i]).first;
            ASSERT_EQ(rows[i], it->second);
          }
          break;
        }
        case 1: {
          int64_t erased = 0;
          for (const int64_t sign : signs) {
            erased += model.erase(sign);
            for (Walk& walk : walks) walk.permanent.erase(sign);
          }
          ASSERT_EQ(Erase(table.get(), signs), erased);
          break;
        }
        case 2: {
          std::map<int64_t, float> changed;
          std::vector<float> values(signs.size());
          for (size_t i = 0; i < signs.size(); ++i) {
            changed[signs[i]] = values[i] = random() % 1000;
          }
          ASSERT_TRUE(table
                          ->Import(signs.data(), signs.size(),
                                   {{"weights", values.data()}}, SerialFor)
                          .ok());
          for (const auto& [sign, value] : changed) model[sign] = value;
          break;
        }
        case 3:
          Compact(table.get());
          ASSERT_EQ(table->Stats().free_rows, 0);
          break;
        case 4:
          if (walks.size() < 4) walks.push_back({0, model, {}});
          for (Walk& walk : walks) {
            const ExportedRows rows =
                Export(*table, walk.cursor, random() % 2000);
            for (size_t i = 0; i < rows.signs.size(); ++i) {
              ASSERT_EQ(FloatsOf(rows, 0, i)[0], model.at(rows.signs[i]));
              ++walk.seen[rows.signs[i]];
            }
            walk.cursor = rows.next_cursor;
            if (walk.cursor != -1) continue;
            ++ended;
            for (const auto& row : walk.permanent) {
              ASSERT_EQ(walk.seen[row.first], 1) << row.first;
            }
          }
          walks.erase(std::remove_if(
                          walks.begin(), walks.end(),
                          [](const Walk& walk) { return walk.cursor == -1; }),
                      walks.end());
          break;
      }
      ASSERT_EQ(table->Size(), static_cast<int64_t>(model.size()));
    }
    EXPECT_GT(ended, 3);
    std::map<int64_t, float> left;
    for (const auto& row : RowsOf(*table)) left[row.first] = row.second[0];
    EXPECT_EQ(left, model);
  }
}

// Exports so few rows at a time that each stripe takes several calls.
std::vector<int64_t> ExportInParts(const Table& table) {
  const std::vector<int64_t> sizes = table.StripeSizes();
  const int64_t limit = *std::min_element(sizes.begin(), sizes.end()) - 1;
  std::vector<int64_t> signs;
  for (int64_t cursor = 0; cursor != -1;) {
    const ExportedRows rows = Export(table, cursor, limit);
    signs.insert(signs.end(), rows.signs.begin(), rows.signs.end());
    cursor = rows.next_cursor;
  }
  return signs;
}

TEST(TableCompactTest, AnExportOfPartsIsInAnOrderOfItsSigns) {
  // The same signs with other row numbers, in an index of another size.
  const auto table = MakeTrained(30000, 3);
  Erase(table.get(), Range(1000, 30000));
  const auto other = MakeTrained(1000, 3);
  EXPECT_EQ(ExportInParts(*table), ExportInParts(*other));
  Compact(table.get());
  EXPECT_EQ(ExportInParts(*table), ExportInParts(*other));
}

TEST(TableCompactTest, RowsInTheOrderOfAnExportFillAnIndexAsOthersDo) {
  const auto table = MakeTrained(200000, 1);
  const auto copy = MakeTable("adagrad", 1);
  Pull(copy.get(), ExportInParts(*table), true);
  const TableStats stats = table->Stats();
  EXPECT_LE(copy->Stats().index_bytes, 1.1 * stats.index_bytes);
  EXPECT_LE(copy->Stats().max_probe_length, stats.max_probe_length + 4);
}

TEST(TableCompactTest, HashesThatACursorCannotTellApartAreNotLost) {
  const auto table = MakeTable();
  std::vector<int64_t> signs;
  std::mt19937_64 random(5);
  for (int i = 0; i < 500; ++i) {
    // Hashes with equal lower halves. Cursors distinguish them by all other
    // bits but one.
    const uint64_t hash = (random() & ~uint64_t{0xffffffff}) | 1234567u;
    ASSERT_EQ(TableHash(SignOfTableHash(hash)), hash);
    signs.push_back(SignOfTableHash(hash));
    signs.push_back(SignOfTableHash(hash ^ (uint64_t{1} << 32)));
  }
  Pull(table.get(), signs, true);
  // The lowest and the highest possible hash.
  Pull(table.get(), {SignOfTableHash(0), SignOfTableHash(~uint64_t{0})}, true);
  for (const int64_t limit : {1, 2, 3, 100}) {
    std::map<int64_t, int> seen;
    int64_t cursor = 0;
    while (cursor != -1) {
      const ExportedRows rows = Export(*table, cursor, limit);
      ASSERT_LE(static_cast<int64_t>(rows.signs.size()), limit + 1);
      for (const int64_t sign : rows.signs) ASSERT_EQ(++seen[sign], 1);
      cursor = rows.next_cursor;
    }
    EXPECT_EQ(seen.size(), 1002u) << limit;
  }
}

std::map<int64_t, int> SignsOf(const Files& files, int64_t row_bytes) {
  std::map<int64_t, int> signs;
  ForEachChunk(files, [&](const ChunkView& chunk) {
    for (int64_t i = 0; i < chunk.rows; ++i) {
      ++signs[RowSlabs::LoadSign(chunk.row_data + i * row_bytes)];
    }
    return Status::Ok();
  });
  return signs;
}

TEST(TableCompactTest, ASnapshotHasAllRowsWhileOthersCompact) {
  const auto table = MakeTrained(30000, 3);
  Erase(table.get(), Range(0, 30000, 3));
  const Rows expected = RowsOf(*table);
  std::thread compaction;
  std::atomic<bool> compacted{false};
  Files files(1);
  files[0].format = {64 + 5 * RowBytes(*table), RowBytes(*table), 100};
  int chunks = 0;
  const ChunkSink sink = [&](const ChunkEncoder::Chunk& chunk) {
    files[0].bytes.append(reinterpret_cast<const char*>(chunk.data),
                          chunk.bytes);
    // In the middle of a stripe; the others are soon compacted.
    if (++chunks == 100) {
      compaction = std::thread([&] {
        Compact(table.get());
        compacted = true;
      });
      while (table->Stats().free_rows > 200) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_FALSE(compacted);
      EXPECT_GT(table->Stats().free_rows, 0);
    }
    return Status::Ok();
  };
  ASSERT_TRUE(table
                  ->WriteRows(0, kStripes, false, files[0].format, sink,
                              &files[0].written)
                  .ok());
  compaction.join();
  EXPECT_EQ(table->Stats().free_rows, 0);
  const auto signs = SignsOf(files, RowBytes(*table));
  EXPECT_EQ(signs.size(), expected.size());
  for (const auto& sign : signs) EXPECT_EQ(sign.second, 1) << sign.first;
  const auto loaded = MakeTable("adagrad", 3);
  Load(files, StoredAs(*table), loaded.get());
  EXPECT_EQ(RowsOf(*loaded), expected);
}

TEST(TableCompactTest, ADeltaHasWhatHasChangedAndNothingElse) {
  const auto table = MakeTrained(20000, 3);
  const auto push = [&](const std::vector<int64_t>& signs) {
    Push(table.get(), signs, std::vector<float>(3 * signs.size(), 1),
         {0.5, 0, 1e-7});
  };
  ASSERT_TRUE(table->BeginChainSave("one", "").ok());
  const Files full = Write(*table, false);
  ASSERT_TRUE(table->EndChainSave("one", true).ok());

  const std::vector<int64_t> changed = Range(1, 20000, 100);
  Erase(table.get(), Range(0, 20000, 2));
  push(changed);
  Compact(table.get());
  push(Range(30000, 30010));
  ASSERT_TRUE(table->BeginChainSave("two", "one").ok());
  // These belong to the next delta, whose marks move along with those of this
  // one.
  push(Range(3, 20000, 1000));
  Erase(table.get(), Range(10001, 19999, 4));
  Compact(table.get());
  const Files two = Write(*table, true);
  ASSERT_TRUE(table->EndChainSave("two", true).ok());
  std::map<int64_t, int> expected;
  for (const int64_t sign : changed) {
    if (sign < 10001 || sign % 4 != 1) expected[sign] = 1;
  }
  for (const int64_t sign : Range(30000, 30010)) expected[sign] = 1;
  EXPECT_EQ(SignsOf(two, RowBytes(*table)), expected);

  Compact(table.get());
  ASSERT_TRUE(table->BeginChainSave("three", "two").ok());
  const Files three = Write(*table, true);
  ASSERT_TRUE(table->EndChainSave("three", false).ok());
  expected.clear();
  for (const int64_t sign : Range(3, 20000, 1000)) expected[sign] = 1;
  EXPECT_EQ(SignsOf(three, RowBytes(*table)), expected);
  // After PutBack, the marks are moved again.
  Erase(table.get(), Range(1, 20000, 8));
  Compact(table.get());
  ASSERT_TRUE(table->BeginChainSave("four", "two").ok());
  const Files four = Write(*table, true);
  ASSERT_TRUE(table->EndChainSave("four", true).ok());
  EXPECT_EQ(SignsOf(four, RowBytes(*table)), expected);

  const auto loaded = MakeTable("adagrad", 3);
  for (const Files& files : {full, two, four}) {
    Load(files, StoredAs(*table), loaded.get());
  }
  EXPECT_EQ(RowsOf(*loaded), RowsOf(*table));
}

TEST(TableCompactTest, AnUpdateErasesWhatItHasNotSet) {
  const auto source = MakeTrained(20000, 3);
  const Files files = Write(*source, false, 3, 1 << 16);
  const auto table = MakeTable("adagrad", 3);
  Pull(table.get(), Range(10000, 60000), true);
  Erase(table.get(), Range(10000, 60000, 3));
  int64_t number, rows;
  ASSERT_TRUE(table->BeginUpdate("", true, &number).ok());
  ForEachChunk(files, [&](const ChunkView& chunk) {
    Compact(table.get());  // moves both new and old rows
    return table->UpdateRows(StoredAs(*source), chunk, &rows);
  });
  // Frees rows below those that were set.
  Erase(table.get(), Range(20000, 60000));
  Compact(table.get());
  bool held;
  ASSERT_TRUE(table->EndUpdate(number, true, "id", &held).ok());
  EXPECT_EQ(RowsOf(*table), RowsOf(*source));
}

TEST(SlabMemoryTest, TakesTheFirstFreePieceAndGivesRegionsBack) {
  SlabMemory memory(8 << 20);  // four pieces per region
  std::vector<SlabMemory::Piece> pieces;
  for (int i = 0; i < 12; ++i) pieces.push_back(memory.Take());
  EXPECT_EQ(pieces[3].region, pieces[0].region);
  EXPECT_NE(pieces[4].region, pieces[0].region);
  EXPECT_EQ(memory.TakeBefore(pieces[11]).data, nullptr);
  EXPECT_FALSE(memory.scattered());

  memory.Release(pieces[6]);
  memory.Release(pieces[2]);
  EXPECT_EQ(memory.TakeBefore(pieces[1]).data, nullptr);
  EXPECT_EQ(memory.TakeBefore(pieces[5]).data, pieces[2].data);
  EXPECT_EQ(memory.TakeBefore(pieces[5]).data, nullptr);
  EXPECT_EQ(memory.TakeBefore(pieces[7]).data, pieces[6].data);

  // After a region in the middle is released, later ones are still found.
  for (int i = 4; i < 8; ++i) memory.Release(pieces[i]);
  for (int i = 0; i < 3; ++i) memory.Release(pieces[i]);
  memory.Release(pieces[9]);
  EXPECT_FALSE(memory.scattered());  // fewer free pieces than two regions
  EXPECT_EQ(memory.TakeBefore(pieces[8]).data, pieces[0].data);
  EXPECT_EQ(memory.Take().data, pieces[1].data);
  EXPECT_EQ(memory.Take().data, pieces[2].data);
  EXPECT_EQ(memory.Take().data, pieces[9].data);
  const SlabMemory::Piece last = memory.Take();
  EXPECT_NE(last.region, pieces[8].region);
  memory.Release(last);
}

TEST(SlabMemoryTest, IsScatteredWhereMovingWouldFreeRegions) {
  SlabMemory memory(8 << 20);
  std::vector<SlabMemory::Piece> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(memory.Take());
  for (int i = 0; i < 14; i += 2) memory.Release(pieces[i]);
  EXPECT_FALSE(memory.scattered());
  memory.Release(pieces[14]);
  EXPECT_TRUE(memory.scattered());
}

}  // namespace
}  // namespace tf_ext
