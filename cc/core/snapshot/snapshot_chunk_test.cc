// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/snapshot_chunk.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/snapshot/crc32c.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

constexpr ChunkFormat kFormat = {128, 24, 0x1122334455667788};

// Fills a chunk with a sign erased before, `rows` rows and one erased after.
std::vector<uint8_t> Encode(ChunkEncoder* encoder, int rows, bool last) {
  const int64_t before = -1, after = 5;
  encoder->AddErased(&before, 1, false);
  for (int row = 0; row < rows; ++row) {
    std::memset(encoder->rows_end(), row + 1, kFormat.row_bytes);
    encoder->AddRows(1);
  }
  encoder->AddErased(&after, 1, true);
  const ChunkEncoder::Chunk chunk = encoder->Finish(last);
  return {chunk.data, chunk.data + chunk.bytes};
}

Status Decode(const std::vector<uint8_t>& bytes, int64_t index,
              ChunkView* view) {
  return DecodeChunk(kFormat, bytes.data(), bytes.size(), index, view);
}

TEST(SnapshotChunkTest, ReadsBackWhatWasWritten) {
  ChunkEncoder encoder(kFormat);
  EXPECT_EQ(encoder.RoomForRows(), 4);
  const std::vector<uint8_t> first = Encode(&encoder, 3, false);
  const std::vector<uint8_t> last = Encode(&encoder, 1, true);
  EXPECT_EQ(first.size(), 128u);
  EXPECT_EQ(last.size(), 32u + 8 + 24 + 8);
  ChunkView view;
  ASSERT_TRUE(Decode(first, 0, &view).ok());
  EXPECT_EQ(view.erased_before, 1);
  EXPECT_EQ(view.rows, 3);
  EXPECT_EQ(view.erased_after, 1);
  int64_t sign;
  std::memcpy(&sign, view.signs_before, sizeof(sign));
  EXPECT_EQ(sign, -1);
  std::memcpy(&sign, view.signs_after, sizeof(sign));
  EXPECT_EQ(sign, 5);
  EXPECT_EQ(view.row_data[2 * 24], 3);
  EXPECT_EQ(view.crc32c, ExtendCrc32c(0, first.data(), first.size()));
  ASSERT_TRUE(Decode(last, 1, &view).ok());
  EXPECT_EQ(view.rows, 1);
}

TEST(SnapshotChunkTest, AnEmptyChunkIsAHeader) {
  ChunkEncoder encoder(kFormat);
  EXPECT_TRUE(encoder.empty());
  const ChunkEncoder::Chunk chunk = encoder.Finish(true);
  EXPECT_EQ(chunk.bytes, kChunkHeaderBytes);
  EXPECT_EQ(chunk.crc32c, ExtendCrc32c(0, chunk.data, chunk.bytes));
  ChunkView view;
  ASSERT_TRUE(DecodeChunk(kFormat, chunk.data, chunk.bytes, 0, &view).ok());
  EXPECT_EQ(view.rows, 0);
}

TEST(SnapshotChunkTest, EveryFlippedBitIsFound) {
  ChunkEncoder encoder(kFormat);
  const std::vector<uint8_t> whole = Encode(&encoder, 2, false);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::vector<uint8_t> bytes = whole;
    bytes[bit / 8] ^= 1 << (bit % 8);
    ChunkView view;
    const Status status = Decode(bytes, 0, &view);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bit;
    EXPECT_EQ(status.message().find("damaged at byte "), 0u);
  }
}

TEST(SnapshotChunkTest, EveryCutIsFound) {
  ChunkEncoder encoder(kFormat);
  std::vector<uint8_t> bytes = Encode(&encoder, 2, true);
  ChunkView view;
  while (!bytes.empty()) {
    bytes.pop_back();
    EXPECT_FALSE(Decode(bytes, 0, &view).ok()) << bytes.size();
  }
}

TEST(SnapshotChunkTest, AChunkOfAnotherPlaceIsRefused) {
  ChunkEncoder encoder(kFormat);
  const std::vector<uint8_t> bytes = Encode(&encoder, 1, false);
  ChunkView view;
  EXPECT_EQ(Decode(bytes, 1, &view).message(),
            "damaged at byte 128: chunk 0 of the file with tag "
            "1122334455667788; this is chunk 1 of the one with tag "
            "1122334455667788.");
  ChunkFormat other = kFormat;
  other.tag = 1;
  EXPECT_FALSE(DecodeChunk(other, bytes.data(), 128, 0, &view).ok());
}

TEST(SnapshotChunkTest, IndicesHave32Bits) {
  ChunkEncoder encoder(kFormat);
  std::vector<uint8_t> bytes = Encode(&encoder, 1, true);
  const uint32_t last = UINT32_MAX;
  std::memcpy(&bytes[16], &last, sizeof(last));
  const uint32_t crc = ExtendCrc32c(0, &bytes[4], bytes.size() - 4);
  std::memcpy(bytes.data(), &crc, sizeof(crc));
  ChunkView view;
  EXPECT_EQ(Decode(bytes, UINT32_MAX, &view).message(), "");
  EXPECT_EQ(view.rows, 1);
  for (const int64_t index : {int64_t{-1}, int64_t{UINT32_MAX} + 1}) {
    EXPECT_EQ(Decode(bytes, index, &view).message(),
              "the index of a chunk is " + std::to_string(index) +
                  "; it must be from 0 to 4294967295.");
  }
}

TEST(SnapshotChunkTest, FormatsWithinBounds) {
  for (const auto& [chunk_bytes, row_bytes] :
       std::vector<std::pair<int64_t, int64_t>>{
           {40, 8}, {1 << 20, 8}, {132, 100}, {1 << 20, 100}}) {
    EXPECT_TRUE(CheckChunkFormat({chunk_bytes, row_bytes, 0}).ok());
  }
  for (const int64_t row_bytes : {int64_t{7}, kMaxStoredRowBytes + 1}) {
    EXPECT_EQ(CheckChunkFormat({1 << 20, row_bytes, 0}).message(),
              "row_bytes must be from 8 to " +
                  std::to_string(kMaxStoredRowBytes) + ", but it is " +
                  std::to_string(row_bytes) + ".");
  }
  for (const int64_t chunk_bytes : {131, (1 << 20) + 1}) {
    EXPECT_EQ(CheckChunkFormat({chunk_bytes, 100, 0}).message(),
              "chunk_bytes must be from 132 to 1048576 for rows of 100 bytes, "
              "but it is " +
                  std::to_string(chunk_bytes) + ".");
  }
}

TEST(SnapshotChunkTest, DamageNamesTheByte) {
  ChunkEncoder encoder(kFormat);
  std::vector<uint8_t> bytes = Encode(&encoder, 1, false);
  bytes[120] = 1;
  ChunkView view;
  EXPECT_EQ(Decode(bytes, 0, &view).message(),
            "damaged at byte 120: padding that is not zero.");
  bytes[24] = 200;
  EXPECT_EQ(Decode(bytes, 0, &view).message(),
            "damaged at byte 0: a chunk of 4848 bytes, of which 128 are "
            "there.");
}

TEST(SnapshotChunkTest, AChunkHasRoomForOneRowAtLeast) {
  EXPECT_EQ(ChunkBytesFor(136), 1 << 20);
  EXPECT_EQ(ChunkBytesFor((1 << 20) - 32), 1 << 20);
  EXPECT_EQ(ChunkBytesFor((1 << 20) - 31), (1 << 20) + 4096);
}

TEST(SnapshotChunkTest, SizesOfTheChunksOfAFile) {
  EXPECT_EQ(ChunkSize(kFormat, 300, 0), 128);
  EXPECT_EQ(ChunkSize(kFormat, 300, 2), 44);
  EXPECT_EQ(ChunkSize(kFormat, 300, 3), 0);
  EXPECT_EQ(ChunkSize(kFormat, 256, 1), 128);
  EXPECT_EQ(ChunkSize(kFormat, 256, 2), 0);
  EXPECT_EQ(ChunkSize(kFormat, 300, -1), 0);
  EXPECT_EQ(ChunkSize(kFormat, 300, INT64_MAX), 0);
}

}  // namespace
}  // namespace tf_ext
