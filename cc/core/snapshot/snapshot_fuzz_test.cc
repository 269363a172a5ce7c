// SPDX-License-Identifier: Apache-2.0
// Chunks whose checksums are right and whose content is not: what a program
// that means harm, or a writer with a bug, would put into a file.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/snapshot/crc32c.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr int kSeeds = 20000;
constexpr int64_t kDim = 3;
constexpr uint64_t kTag = 7;

constexpr int64_t kExtremes[] = {0,
                                 1,
                                 -1,
                                 7,
                                 8,
                                 32,
                                 4096,
                                 int64_t{1} << 31,
                                 (int64_t{1} << 32) - 1,
                                 int64_t{1} << 32,
                                 int64_t{1} << 60,
                                 int64_t{1} << 62,
                                 std::numeric_limits<int64_t>::max() - 40,
                                 std::numeric_limits<int64_t>::max() - 1,
                                 std::numeric_limits<int64_t>::max(),
                                 std::numeric_limits<int64_t>::min()};

// Exactly as long as it says, so that AddressSanitizer sees the first byte
// beyond.
struct Bytes {
  explicit Bytes(const std::vector<uint8_t>& from)
      : data(new uint8_t[from.size()]),
        size(static_cast<int64_t>(from.size())) {
    std::copy(from.begin(), from.end(), data.get());
  }
  const std::unique_ptr<uint8_t[]> data;
  const int64_t size;
};

class Forger {
 public:
  explicit Forger(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  int64_t Extreme() { return kExtremes[Below(std::size(kExtremes))]; }

  // A whole chunk of a few rows, and of signs that are erased.
  std::vector<uint8_t> Chunk(const ChunkFormat& format) {
    ChunkEncoder encoder(format);
    std::vector<int64_t> signs(Below(3));
    for (int64_t& sign : signs) sign = Below(20);
    encoder.AddErased(signs.data(), signs.size(), false);
    const int64_t rows = std::min(Below(5), encoder.RoomForRows());
    for (int64_t row = 0; row < rows; ++row) {
      std::memset(encoder.rows_end(), 0, format.row_bytes);
      const int64_t sign = Below(20);
      std::memcpy(encoder.rows_end(), &sign, sizeof(sign));
      encoder.AddRows(1);
    }
    signs.resize(std::min<int64_t>(signs.size(), encoder.RoomForSigns()));
    encoder.AddErased(signs.data(), signs.size(), true);
    const ChunkEncoder::Chunk chunk = encoder.Finish(OneIn(2));
    return {chunk.data, chunk.data + chunk.bytes};
  }

  // Other counts, index or tag in the header, or another length.
  void Damage(std::vector<uint8_t>* chunk) {
    constexpr int64_t kCounts[] = {16, 20, 24, 28};  // 32 bits each
    switch (Below(4)) {
      case 0:
      case 1: {
        const uint32_t value =
            static_cast<uint32_t>(OneIn(2) ? Extreme() : Below(8));
        std::memcpy(chunk->data() + kCounts[Below(4)], &value, sizeof(value));
        return;
      }
      case 2:
        chunk->resize(Below(2 * static_cast<int64_t>(chunk->size())));
        return;
      default:
        (*chunk)[4 + Below(static_cast<int64_t>(chunk->size()) - 4)] ^=
            1 << Below(8);
    }
  }

  StoredRows Rows(const Table& table) {
    StoredRows stored;
    for (const Field& field : table.layout().fields()) {
      stored.fields.push_back(
          {field.name, field.type, field.count, field.offset});
    }
    stored.row_bytes = table.layout().raw_bytes();
    StoredField& field = stored.fields[Below(stored.fields.size())];
    switch (Below(8)) {
      case 0:
        field.offset = Extreme();
        break;
      case 1:
        field.count = Extreme();
        break;
      case 2:
        field.offset = stored.row_bytes - Below(20);
        break;
      case 3:
        stored.row_bytes = Extreme();
        break;
      case 4:
        stored.shards = 1 + Below(3);
        stored.shard = Below(stored.shards);
        break;
    }
    return stored;
  }

 private:
  std::mt19937 random_;
};

// The CRC of what the header says the content is, as far as it is there.
void Seal(const ChunkFormat& format, std::vector<uint8_t>* chunk) {
  if (chunk->size() < static_cast<size_t>(kChunkHeaderBytes)) return;
  uint32_t counts[3];
  std::memcpy(counts, chunk->data() + 20, sizeof(counts));
  const __int128 content = kChunkHeaderBytes +
                           __int128{8} * (__int128{counts[0]} + counts[2]) +
                           __int128{counts[1]} * format.row_bytes;
  const int64_t size = static_cast<int64_t>(chunk->size());
  const int64_t end = content < kChunkHeaderBytes || content > size
                          ? size
                          : static_cast<int64_t>(content);
  const uint32_t crc = ExtendCrc32c(0, chunk->data() + 4, end - 4);
  std::memcpy(chunk->data(), &crc, sizeof(crc));
}

std::map<int64_t, std::vector<float>> RowsOf(const Table& table) {
  const ExportedRows exported = Export(table);
  std::map<int64_t, std::vector<float>> rows;
  for (size_t i = 0; i < exported.signs.size(); ++i) {
    rows[exported.signs[i]] = FloatsOf(exported, 0, i);
  }
  return rows;
}

// What is accepted lies in the chunk.
void ExpectInside(const ChunkFormat& format, const ChunkView& view,
                  const Bytes& bytes) {
  EXPECT_EQ(view.signs_before, bytes.data.get() + kChunkHeaderBytes);
  EXPECT_EQ(view.row_data, view.signs_before + 8 * view.erased_before);
  EXPECT_EQ(view.signs_after, view.row_data + view.rows * format.row_bytes);
  EXPECT_LE(view.signs_after + 8 * view.erased_after,
            bytes.data.get() + bytes.size);
}

TEST(SnapshotFuzzTest, ForgedChunksWithRightChecksums) {
  const uint32_t first = std::random_device()();
  std::printf("seeds from %u on\n", first);
  int accepted = 0, refused = 0, applied = 0;
  for (int i = 0; i < kSeeds; ++i) {
    const uint32_t seed = first + static_cast<uint32_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Forger forger(seed);
    const auto table = MakeTable("adagrad", kDim);
    Pull(table.get(), Range(0, 5), true);
    const auto before = RowsOf(*table);
    const StoredRows stored = forger.Rows(*table);
    const int64_t row_bytes = table->layout().raw_bytes();
    const ChunkFormat written = {32 + row_bytes * (1 + forger.Below(9)),
                                 row_bytes, kTag};
    std::vector<uint8_t> chunk = forger.Chunk(written);
    if (!forger.OneIn(4)) forger.Damage(&chunk);
    ChunkFormat format = written;
    if (forger.OneIn(8)) format.chunk_bytes = forger.Extreme();
    if (forger.OneIn(8)) format.row_bytes = forger.Extreme();
    Seal(format, &chunk);
    const Bytes bytes(chunk);
    const int64_t index = forger.OneIn(8) ? forger.Extreme() : 0;
    ChunkView view;
    Status status =
        DecodeChunk(format, bytes.data.get(), bytes.size, index, &view);
    if (!status.ok()) {
      ++refused;
      EXPECT_FALSE(status.message().empty());
      continue;
    }
    ++accepted;
    ExpectInside(format, view, bytes);
    CheckShard(view, format.row_bytes, 0, 1 + forger.Below(2)).ok();
    // As the caller does, who has one number of bytes of a row.
    if (stored.row_bytes != format.row_bytes) {
      table->CheckStoredRows(stored).ok();
      continue;
    }
    int64_t rows = 0;
    status = table->ApplyChunk(stored, view, &rows);
    if (status.ok()) {
      ++applied;
      EXPECT_LE(rows, view.rows);
    } else {
      EXPECT_EQ(RowsOf(*table), before) << status.message();
    }
  }
  // Neither is all refused nor all accepted.
  EXPECT_GT(accepted, kSeeds / 8);
  EXPECT_GT(applied, kSeeds / 16);
  EXPECT_GT(refused, kSeeds / 8);
}

TEST(SnapshotFuzzTest, SizesOfChunksOfAnyFile) {
  for (const int64_t chunk_bytes : kExtremes) {
    if (chunk_bytes < 1) continue;
    const ChunkFormat format = {chunk_bytes, 16, kTag};
    for (const int64_t file_bytes : kExtremes) {
      if (file_bytes < 0) continue;
      for (const int64_t index : kExtremes) {
        const int64_t size = ChunkSize(format, file_bytes, index);
        EXPECT_GE(size, 0);
        EXPECT_LE(size, std::min(chunk_bytes, file_bytes));
        if (index > 0 && chunk_bytes > file_bytes) {
          EXPECT_EQ(size, 0);
        }
      }
    }
  }
}

TEST(SnapshotFuzzTest, FormatsOutOfRange) {
  EXPECT_EQ(CheckChunkFormat({1 << 20, 7, kTag}).message(),
            "row_bytes must be from 8 to 16777216, but it is 7.");
  EXPECT_EQ(CheckChunkFormat({1 << 20, INT64_MAX, kTag}).message(),
            "row_bytes must be from 8 to 16777216, but it is "
            "9223372036854775807.");
  EXPECT_EQ(CheckChunkFormat({39, 8, kTag}).message(),
            "chunk_bytes must be from 40 to 1048576 for rows of 8 bytes, but "
            "it is 39.");
  EXPECT_FALSE(CheckChunkFormat({(1 << 20) + 1, 8, kTag}).ok());
  EXPECT_TRUE(CheckChunkFormat({1 << 20, 8, kTag}).ok());
  EXPECT_TRUE(CheckChunkFormat(
                  {ChunkBytesFor(kMaxStoredRowBytes), kMaxStoredRowBytes, kTag})
                  .ok());
}

TEST(SnapshotFuzzTest, AFieldBeyondTheEndOfARow) {
  const auto table = MakeTable("sgd", kDim);
  for (const int64_t row_bytes : {int64_t{20}, INT64_MAX}) {
    for (const int64_t offset : {int64_t{9}, INT64_MAX - 3, INT64_MAX}) {
      if (offset == 9 && row_bytes == INT64_MAX) continue;
      StoredRows stored;
      stored.fields = {{"weights", FieldType::kFloat32, kDim, offset}};
      stored.row_bytes = row_bytes;
      EXPECT_PRED2(Says, table->CheckStoredRows(stored).message(),
                   "should be at byte " + std::to_string(offset));
    }
  }
}

TEST(SnapshotFuzzTest, SignsOfAnotherShard) {
  const int64_t signs[] = {0, 1, 2, 3, 4, 5, 6, 7};
  ChunkView view = {};
  for (int part = 0; part < 3; ++part) {
    view.erased_before = part == 0 ? 8 : 0;
    view.rows = part == 1 ? 8 : 0;
    view.erased_after = part == 2 ? 8 : 0;
    view.signs_before = view.row_data = view.signs_after =
        reinterpret_cast<const uint8_t*>(signs);
    EXPECT_TRUE(CheckShard(view, 8, 0, 1).ok());
    const Status status = CheckShard(view, 8, 0, 2);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_PRED2(Says, status.message(),
                 "of shard 1, but should hold signs of shard 0 alone.");
  }
}

}  // namespace
}  // namespace tf_ext
