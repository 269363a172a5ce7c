// SPDX-License-Identifier: Apache-2.0
// Snapshots in memory, for the tests of a table.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_SNAPSHOT_TEST_UTIL_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_SNAPSHOT_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/support/status_test_util.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {

using Rows = std::map<int64_t, std::vector<float>>;  // by sign, all fields

// A file in memory.
struct File {
  ChunkFormat format;
  std::string bytes;
  WrittenRows written;
};
using Files = std::vector<File>;

inline const std::vector<double> kAdagrad = {0.5, 0, 1e-7};

inline std::unique_ptr<Table> MakeTrained(int64_t rows) {
  auto table = MakeTable("adagrad", 3);
  Push(table.get(), Range(0, rows), std::vector<float>(3 * rows, 0.25f),
       kAdagrad);
  return table;
}

inline int64_t RowBytes(const Table& table) {
  return table.layout().raw_bytes();
}

// Small chunks: the ends of chunks are where things go wrong.
inline Files Write(const Table& table, bool changed, int files = 3,
                   int64_t chunk_bytes = 0) {
  if (chunk_bytes == 0) chunk_bytes = 64 + 5 * RowBytes(table);
  Files result(files);
  for (int f = 0; f < files; ++f) {
    File& file = result[f];
    file.format = {chunk_bytes, RowBytes(table), 100u + f};
    const ChunkSink sink = [&file](const ChunkEncoder::Chunk& chunk) {
      file.bytes.append(reinterpret_cast<const char*>(chunk.data), chunk.bytes);
      return Status::Ok();
    };
    EXPECT_TRUE(
        IsOk(table.WriteRows(kStripes * f / files, kStripes * (f + 1) / files,
                             changed, file.format, sink, &file.written)));
  }
  return result;
}

// Saves a chain of snapshots, of which every third fails, so the next one
// includes its changes. Returns the others.
inline std::vector<Files> SaveChain(Table* table, int saves) {
  std::vector<Files> chain;
  std::string base;
  for (int save = 0; save < saves; ++save) {
    const std::string id = "save" + std::to_string(save);
    EXPECT_TRUE(table->BeginChainSave(id, base).ok());
    Files files = Write(*table, save > 0, 3, 1 << 14);
    const bool committed = save % 3 != 2;
    EXPECT_TRUE(table->EndChainSave(id, committed).ok());
    if (!committed) continue;
    base = id;
    chain.push_back(std::move(files));
  }
  return chain;
}

inline StoredRows StoredAs(const Table& table) {
  StoredRows stored;
  for (const Field& field : table.layout().fields()) {
    stored.fields.push_back(
        {field.name, field.type, field.count, field.offset});
  }
  stored.row_bytes = RowBytes(table);
  return stored;
}

// Hands over the chunks of all files.
inline void ForEachChunk(const Files& files,
                         const std::function<Status(const ChunkView&)>& take) {
  for (const File& file : files) {
    const auto* const data =
        reinterpret_cast<const uint8_t*>(file.bytes.data());
    const int64_t bytes = file.bytes.size();
    int64_t size;
    for (int64_t i = 0; (size = ChunkSize(file.format, bytes, i)) > 0; ++i) {
      ChunkView view;
      ASSERT_TRUE(IsOk(DecodeChunk(
          file.format, data + i * file.format.chunk_bytes, size, i, &view)));
      ASSERT_TRUE(IsOk(take(view)));
    }
  }
}

inline void Load(const Files& files, const StoredRows& stored, Table* table) {
  ForEachChunk(files, [&](const ChunkView& chunk) {
    int64_t rows;
    return table->ApplyChunk(stored, chunk, &rows);
  });
}

inline Rows RowsOf(const Table& table) {
  const ExportedRows exported = Export(table, 0, -1, FieldNames(table));
  Rows rows;
  for (size_t i = 0; i < exported.signs.size(); ++i) {
    std::vector<float>& values = rows[exported.signs[i]];
    for (size_t f = 0; f < exported.fields.size(); ++f) {
      const std::vector<float> more = FloatsOf(exported, f, i);
      values.insert(values.end(), more.begin(), more.end());
    }
  }
  return rows;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_SNAPSHOT_TEST_UTIL_H_
