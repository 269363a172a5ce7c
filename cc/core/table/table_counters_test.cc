// SPDX-License-Identifier: Apache-2.0
// Export, import and files of counters of signs.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/counter_chunks.h"
#include "cc/core/support/status_test_util.h"
#include "cc/core/table/admission/admission_counters.h"
#include "cc/core/table/admission/count.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

using Counts = std::map<int64_t, int>;

std::unique_ptr<Table> Make(int n, int64_t forget = 0) {
  TableConfig config = MakeConfig("sgd", 2);
  config.admission = std::make_shared<CountAdmission>(n, forget);
  return MakeTable(config);
}

void Push(Table* table, const std::vector<int64_t>& signs, int64_t step = 1) {
  const std::vector<float> ones(signs.size() * 2, 1);
  int64_t updated;
  EXPECT_TRUE(IsOk(table->Push(signs.data(), ones.data(), signs.size(),
                               kSubtract.data(), kSubtract.size(), step,
                               SerialFor, &updated)));
}

// All counters, a page at a time; `between` is called after each page.
Counts Walk(
    const Table& table, int64_t period, int64_t limit = -1,
    const std::function<void()>& between = [] {}) {
  Counts all;
  for (int64_t cursor = 0; cursor != -1; between()) {
    std::vector<int64_t> signs;
    std::vector<int32_t> counts;
    EXPECT_TRUE(
        IsOk(table.ExportCounters(&cursor, limit, period, &signs, &counts)));
    for (size_t i = 0; i < signs.size(); ++i) {
      EXPECT_TRUE(all.emplace(signs[i], counts[i]).second) << signs[i];
    }
  }
  return all;
}

Counts All(const Table& table) { return Walk(table, table.CounterPeriod()); }

Status Import(Table* table, const Counts& counters, int64_t period,
              bool clear = true) {
  std::vector<int64_t> signs;
  std::vector<int32_t> counts;
  for (const auto& [sign, count] : counters) {
    signs.push_back(sign);
    counts.push_back(count);
  }
  return table->ImportCounters(signs.data(), counts.data(), signs.size(),
                               period, clear, SerialFor);
}

std::vector<int64_t> Random(std::mt19937_64* random, int n, int64_t signs) {
  std::vector<int64_t> some;
  for (int i = 0; i < n; ++i) some.push_back((*random)() % signs);
  return some;
}

TEST(CountersTest, SignsAreRecoveredFromHashes) {
  std::mt19937_64 random(7);
  for (const int64_t sign : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(SignOfTableHash(TableHash(sign)), sign);
  }
  for (int i = 0; i < 1000; ++i) {
    const int64_t sign = static_cast<int64_t>(random());
    ASSERT_EQ(SignOfTableHash(TableHash(sign)), sign);
  }
}

TEST(CountersTest, KeysAreOrderedByStripeAndThenAsTheTableIsWalked) {
  const uint64_t hash = 0x0123456789abcdef;
  const auto key = [](uint64_t of) { return CounterKey(SignOfTableHash(of)); };
  std::set<uint64_t> keys;
  for (int bit = 0; bit < 64; ++bit) {
    keys.insert(key(hash ^ uint64_t{1} << bit));
  }
  EXPECT_EQ(keys.size(), 64u);
  EXPECT_LT(key(0x07ffffffffffffff), key(0x0800000000000000));
  EXPECT_LT(key(0x03ffffff00000000), key(0x0000000000000001));
  EXPECT_LT(key(0x0000000000000001), key(0x0000000100000001));
}

TEST(CountersTest, LinesAreWalkedByKeyWhateverTheirNumber) {
  std::mt19937_64 random(3);
  CounterLines lines(0.5);
  std::set<uint64_t> before;
  for (int i = 0; i < 5000; ++i) {
    // Every third one has the same home line, at the end: they wrap around.
    const uint64_t hash =
        i % 3 == 0 ? random() << 32 | 0xfffffff0 : uint64_t{random()};
    lines.Insert(hash, 1);
    before.insert(hash);
  }
  std::set<uint64_t> seen;
  for (uint64_t key = 0; key < uint64_t{1} << 32;) {
    const uint64_t next =
        std::min(uint64_t{1} << 32, key + lines.KeysOf(/*lines=*/16));
    lines.ForEachOf(
        static_cast<uint32_t>(key), static_cast<uint32_t>(next - 1),
        [&](uint64_t hash, uint8_t) { EXPECT_TRUE(seen.insert(hash).second); });
    key = next;
    // The table grows while it is walked.
    for (int i = 0; i < 40; ++i) lines.Insert(random() << 1 | 1, 2);
  }
  for (const uint64_t hash : before) ASSERT_EQ(seen.count(hash), 1u);
}

TEST(CountersTest, LinesForManyAreReservedAtOnce) {
  for (const int64_t n : {1, 39, 40, 5000}) {
    CounterLines lines(0.5);
    lines.Insert(uint64_t{1} << 40, 1);
    lines.Reserve(n);
    const int64_t bytes = lines.bytes();
    for (int64_t i = 0; i < n; ++i) lines.Insert(i, 1);
    EXPECT_EQ(lines.bytes(), bytes) << n;
    EXPECT_EQ(lines.size(), n + 1);
    EXPECT_NE(lines.Find(uint64_t{1} << 40), nullptr);
  }
}

TEST(CountersTest, AreTheSameInAnotherTable) {
  for (const int64_t forget : {0, 4}) {
    std::mt19937_64 random(5);
    const auto table = Make(4, forget);
    std::unique_ptr<Table> other;
    for (int64_t step = 0; step < 60; ++step) {
      // At each step of a period.
      if (step % 7 == 0) {
        other = Make(4, forget);
        // Rows do not matter here: only the counters of the others.
        Push(other.get(), {999'999}, 0);
        ASSERT_TRUE(
            Import(other.get(), All(*table), table->CounterPeriod()).ok());
        ASSERT_EQ(All(*other), All(*table)) << step;
        ASSERT_EQ(other->CounterPeriod(), table->CounterPeriod());
        const ExportedRows rows = Export(*table, 0, -1, {});
        ASSERT_TRUE(
            other->Import(rows.signs.data(), rows.signs.size(), {}, SerialFor)
                .ok());
      }
      const std::vector<int64_t> signs = Random(&random, 200, 3000);
      Push(table.get(), signs, step);
      Push(other.get(), signs, step);
      ASSERT_EQ(All(*other), All(*table)) << step;
      ASSERT_EQ(other->Size(), table->Size()) << step;
    }
    EXPECT_GT(table->Size(), 100);
    EXPECT_GT(table->Stats().waiting, 100);
  }
}

TEST(CountersTest, AgesAreThoseOfTheGivenPeriod) {
  const auto table = Make(9, 10);
  Push(table.get(), {1, 2}, 25);
  EXPECT_EQ(All(*table), (Counts{{1, 1}, {2, 1}}));
  Push(table.get(), {2}, 35);
  EXPECT_EQ(All(*table), (Counts{{1, -1}, {2, 2}}));
  // Another shard may have pushed in a later period.
  EXPECT_EQ(Walk(*table, 4), (Counts{{2, -2}}));
  EXPECT_EQ(Walk(*table, 5), Counts());
  // A push during a save may begin one.
  EXPECT_EQ(Walk(*table, 2), (Counts{{1, 1}, {2, 2}}));
}

TEST(CountersTest, AWalkSeesEachOnceWhileOthersAreCounted) {
  const auto table = Make(200, 1);
  Push(table.get(), Range(0, 200'000), 1);
  int64_t pages = 0;
  int64_t more = 1'000'000;
  const Counts seen = Walk(*table, 1, /*limit=*/20'000, [&] {
    ++pages;
    // Some move to the current generation, and the tables grow.
    Push(table.get(), Range(pages * 10'000, pages * 10'000 + 5000), 2);
    Push(table.get(), Range(more, more + 20'000), 2);
    more += 20'000;
  });
  EXPECT_GT(pages, 5);
  for (int64_t sign = 0; sign < 200'000; ++sign) {
    ASSERT_EQ(seen.count(sign), 1u) << sign;
  }
}

TEST(CountersTest, CountsAreReducedToThoseThatWait) {
  const auto table = Make(3);
  ASSERT_TRUE(
      Import(table.get(), {{1, 1}, {2, -2}, {3, 7}, {4, -255}}, 5).ok());
  EXPECT_EQ(All(*table), (Counts{{1, 1}, {2, 2}, {3, 2}, {4, 2}}));
  EXPECT_EQ(table->CounterPeriod(), 0);
  Push(table.get(), {1, 3});
  EXPECT_EQ(table->Size(), 1);
  const auto at_once = Make(1);
  ASSERT_TRUE(Import(at_once.get(), {{1, 1}}, 0).ok());
  EXPECT_EQ(at_once->Stats().waiting, 0);
}

TEST(CountersTest, SignsWithARowGetNone) {
  const auto table = Make(2);
  Push(table.get(), {1, 1, 2});
  ASSERT_TRUE(Import(table.get(), {{1, 1}, {3, 1}}, 0, /*clear=*/false).ok());
  EXPECT_EQ(All(*table), (Counts{{2, 1}, {3, 1}}));
  ASSERT_TRUE(Import(table.get(), {{4, 1}}, 0).ok());
  EXPECT_EQ(All(*table), (Counts{{4, 1}}));
  EXPECT_EQ(table->Size(), 1);
}

TEST(CountersTest, InvalidOnesAreRefused) {
  const auto table = Make(3, 4);
  Push(table.get(), {1});
  const auto error_of = [&](const Counts& counters, int64_t period) {
    const Status status = Import(table.get(), counters, period);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(All(*table), (Counts{{1, 1}}));
    return status.message();
  };
  EXPECT_PRED2(Says, error_of({{5, 1}, {7, 0}}, 1), "counts[1] of sign 7 is 0");
  EXPECT_PRED2(Says, error_of({{5, 256}}, 1), "from -255 to 255");
  EXPECT_PRED2(Says, error_of({{5, INT32_MIN}}, 1), "is -2147483648");
  EXPECT_PRED2(Says, error_of({}, -1), "must be from 0 to 2305843009213693951");
  EXPECT_PRED2(Says, error_of({}, INT64_MAX / 4 + 1), "but it is 23058");
  EXPECT_TRUE(Import(table.get(), {}, INT64_MAX / 4).ok());
  std::vector<int64_t> signs;
  std::vector<int32_t> counts;
  for (int64_t cursor : {int64_t{-1}, int64_t{64}}) {
    const Status status =
        table->ExportCounters(&cursor, -1, 0, &signs, &counts);
    EXPECT_PRED2(Says, status.message(), "cursor must be 0 or the next_cursor");
  }
  const auto plain = MakeTable("sgd", 2);
  EXPECT_PRED2(Says, Import(plain.get(), {}, 0).message(), "has no counters");
}

TEST(CountersTest, FilesHoldAllInOrder) {
  const auto table = Make(9, 10);
  Push(table.get(), Range(0, 150'000), 25);
  Push(table.get(), Range(100'000, 200'000), 31);
  File file;
  file.format = {ChunkBytesFor(kStoredCounterBytes), kStoredCounterBytes, 77};
  int64_t written;
  const ChunkSink sink = [&file](const ChunkEncoder::Chunk& chunk) {
    file.bytes.append(reinterpret_cast<const char*>(chunk.data), chunk.bytes);
    return Status::Ok();
  };
  ASSERT_TRUE(table->WriteCounters(77, 3, sink, &written).ok());
  EXPECT_EQ(written, 200'000);
  CounterCheck check(9, /*older=*/true);
  Counts found;
  int chunks = 0;
  ForEachChunk({file}, [&](const ChunkView& chunk) {
    ++chunks;
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const StoredCounter counter =
          LoadCounter(chunk.row_data + i * kStoredCounterBytes);
      found[counter.sign] = counter.count;
    }
    return check.Check(chunk);
  });
  EXPECT_EQ(chunks, 3);
  EXPECT_EQ(found, All(*table));
}

TEST(CountersTest, ForgedFilesAreFound) {
  // In order.
  std::map<uint64_t, int64_t> ordered;
  for (const int64_t sign : {7, 8, 9}) ordered[CounterKey(sign)] = sign;
  std::vector<int64_t> signs;
  for (const auto& [key, sign] : ordered) signs.push_back(sign);
  const auto error_of = [](const std::vector<StoredCounter>& counters, int n,
                           bool older) {
    std::vector<uint8_t> data(counters.size() * kStoredCounterBytes);
    for (size_t i = 0; i < counters.size(); ++i) {
      StoreCounter(counters[i], data.data() + i * kStoredCounterBytes);
    }
    // In chunks of one.
    CounterCheck check(n, older);
    for (size_t i = 0; i < counters.size(); ++i) {
      ChunkView chunk = {};
      chunk.rows = 1;
      chunk.row_data = data.data() + i * kStoredCounterBytes;
      const Status status = check.Check(chunk);
      if (!status.ok()) return status.message();
    }
    return std::string("whole");
  };
  const int64_t a = signs[0], b = signs[1];
  EXPECT_EQ(error_of({{a, 2}, {b, -2}}, 3, true), "whole");
  EXPECT_PRED2(Says, error_of({{a, 2}, {b, -2}}, 3, false), "from 1 to 2");
  EXPECT_PRED2(Says, error_of({{a, 3}}, 3, true), "from -2 to 2 and not 0");
  EXPECT_PRED2(Says, error_of({{a, -3}}, 3, true), "a count of -3 of the sign");
  EXPECT_PRED2(Says, error_of({{a, 0}}, 3, true), "a count of 0");
  EXPECT_PRED2(Says, error_of({{a, 1}}, 1, true), "a count of 1");
  EXPECT_PRED2(Says, error_of({{a, 1}, {a, 1}}, 3, true), "appears twice");
  EXPECT_PRED2(Says, error_of({{b, 1}, {a, 1}}, 3, true), "out of order");
  ChunkView erasing = {};
  erasing.erased_before = 1;
  EXPECT_PRED2(Says, CounterCheck(3, true).Check(erasing).message(),
               "erased signs");
}

}  // namespace
}  // namespace tf_ext
