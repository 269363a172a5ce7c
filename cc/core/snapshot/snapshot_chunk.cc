// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/snapshot_chunk.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/crc32c.h"
#include "cc/core/support/checked_math.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

constexpr int64_t kUsualChunkBytes = 1 << 20;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSignBytes = sizeof(int64_t);

struct Header {
  uint32_t crc;
  char magic[4];
  uint64_t tag;
  uint32_t index;
  uint32_t erased_before;
  uint32_t rows;
  uint32_t erased_after;
};
static_assert(sizeof(Header) == kChunkHeaderBytes, "as in docs/snapshots.md");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "snapshots are little-endian");

constexpr char kMagic[4] = {'T', 'F', 'X', 'C'};

uint32_t CrcOf(const uint8_t* chunk, int64_t content_bytes) {
  return ExtendCrc32c(0, chunk + sizeof(Header::crc),
                      content_bytes - sizeof(Header::crc));
}

// That of all bytes of a chunk, whose content's is known already.
uint32_t CrcOfAll(const uint8_t* chunk, int64_t content_bytes, int64_t bytes,
                  uint32_t crc) {
  const uint32_t whole =
      CombineCrc32c(ExtendCrc32c(0, chunk, sizeof(Header::crc)), crc,
                    content_bytes - sizeof(Header::crc));
  return ExtendCrc32c(whole, chunk + content_bytes, bytes - content_bytes);
}

std::string Hex(uint64_t value, int digits) {
  char text[20];
  std::snprintf(text, sizeof(text), "%0*llx", digits,
                static_cast<unsigned long long>(value));
  return text;
}

Status Damage(int64_t offset, const std::string& what) {
  return Status::DataLoss("damaged at byte " + std::to_string(offset) + ": " +
                          what);
}

// The first byte of [begin, end) that is not zero; end if all are.
int64_t FirstNonZero(const uint8_t* data, int64_t begin, int64_t end) {
  return std::find_if(data + begin, data + end,
                      [](uint8_t byte) { return byte != 0; }) -
         data;
}

}  // namespace

int64_t ChunkBytesFor(int64_t row_bytes) {
  const int64_t least =
      std::max(kUsualChunkBytes, kChunkHeaderBytes + row_bytes);
  return (least + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Status CheckChunkFormat(const ChunkFormat& format) {
  if (format.row_bytes < kSignBytes || format.row_bytes > kMaxStoredRowBytes) {
    return Invalid("row_bytes must be from ", kSignBytes, " to ",
                   kMaxStoredRowBytes, ", but it is ", format.row_bytes, ".");
  }
  const int64_t least = kChunkHeaderBytes + format.row_bytes;
  const int64_t most = ChunkBytesFor(format.row_bytes);
  if (format.chunk_bytes < least || format.chunk_bytes > most) {
    return Invalid("chunk_bytes must be from ", least, " to ", most,
                   " for rows of ", format.row_bytes, " bytes, but it is ",
                   format.chunk_bytes, ".");
  }
  return Status::Ok();
}

ChunkEncoder::ChunkEncoder(const ChunkFormat& format)
    : format_(format), buffer_(format.chunk_bytes) {}

void ChunkEncoder::AddRows(int64_t n) {
  used_ += n * format_.row_bytes;
  rows_ += static_cast<uint32_t>(n);
}

void ChunkEncoder::AddErased(const int64_t* signs, int64_t n, bool after) {
  if (n == 0) return;
  std::memcpy(buffer_.data() + used_, signs, n * kSignBytes);
  used_ += n * kSignBytes;
  (after ? erased_after_ : erased_before_) += static_cast<uint32_t>(n);
}

ChunkEncoder::Chunk ChunkEncoder::Finish(bool last) {
  Header header = {0,     {},           format_.tag, index_++, erased_before_,
                   rows_, erased_after_};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::memcpy(buffer_.data(), &header, sizeof(header));
  header.crc = CrcOf(buffer_.data(), used_);
  std::memcpy(buffer_.data(), &header.crc, sizeof(header.crc));
  const int64_t bytes = last ? used_ : format_.chunk_bytes;
  std::fill(buffer_.begin() + used_, buffer_.begin() + bytes, uint8_t{0});
  const uint32_t crc = CrcOfAll(buffer_.data(), used_, bytes, header.crc);
  used_ = kChunkHeaderBytes;
  erased_before_ = rows_ = erased_after_ = 0;
  return {buffer_.data(), bytes, crc};
}

int64_t ChunkSize(const ChunkFormat& format, int64_t file_bytes,
                  int64_t index) {
  // Not past the end, where the product could overflow.
  if (index < 0 || index > file_bytes / format.chunk_bytes) return 0;
  return std::clamp<int64_t>(file_bytes - index * format.chunk_bytes, 0,
                             format.chunk_bytes);
}

Status DecodeChunk(const ChunkFormat& format, const uint8_t* data,
                   int64_t bytes, int64_t index, ChunkView* view) {
  TF_EXT_RETURN_IF_ERROR(CheckChunkFormat(format));
  if (index < 0 || index > std::numeric_limits<uint32_t>::max()) {
    return Invalid("the index of a chunk is ", index,
                   "; it must be from 0 to 4294967295.");
  }
  const int64_t offset = index * format.chunk_bytes;
  if (bytes < kChunkHeaderBytes) {
    return Damage(offset, "a chunk of " + std::to_string(bytes) +
                              " bytes; its header alone has " +
                              std::to_string(kChunkHeaderBytes) + ".");
  }
  Header header;
  std::memcpy(&header, data, sizeof(header));
  const int64_t signs = int64_t{header.erased_before} + header.erased_after;
  const int64_t content =
      SaturatedAdd(kChunkHeaderBytes + signs * kSignBytes,
                   SaturatedMultiply(header.rows, format.row_bytes));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Damage(offset + offsetof(Header, magic),
                  "no chunk begins here (its magic is missing).");
  }
  if (content > bytes) {
    return Damage(offset, "a chunk of " + std::to_string(content) +
                              " bytes, of which " + std::to_string(bytes) +
                              " are there.");
  }
  const uint32_t crc = CrcOf(data, content);
  if (crc != header.crc) {
    return Damage(offset, "the chunk's CRC32C should be " + Hex(header.crc, 8) +
                              " and is " + Hex(crc, 8) + ".");
  }
  if (header.tag != format.tag || header.index != index) {
    return Damage(offset, "chunk " + std::to_string(header.index) +
                              " of the file with tag " + Hex(header.tag, 16) +
                              "; this is chunk " + std::to_string(index) +
                              " of the one with tag " + Hex(format.tag, 16) +
                              ".");
  }
  const int64_t padding = FirstNonZero(data, content, bytes);
  if (padding < bytes) {
    return Damage(offset + padding, "padding that is not zero.");
  }
  view->erased_before = header.erased_before;
  view->rows = header.rows;
  view->erased_after = header.erased_after;
  view->signs_before = data + kChunkHeaderBytes;
  view->row_data = view->signs_before + header.erased_before * kSignBytes;
  view->signs_after = view->row_data + header.rows * format.row_bytes;
  view->crc32c = CrcOfAll(data, content, bytes, crc);
  return Status::Ok();
}

Status CheckShard(const ChunkView& chunk, int64_t row_bytes, int64_t shard,
                  int64_t shards) {
  const auto check = [&](const uint8_t* signs, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; ++i) {
      int64_t sign;
      std::memcpy(&sign, signs + i * step, sizeof(sign));
      const int64_t found = ShardOf(sign, shards);
      if (found == shard) continue;
      return Status::DataLoss("holds the sign " + std::to_string(sign) +
                              " of shard " + std::to_string(found) +
                              ", but should hold signs of shard " +
                              std::to_string(shard) + " alone.");
    }
    return Status::Ok();
  };
  TF_EXT_RETURN_IF_ERROR(
      check(chunk.signs_before, chunk.erased_before, kSignBytes));
  TF_EXT_RETURN_IF_ERROR(check(chunk.row_data, chunk.rows, row_bytes));
  return check(chunk.signs_after, chunk.erased_after, kSignBytes);
}

}  // namespace tf_ext
