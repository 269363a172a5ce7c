// SPDX-License-Identifier: Apache-2.0
// The rows of a stripe. A row is identified by a number, and its address is
//
//   chunks[row >> shift] + (row & mask) * stride
//
// Rows are stored in chunks, which are appended as needed. A chunk has at most
// 256 KiB (or one row, if that is longer), and its number of rows is a power of
// two. Chunks are large enough that their addresses stay in the L2 cache, and
// small enough that the unused parts of the last chunks of 64 stripes are
// negligible.
//
// A bitmap distinguishes live rows from free ones. A second bitmap has a bit
// for each 64 rows, which is set if one of them is free. The lowest free row is
// reused first, before new ones are appended, so that churn does not increase
// memory use, and so that free rows accumulate at the end, where their memory
// can be returned.
//
// Rows move only when the table is compacted: the highest live row moves to the
// lowest free number (MoveDown), until the last chunks contain no rows. A chunk
// can also move as a whole (Relocate), in which case its rows keep their
// numbers.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_SLABS_H_
#define TF_EXT_CC_CORE_TABLE_ROW_SLABS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/table/row_layout.h"
#include "cc/core/table/slab_memory.h"

namespace tf_ext {

class RowSlabs {
 public:
  static constexpr uint32_t kMaxRows = kNoRow - 1;

  // The size of the SlabMemory pieces for rows of `stride` bytes.
  static size_t ChunkBytes(int64_t stride) {
    return static_cast<size_t>(stride) << ShiftOf(stride);
  }

  // `memory`, with pieces of ChunkBytes(stride), must outlive this object.
  RowSlabs(int64_t stride, SlabMemory* memory)
      : stride_(static_cast<size_t>(stride)),
        memory_(memory),
        shift_(ShiftOf(stride)),
        mask_((1u << shift_) - 1) {}
  ~RowSlabs() {
    for (size_t c = 0; c < chunks_.size(); ++c) memory_->Release(Chunk(c));
  }
  RowSlabs(const RowSlabs&) = delete;
  RowSlabs& operator=(const RowSlabs&) = delete;

  // `other` must hold rows of the same table.
  void swap(RowSlabs& other) noexcept {
    std::swap(used_, other.used_);
    std::swap(touched_, other.touched_);
    std::swap(live_count_, other.live_count_);
    ++frees_;
    ++other.frees_;
    std::swap(first_open_, other.first_open_);
    chunks_.swap(other.chunks_);
    regions_.swap(other.regions_);
    live_.swap(other.live_);
    open_.swap(other.open_);
  }

  uint8_t* At(uint32_t row) const {
    return chunks_[row >> shift_] + (row & mask_) * stride_;
  }
  int64_t SignAt(uint32_t row) const { return LoadSign(At(row)); }
  // Prefetches what At reads first.
  void PrefetchChunks() const { __builtin_prefetch(chunks_.data()); }

  static int64_t LoadSign(const uint8_t* row) {
    int64_t sign;
    std::memcpy(&sign, row + RowLayout::kSignOffset, sizeof(sign));
    return sign;
  }
  static void StoreSign(uint8_t* row, int64_t sign) {
    std::memcpy(row + RowLayout::kSignOffset, &sign, sizeof(sign));
  }

  // Whether all row numbers are in use, so that Allocate must not be called.
  bool full() const { return free() == 0 && used_ == kMaxRows; }

  // Returns a live row with arbitrary bytes. Must not be called when full. May
  // throw std::bad_alloc, in which case nothing changes.
  uint32_t Allocate() {
    if (free() > 0) {
      const uint32_t row = FirstFree();
      SetLive(row);
      CloseIfFull(row / 64);
      return row;
    }
    const uint32_t row = used_;
    if ((row >> shift_) == chunks_.size()) AddChunk();
    ++used_;
    touched_ = std::max(touched_, used_);
    SetLive(row);
    return row;
  }

  void Free(uint32_t row) {
    ++frees_;
    live_[row / 64] &= ~Bit(row);
    --live_count_;
    open_[row / 4096] |= Bit(row / 64);
    first_open_ = std::min(first_open_, row / 4096);
  }

  // The first live row at or after `row`; kNoRow if there is none.
  uint32_t NextLive(uint32_t row) const {
    if (row >= used_) return kNoRow;
    size_t word = row / 64;
    uint64_t bits = live_[word] & (~uint64_t{0} << (row % 64));
    while (bits == 0) {
      if (++word * 64 >= used_) return kNoRow;
      bits = live_[word];
    }
    return static_cast<uint32_t>(word * 64 + __builtin_ctzll(bits));
  }

  // A bitmap of the live rows among 64 * word ... 64 * word + 63.
  uint64_t LiveBits(size_t word) const {
    return word * 64 < used_ ? live_[word] : 0;
  }

  int64_t live() const { return live_count_; }
  // All live rows have numbers below this.
  uint32_t used() const { return used_; }
  int64_t free() const { return used_ - live_count_; }
  // Changes whenever a row is freed or moves.
  uint64_t frees() const { return frees_; }
  // The memory that rows have touched so far, and the bitmaps.
  int64_t bytes() const {
    return static_cast<int64_t>(touched_ * stride_ +
                                (live_.capacity() + open_.capacity()) *
                                    sizeof(uint64_t));
  }

  // Forgets the free rows above the last live one.
  void Trim() {
    size_t words = (size_t{used_} + 63) / 64;
    while (words > 0 && live_[words - 1] == 0) {
      --words;
      open_[words / 64] &= ~Bit(words);
    }
    if (words == 0) {
      used_ = 0;
      return;
    }
    used_ =
        static_cast<uint32_t>(words * 64 - __builtin_clzll(live_[words - 1]));
    CloseIfFull(words - 1);
  }

  // Renumbers the highest live row to the lowest free number. The caller copies
  // the bytes, which remain valid until the next Allocate or TakeUnusedChunks.
  // Returns false if there is no free number; there is nothing left to Trim
  // then.
  bool MoveDown(uint32_t* from, uint32_t* to) {
    Trim();
    if (free() == 0) return false;
    *from = used_ - 1;
    *to = FirstFree();
    SetLive(*to);
    CloseIfFull(*to / 64);
    Free(*from);
    Trim();
    return true;
  }

  // Detaches the chunks after the last row and transfers their ownership to the
  // caller. May throw std::bad_alloc, in which case nothing changes.
  std::vector<SlabMemory::Piece> TakeUnusedChunks() {
    const size_t kept = (size_t{used_} + mask_) >> shift_;
    std::vector<SlabMemory::Piece> unused;
    unused.reserve(chunks_.size() - kept);
    for (size_t c = kept; c < chunks_.size(); ++c) unused.push_back(Chunk(c));
    chunks_.resize(kept);
    regions_.resize(kept);
    touched_ =
        static_cast<uint32_t>(std::min<size_t>(touched_, kept << shift_));
    live_.resize(((kept << shift_) + 63) / 64);
    open_.resize((live_.size() + 63) / 64);
    live_.shrink_to_fit();
    open_.shrink_to_fit();
    return unused;
  }
  // Returns the pages of the last chunk that only former rows have touched to
  // the system, if pages are smaller than chunks.
  void DiscardEnd() {
    if (chunks_.empty() || touched_ == used_) return;
    const size_t rows = used_ - ((chunks_.size() - 1) << shift_);
    if (memory_->DiscardEnd(Chunk(chunks_.size() - 1), rows * stride_)) {
      touched_ = used_;
    }
  }

  size_t chunks() const { return chunks_.size(); }
  SlabMemory::Piece Chunk(size_t c) const { return {chunks_[c], regions_[c]}; }
  // Moves a chunk to the piece `to`; returns the piece where it was.
  SlabMemory::Piece Relocate(size_t c, const SlabMemory::Piece& to) {
    const SlabMemory::Piece from = Chunk(c);
    const size_t rows =
        std::clamp<int64_t>(int64_t{used_} - static_cast<int64_t>(c << shift_),
                            0, int64_t{mask_} + 1);
    std::memcpy(to.data, from.data, rows * stride_);
    chunks_[c] = to.data;
    regions_[c] = to.region;
    return from;
  }

 private:
  static constexpr size_t kMaxChunkBytes = 256 << 10;

  static int ShiftOf(int64_t stride) {
    int shift = 0;
    while ((static_cast<size_t>(stride) << (shift + 1)) <= kMaxChunkBytes) {
      ++shift;
    }
    return shift;
  }
  static uint64_t Bit(size_t row) { return uint64_t{1} << (row % 64); }

  void SetLive(uint32_t row) {
    live_[row / 64] |= Bit(row);
    ++live_count_;
  }
  // There must be a free row.
  uint32_t FirstFree() {
    while (open_[first_open_] == 0) ++first_open_;
    const uint32_t word =
        first_open_ * 64 + __builtin_ctzll(open_[first_open_]);
    return word * 64 + __builtin_ctzll(~live_[word]);
  }
  // Must be called when the word may have no free row any more.
  void CloseIfFull(size_t word) {
    uint64_t free = ~live_[word];
    if (word == used_ / 64) free &= Bit(used_) - 1;
    if (free == 0) open_[word / 64] &= ~Bit(word);
  }

  void AddChunk() {
    const size_t count = chunks_.size() + 1;
    // Harmless if one of the following statements throws.
    live_.resize(((count << shift_) + 63) / 64);
    open_.resize((live_.size() + 63) / 64);
    chunks_.reserve(Grown(count));
    regions_.reserve(Grown(count));
    const SlabMemory::Piece piece = memory_->Take();
    chunks_.push_back(piece.data);
    regions_.push_back(piece.region);
  }
  size_t Grown(size_t count) const {
    return count <= chunks_.capacity() ? count : 2 * count;
  }

  size_t stride_;
  SlabMemory* memory_;
  int shift_;
  uint32_t mask_;
  uint32_t used_ = 0;     // row numbers in use: live and free rows
  uint32_t touched_ = 0;  // rows whose memory has been written to
  int64_t live_count_ = 0;
  uint64_t frees_ = 0;
  std::vector<uint8_t*> chunks_;
  std::vector<SlabMemory::Region*> regions_;  // of the chunks
  std::vector<uint64_t> live_;
  std::vector<uint64_t> open_;
  uint32_t first_open_ = 0;  // all words of open_ before this one are 0
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_SLABS_H_
