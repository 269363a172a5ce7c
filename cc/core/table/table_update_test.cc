// SPDX-License-Identifier: Apache-2.0
// Updates in place: what they leave, what readers see meanwhile.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int64_t kDim = 8;

std::string Id(int number) { return std::string(31, 'a') + "abcdef"[number]; }

// Rows that are `value` in all places. Absent ones are between -1 and 1, and
// not the same in all places.
void Set(Table* table, const std::vector<int64_t>& signs, float value) {
  const std::vector<float> weights(signs.size() * kDim, value);
  ASSERT_TRUE(IsOk(table->Import(signs.data(), signs.size(),
                                 {{"weights", weights.data()}}, SerialFor)));
}

Files SaveDelta(Table* table, const std::string& id, const std::string& base) {
  EXPECT_TRUE(table->BeginChainSave(id, base).ok());
  Files files = Write(*table, !base.empty());
  EXPECT_TRUE(table->EndChainSave(id, true).ok());
  return files;
}

// Applies files in place; whether the table holds `id` then.
bool Update(Table* table, const std::vector<Files>& links,
            const std::string& id, const std::string& base, bool whole) {
  int64_t number;
  EXPECT_TRUE(IsOk(table->BeginUpdate(base, whole, &number)));
  const StoredRows stored = StoredAs(*table);
  for (const Files& files : links) {
    ForEachChunk(files, [&](const ChunkView& chunk) {
      return table->GatherErased(stored, chunk);
    });
  }
  for (const Files& files : links) {
    ForEachChunk(files, [&](const ChunkView& chunk) {
      int64_t rows;
      return table->UpdateRows(stored, chunk, &rows);
    });
  }
  bool held;
  EXPECT_TRUE(table->EndUpdate(number, true, id, &held).ok());
  EXPECT_EQ(table->Held(), held ? id : "");
  return held;
}

// A trained table, what it was saved as, and a copy to be updated.
struct Pair {
  Pair() : trained(MakeTable("sgd", kDim)), served(MakeTable("sgd", kDim)) {
    Set(trained.get(), Range(0, 3000), 1);
    full = SaveDelta(trained.get(), Id(0), "");
    EXPECT_TRUE(Update(served.get(), {full}, Id(0), "", false));
  }
  // What has changed in the trained table since.
  Files Delta(int number) {
    return SaveDelta(trained.get(), Id(number), Id(number - 1));
  }

  std::unique_ptr<Table> trained, served;
  Files full;
};

TEST(TableUpdateTest, DeltasLeaveWhatWasTrained) {
  Pair pair;
  EXPECT_EQ(RowsOf(*pair.served), RowsOf(*pair.trained));
  Set(pair.trained.get(), Range(1000, 4000), 2);
  Erase(pair.trained.get(), Range(0, 500));
  Set(pair.trained.get(), Range(0, 250), 3);  // erased and set again
  const Files first = pair.Delta(1);
  Erase(pair.trained.get(), Range(2000, 2500));  // in the first and gone
  Set(pair.trained.get(), Range(250, 300), 4);   // gone and in the second
  const Files second = pair.Delta(2);
  EXPECT_TRUE(Update(pair.served.get(), {first, second}, Id(2), Id(0), false));
  EXPECT_EQ(RowsOf(*pair.served), RowsOf(*pair.trained));
}

TEST(TableUpdateTest, WhatIsGoneInTheEndIsAsBeforeUntilThen) {
  Pair pair;
  Set(pair.trained.get(), {5, 5000}, 2);
  const Files first = pair.Delta(1);
  Erase(pair.trained.get(), {5, 5000});
  const Files second = pair.Delta(2);
  const StoredRows stored = StoredAs(*pair.served);
  int64_t number, rows;
  bool held;
  ASSERT_TRUE(pair.served->BeginUpdate(Id(0), false, &number).ok());
  for (const Files& files : {first, second}) {
    ForEachChunk(files, [&](const ChunkView& chunk) {
      return pair.served->GatherErased(stored, chunk);
    });
  }
  for (const Files& files : {first, second}) {
    ForEachChunk(files, [&](const ChunkView& chunk) {
      return pair.served->UpdateRows(stored, chunk, &rows);
    });
    EXPECT_EQ(Pull(pair.served.get(), {5}, false), std::vector<float>(kDim, 1));
    EXPECT_EQ(pair.served->Size(), 3000);
  }
  ASSERT_TRUE(pair.served->EndUpdate(number, true, Id(2), &held).ok());
  EXPECT_EQ(pair.served->Size(), 2999);
}

TEST(TableUpdateTest, AWholeOneErasesWhatItDoesNotSet) {
  Pair pair;
  Set(pair.served.get(), Range(5000, 6000), 7);
  Set(pair.trained.get(), Range(2000, 3500), 2);
  Erase(pair.trained.get(), Range(0, 300));
  const Files delta = pair.Delta(1);
  EXPECT_TRUE(Update(pair.served.get(), {pair.full, delta}, Id(1), "", true));
  EXPECT_EQ(RowsOf(*pair.served), RowsOf(*pair.trained));
  // Rows are found, and inserted, as ever.
  Set(pair.served.get(), Range(0, 6000), 9);
  EXPECT_EQ(pair.served->Size(), 6000);
  EXPECT_EQ(pair.served->Stats().free_rows, 0);
}

TEST(TableUpdateTest, MemoryOfWhatIsErasedIsFreed) {
  // A stripe of fewer rows than are examined in one lock hold.
  constexpr int64_t kWide = 512;
  std::vector<int64_t> signs = SignsInStripe(0, 900);
  const auto served = MakeTable("sgd", kWide),
             trained = MakeTable("sgd", kWide);
  Pull(served.get(), signs, true);
  signs.resize(90);
  Pull(trained.get(), signs, true);
  EXPECT_TRUE(Update(served.get(), {Write(*trained, false)}, Id(0), "", true));
  EXPECT_EQ(RowsOf(*served), RowsOf(*trained));
  EXPECT_EQ(served->Stats().free_rows, 0);
}

TEST(TableUpdateTest, WhatIsErasedLeavesTheIndex) {
  const auto even = MakeTable("sgd", kDim), odd = MakeTable("sgd", kDim);
  Set(even.get(), Range(0, 6000, 2), 1);
  Set(odd.get(), Range(1, 6000, 2), 1);
  const Files files[] = {Write(*even, false), Write(*odd, false)};
  const auto served = MakeTable("sgd", kDim);
  int64_t longest = 0;
  for (int round = 0; round < 6; ++round) {
    EXPECT_TRUE(Update(served.get(), {files[round % 2]}, Id(0), "", true));
    EXPECT_EQ(served->Size(), 3000);
    const int64_t probe = served->Stats().max_probe_length;
    if (round == 1) longest = probe;
    if (round > 1) {
      EXPECT_LE(probe, longest + 1) << round;
    }
  }
}

TEST(TableUpdateTest, KnowsWhatItHolds) {
  const std::vector<std::function<void(Table*)>> changes = {
      [](Table* table) { Set(table, {5}, 3); },
      [](Table* table) { Erase(table, {5}); },
      [](Table* table) { ClearRows(table); },
      [](Table* table) { Pull(table, {1 << 20}, true); },
      [](Table* table) { Push(table, {5}, std::vector<float>(kDim, 1)); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Pair pair;
    Pull(pair.served.get(), Range(0, 9000), false);
    Pull(pair.served.get(), Range(0, 3000), true);
    EXPECT_EQ(pair.served->Held(), Id(0)) << i;
    changes[i](pair.served.get());
    EXPECT_EQ(pair.served->Held(), "") << i;
    int64_t number;
    EXPECT_EQ(
        pair.served->BeginUpdate(Id(0), false, &number).message(),
        "table \"test\" holds the rows of no snapshot, so what continues " +
            Id(0) + " cannot be applied.")
        << i;
  }
  Pair pair;
  int64_t number;
  EXPECT_EQ(pair.served->BeginUpdate(Id(1), false, &number).message(),
            "table \"test\" holds those of " + Id(0) + ", so what continues " +
                Id(1) + " cannot be applied.");
  EXPECT_EQ(pair.served->Held(), Id(0));
}

TEST(TableUpdateTest, WhatElseChangesRowsMeanwhileIsNoticed) {
  Pair pair;
  Set(pair.trained.get(), {1, 2}, 2);
  const Files delta = pair.Delta(1);
  int64_t number, other;
  bool held;
  ASSERT_TRUE(pair.served->BeginUpdate(Id(0), false, &number).ok());
  EXPECT_EQ(pair.served->Held(), "");
  Set(pair.served.get(), {7}, 5);
  EXPECT_TRUE(pair.served->EndUpdate(number, true, Id(1), &held).ok());
  EXPECT_FALSE(held);
  EXPECT_EQ(pair.served->Held(), "");

  // Of two at a time the first is given up, whichever ends first.
  for (const bool first_ends_first : {false, true}) {
    ASSERT_TRUE(pair.served->BeginUpdate("", true, &number).ok());
    ASSERT_TRUE(pair.served->BeginUpdate("", false, &other).ok());
    if (!first_ends_first) {
      EXPECT_TRUE(pair.served->EndUpdate(other, true, Id(2), &held).ok());
      EXPECT_TRUE(held);
    }
    EXPECT_TRUE(pair.served->EndUpdate(number, true, Id(1), &held).ok());
    EXPECT_FALSE(held);
    EXPECT_EQ(pair.served->Size(), 3000);
  }

  // A chain that begins ends the marks that a whole update goes by.
  ASSERT_TRUE(pair.served->BeginUpdate("", true, &number).ok());
  ASSERT_TRUE(pair.served->SetChain(Id(3)).ok());
  EXPECT_TRUE(pair.served->EndUpdate(number, true, Id(1), &held).ok());
  EXPECT_FALSE(held);
  EXPECT_EQ(pair.served->Size(), 3000);
  EXPECT_EQ(pair.served->BeginUpdate("", true, &number).message(),
            "table \"test\" has a chain of incremental snapshots, which has to "
            "end before all rows are replaced.");
  const auto refuse = [&](const ChunkView& chunk) {
    int64_t rows;
    const StoredRows stored = StoredAs(*pair.served);
    EXPECT_FALSE(pair.served->GatherErased(stored, chunk).ok());
    EXPECT_FALSE(pair.served->UpdateRows(stored, chunk, &rows).ok());
    return Status::Ok();
  };
  ForEachChunk(delta, refuse);

  // Given up: nothing is erased.
  ASSERT_TRUE(pair.served->SetChain("").ok());
  ASSERT_TRUE(pair.served->BeginUpdate("", true, &number).ok());
  EXPECT_TRUE(pair.served->EndUpdate(number, false, "", &held).ok());
  EXPECT_FALSE(held);
  EXPECT_EQ(pair.served->Size(), 3000);
}

// As of a file whose slots are not read.
TEST(TableUpdateTest, PartOfTheFieldsLeavesNewRows) {
  const auto from = MakeTable("adagrad", kDim);
  Set(from.get(), {7, 9}, 3);
  const Files files = Write(*from, false);
  StoredRows stored = StoredAs(*from);
  stored.fields.resize(1);
  const auto expected = MakeTable("adagrad", kDim);
  const auto served = MakeTable("adagrad", kDim);
  const std::vector<int64_t> before = {7, 8};
  const std::vector<float> slots(before.size() * kDim, 900);
  ASSERT_TRUE(IsOk(served->Import(before.data(), before.size(),
                                  {{"accumulator", slots.data()}}, SerialFor)));
  int64_t number, rows;
  bool held;
  ASSERT_TRUE(served->BeginUpdate("", true, &number).ok());
  ForEachChunk(files, [&](const ChunkView& chunk) {
    EXPECT_TRUE(IsOk(expected->ApplyChunk(stored, chunk, &rows)));
    return served->UpdateRows(stored, chunk, &rows);
  });
  ASSERT_TRUE(served->EndUpdate(number, true, "", &held).ok());
  EXPECT_FALSE(held);
  EXPECT_EQ(served->Held(), "");
  EXPECT_EQ(served->Size(), 2);
  EXPECT_EQ(RowsOf(*served), RowsOf(*expected));
}

TEST(TableUpdateTest, AChunkOutsideAnUpdateChangesWhatIsHeld) {
  Pair pair;
  int64_t number, rows;
  bool held;
  const StoredRows stored = StoredAs(*pair.served);
  const auto apply = [&](const ChunkView& chunk) {
    return pair.served->ApplyChunk(stored, chunk, &rows);
  };
  ForEachChunk(pair.full, apply);
  EXPECT_EQ(pair.served->Held(), "");
  // As a table is loaded.
  ASSERT_TRUE(pair.served->BeginUpdate("", false, &number).ok());
  ForEachChunk(pair.full, apply);
  ASSERT_TRUE(pair.served->EndUpdate(number, true, Id(1), &held).ok());
  EXPECT_TRUE(held);
  EXPECT_EQ(pair.served->Held(), Id(1));
}

TEST(TableUpdateTest, AShardTakesItsOwn) {
  Pair pair;
  Erase(pair.trained.get(), Range(0, 1000));
  Set(pair.trained.get(), Range(900, 2000), 2);
  const Files delta = pair.Delta(1);
  StoredRows stored = StoredAs(*pair.served);
  stored.shard = 1;
  stored.shards = 3;
  Rows expected;
  for (const auto& [sign, row] : RowsOf(*pair.served)) {
    if (ShardOf(sign, 3) != 1) expected[sign] = row;
  }
  for (const auto& [sign, row] : RowsOf(*pair.trained)) {
    if (ShardOf(sign, 3) == 1) expected[sign] = row;
  }
  int64_t number, rows;
  bool held;
  ASSERT_TRUE(pair.served->BeginUpdate("", false, &number).ok());
  ForEachChunk(delta, [&](const ChunkView& chunk) {
    return pair.served->GatherErased(stored, chunk);
  });
  ForEachChunk(delta, [&](const ChunkView& chunk) {
    return pair.served->UpdateRows(stored, chunk, &rows);
  });
  ASSERT_TRUE(pair.served->EndUpdate(number, true, Id(1), &held).ok());
  EXPECT_EQ(RowsOf(*pair.served), expected);
}

// Readers of rows that are there all the time, while deltas, some of which
// erase and set them again, and whole snapshots are applied.
TEST(TableUpdateTest, ReadersSeeEachRowBeforeOrAfter) {
  Pair pair;
  const std::vector<int64_t> stay = Range(0, 2000);
  std::atomic<bool> done{false};
  std::atomic<int64_t> wrong{0}, reads{0};
  std::atomic<int> version{1};
  const auto read = [&](bool many) {
    const std::vector<int64_t> some =
        many ? stay : std::vector<int64_t>(stay.begin(), stay.begin() + 60);
    while (!done) {
      // Of a version that was there when reading began, or came since.
      const float least = static_cast<float>(version.load() - 1);
      const std::vector<float> rows = Pull(pair.served.get(), some, false);
      const float most = static_cast<float>(version.load() + 1);
      for (size_t i = 0; i < some.size(); ++i) {
        const float* const row = &rows[i * kDim];
        for (int64_t d = 0; d < kDim; ++d) {
          wrong += row[d] != row[0];  // torn
        }
        wrong += row[0] < 1 || row[0] < least || row[0] > most;  // absent
      }
      ++reads;
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read, i % 2 == 0);
  int last = 0;
  for (int round = 2; round < 40; ++round) {
    Table* const trained = pair.trained.get();
    Erase(trained, Range(0, 1500));
    Set(trained, stay, static_cast<float>(round));
    Set(trained, Range(10000 + 100 * round, 10200 + 100 * round), 1);
    Erase(trained, Range(10000 + 100 * round - 300, 10000 + 100 * round));
    const int next = last ^ 1;
    const bool whole = round % 3 == 0;
    if (whole) {
      ASSERT_TRUE(trained->SetChain("").ok());
    }
    const Files files = SaveDelta(trained, Id(next), whole ? "" : Id(last));
    ASSERT_TRUE(Update(pair.served.get(), {files}, Id(next),
                       whole ? "" : Id(last), whole));
    version = round;
    last = next;
    ASSERT_EQ(RowsOf(*pair.served), RowsOf(*trained));
  }
  while (reads < 20) std::this_thread::yield();
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tf_ext
