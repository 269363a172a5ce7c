// SPDX-License-Identifier: Apache-2.0
// What a table does when memory is refused, wherever it asks for some: the
// error says so, and the table works on.

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_snapshot_test_util.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace {

// What is smaller is always given: a system that has no more of it has stopped.
constexpr size_t kSmall = 64;

// How many allocations this thread is still given; -1: all.
thread_local int64_t allocations_left = -1;
thread_local bool has_refused = false;

void* Allocate(size_t size) {
  if (size >= kSmall && allocations_left >= 0 && allocations_left-- == 0) {
    // The counter is -1 now: the exception itself, and the message of the
    // error, need memory.
    has_refused = true;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace tf_ext {
namespace {

// Calls `fn` with memory for 0, 1, 2 and so on allocations until it succeeds.
// Before it is called again, `prepare` is. Returns how often it was refused
// some.
int64_t Refused(const std::function<void()>& prepare,
                const std::function<Status()>& fn) {
  for (int64_t given = 0;; ++given) {
    prepare();
    has_refused = false;
    allocations_left = given;
    const Status status = fn();
    allocations_left = -1;
    if (!has_refused) {
      EXPECT_TRUE(IsOk(status));
      return given;
    }
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted)
        << given << ": " << status.message();
    EXPECT_PRED2(Says, status.message(), "out of memory");
  }
}

void RefuseEach(const std::function<void()>& prepare,
                const std::function<Status()>& fn) {
  EXPECT_GT(Refused(prepare, fn), 0);
}

void Nothing() {}

TEST(TableNoMemoryTest, Creation) {
  const TableConfig config = MakeConfig("adagrad", 3);
  std::unique_ptr<Table> table;
  RefuseEach(Nothing, [&] { return Table::Create(config, &table); });
  EXPECT_EQ(table->Size(), 0);
}

TEST(TableNoMemoryTest, PullsAndPushes) {
  const std::vector<int64_t> signs = Range(0, 500);
  std::vector<float> values(3 * signs.size());
  const auto table = MakeTable("adagrad", 3);
  RefuseEach(Nothing, [&] {
    return table->Pull(signs.data(), signs.size(), true, values.data(),
                       SerialFor);
  });
  EXPECT_EQ(table->Size(), 500);
  RefuseEach(Nothing, [&] {
    int64_t updated;
    return table->Push(signs.data(), values.data(), signs.size(),
                       kAdagrad.data(), kAdagrad.size(), 1, SerialFor,
                       &updated);
  });
  EXPECT_EQ(table->Size(), 500);
}

TEST(TableNoMemoryTest, ExportsAndErasures) {
  const auto table = MakeTrained(500);
  const Rows before = RowsOf(*table);
  const std::vector<std::string> names = FieldNames(*table);
  ExportedRows rows;
  RefuseEach(Nothing, [&] { return table->Export(0, -1, names, &rows); });
  EXPECT_EQ(rows.signs.size(), 500u);
  EXPECT_EQ(RowsOf(*table), before);
  const std::vector<int64_t> signs = Range(0, 100);
  RefuseEach(Nothing, [&] {
    int64_t erased;
    return table->Erase(signs.data(), signs.size(), SerialFor, &erased);
  });
  EXPECT_EQ(table->Size(), 400);
}

TEST(TableNoMemoryTest, Chains) {
  std::unique_ptr<Table> table;
  const auto prepare = [&] { table = MakeTrained(3000); };
  RefuseEach(prepare, [&] { return table->BeginChainSave("one", ""); });
  const auto begun = [&] {
    prepare();
    EXPECT_TRUE(IsOk(table->BeginChainSave("one", "")));
  };
  begun();
  EXPECT_TRUE(IsOk(table->EndChainSave("one", true)));
  EXPECT_EQ(table->Chain(), "one");
  RefuseEach(prepare, [&] { return table->SetChain("two"); });
  EXPECT_EQ(table->Chain(), "two");
  const ChunkFormat format = {64 + 5 * RowBytes(*table), RowBytes(*table), 7};
  const ChunkSink sink = [](const ChunkEncoder::Chunk&) {
    return Status::Ok();
  };
  WrittenRows written;
  RefuseEach(prepare, [&] {
    return table->WriteRows(0, kStripes, false, format, sink, &written);
  });
  EXPECT_EQ(written.rows, 3000);
}

TEST(TableNoMemoryTest, ClearingAChain) {
  std::unique_ptr<Table> table;
  int64_t cleared = 0, number;
  bool held;
  const auto prepare = [&] {
    table = MakeTrained(20000);
    ASSERT_TRUE(IsOk(table->BeginUpdate("", false, &number)));
    ASSERT_TRUE(IsOk(table->EndUpdate(number, true, "one", &held)));
    ASSERT_TRUE(IsOk(table->SetChain("one")));
  };
  RefuseEach(prepare, [&] {
    const Status status = table->Clear(&cleared);
    EXPECT_EQ(cleared + table->Size(), 20000);
    EXPECT_EQ(table->Held(), "");
    return status;
  });
  EXPECT_EQ(cleared, 20000);
}

// A row that could not be inserted leaves the marks of both generations alike.
TEST(TableNoMemoryTest, AFailedSaveAfterRefusedRows) {
  std::unique_ptr<Table> table;
  const auto prepare = [&] {
    table = MakeTrained(3000);
    ASSERT_TRUE(IsOk(table->SetChain("one")));
    ASSERT_TRUE(IsOk(table->BeginChainSave("two", "one")));
  };
  const std::vector<int64_t> signs = Range(5000, 30000);
  std::vector<float> values(3 * signs.size());
  RefuseEach(prepare, [&] {
    const Status status =
        table->Pull(signs.data(), signs.size(), true, values.data(), SerialFor);
    const int64_t left = std::exchange(allocations_left, -1);
    EXPECT_TRUE(IsOk(table->EndChainSave("two", false)));
    allocations_left = left;
    return status;
  });
}

TEST(TableNoMemoryTest, ChunksAndUpdates) {
  const auto table = MakeTrained(3000);
  const Rows wanted = RowsOf(*table);
  const StoredRows stored = StoredAs(*table);
  const Files files = Write(*table, false, 1, 1 << 14);
  const auto other = MakeTable("adagrad", 3);
  int64_t refused = 0;
  ForEachChunk(files, [&](const ChunkView& chunk) {
    refused += Refused(Nothing, [&] {
      int64_t rows;
      return other->ApplyChunk(stored, chunk, &rows);
    });
    return Status::Ok();
  });
  EXPECT_GT(refused, 0);
  EXPECT_EQ(RowsOf(*other), wanted);

  const auto updated = MakeTable("adagrad", 3);
  int64_t number = 0;
  RefuseEach(Nothing, [&] { return updated->BeginUpdate("", true, &number); });
  refused = 0;
  ForEachChunk(files, [&](const ChunkView& chunk) {
    refused += Refused(Nothing, [&] {
      int64_t rows;
      return updated->UpdateRows(stored, chunk, &rows);
    });
    return Status::Ok();
  });
  EXPECT_GT(refused, 0);
  bool held;
  EXPECT_TRUE(IsOk(updated->EndUpdate(number, true, "id", &held)));
  EXPECT_TRUE(held);
  EXPECT_EQ(RowsOf(*updated), wanted);
}

TEST(TableNoMemoryTest, ErasuresOfAnUpdate) {
  std::unique_ptr<Table> table = MakeTrained(3000);
  const StoredRows stored = StoredAs(*table);
  const std::vector<int64_t> signs = Range(0, 2000);
  ChunkView erasing = {};
  erasing.signs_before = reinterpret_cast<const uint8_t*>(signs.data());
  erasing.erased_before = signs.size();
  int64_t number = 0;
  const auto begin = [&] {
    table = MakeTrained(3000);
    EXPECT_TRUE(IsOk(table->BeginUpdate("", false, &number)));
  };
  RefuseEach(begin, [&] { return table->GatherErased(stored, erasing); });
  bool held = false;
  const auto gather = [&] {
    begin();
    EXPECT_TRUE(IsOk(table->GatherErased(stored, erasing)));
  };
  RefuseEach(gather,
             [&] { return table->EndUpdate(number, true, "id", &held); });
  EXPECT_TRUE(held);
  EXPECT_EQ(table->Size(), 1000);
}

TEST(TableNoMemoryTest, CompactionAndEviction) {
  std::unique_ptr<Table> table;
  const auto prepare = [&] {
    table = MakeTrained(3000);
    Erase(table.get(), Range(10, 3000));
  };
  RefuseEach(prepare, [&] {
    int64_t bytes;
    return table->Compact(SerialFor, &bytes);
  });
  EXPECT_EQ(table->Size(), 10);
}

}  // namespace
}  // namespace tf_ext
