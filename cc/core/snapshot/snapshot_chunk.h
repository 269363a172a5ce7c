// SPDX-License-Identifier: Apache-2.0
// The chunks that a snapshot's files are made of: docs/snapshots.md has their
// layout. Memory in, memory out: files are the caller's.
#ifndef TF_EXT_CC_CORE_SNAPSHOT_SNAPSHOT_CHUNK_H_
#define TF_EXT_CC_CORE_SNAPSHOT_SNAPSHOT_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/support/status.h"

namespace tf_ext {

inline constexpr int64_t kChunkHeaderBytes = 32;

// The longest row that files may hold: many times that of any table, and
// short enough that a chunk always fits memory.
inline constexpr int64_t kMaxStoredRowBytes = 16 << 20;

// Bytes of a chunk in files of rows of `row_bytes` bytes, at most
// kMaxStoredRowBytes.
int64_t ChunkBytesFor(int64_t row_bytes);

// What all chunks of a file have in common.
struct ChunkFormat {
  int64_t chunk_bytes;
  int64_t row_bytes;
  uint64_t tag;
};

// Fails (kInvalidArgument) unless a row begins with a sign, is not too long,
// and a chunk has room for one and is not larger than ChunkBytesFor it.
Status CheckChunkFormat(const ChunkFormat& format);

// Fills chunks one after another. The order is that of the layout: signs
// erased before all rows of the file, rows, signs erased after them.
class ChunkEncoder {
 public:
  // Throws std::bad_alloc.
  explicit ChunkEncoder(const ChunkFormat& format);

  // How many more rows, or signs, the chunk has room for.
  int64_t RoomForRows() const { return Room() / format_.row_bytes; }
  int64_t RoomForSigns() const {
    return Room() / static_cast<int64_t>(sizeof(int64_t));
  }

  // Where the next rows go; AddRows takes up those that were put there.
  uint8_t* rows_end() { return buffer_.data() + used_; }
  void AddRows(int64_t n);
  // `after`: whether they were erased after all rows of the file.
  void AddErased(const int64_t* signs, int64_t n, bool after);

  struct Chunk {
    const uint8_t* data;
    int64_t bytes;
    uint32_t crc32c;  // of all bytes
  };
  // The chunk that has been filled, valid until something is added to the
  // next one. `last`: no other follows in the file.
  Chunk Finish(bool last);
  // Whether something was added since.
  bool empty() const { return used_ == kChunkHeaderBytes; }

 private:
  int64_t Room() const { return format_.chunk_bytes - used_; }

  const ChunkFormat format_;
  std::vector<uint8_t> buffer_;
  uint32_t index_ = 0;
  int64_t used_ = kChunkHeaderBytes;
  uint32_t erased_before_ = 0;
  uint32_t rows_ = 0;
  uint32_t erased_after_ = 0;
};

// A chunk that was read and found whole.
struct ChunkView {
  int64_t erased_before;
  int64_t rows;
  int64_t erased_after;
  // Anywhere, as far as alignment goes.
  const uint8_t* signs_before;
  const uint8_t* row_data;  // [rows, row_bytes]
  const uint8_t* signs_after;
  uint32_t crc32c;  // of all bytes, padding too
};

// Bytes of chunk `index` of a file of `file_bytes`; 0: there is none.
int64_t ChunkSize(const ChunkFormat& format, int64_t file_bytes, int64_t index);

// Checks all that can be checked: format, CRC, magic, tag, index, counts, size,
// padding. `data` are the bytes of chunk `index`. The error (kDataLoss) names
// the offset in the file; the caller knows its name.
Status DecodeChunk(const ChunkFormat& format, const uint8_t* data,
                   int64_t bytes, int64_t index, ChunkView* view);

// Fails (kDataLoss) at the first sign, of a row or erased, that is not of shard
// `shard` of `shards`.
Status CheckShard(const ChunkView& chunk, int64_t row_bytes, int64_t shard,
                  int64_t shards);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SNAPSHOT_SNAPSHOT_CHUNK_H_
