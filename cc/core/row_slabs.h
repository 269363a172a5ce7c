// The rows of a stripe. They never move: a row is a number, and its place is
//
//   chunks[row >> shift] + (row & mask) * stride
//
// Chunks are appended, of a power of two of rows in at most 256 KiB: large
// enough that their addresses stay in the L2 cache, small enough that what 64
// stripes have not used yet of their last ones does not count. Erased rows are
// chained through their sign and used again first, so that churn does not grow
// memory. A bit a row tells the live ones from the erased ones.
#ifndef TF_EXT_CC_CORE_ROW_SLABS_H_
#define TF_EXT_CC_CORE_ROW_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/row_layout.h"
#include "cc/core/slab_memory.h"

namespace tf_ext {

class RowSlabs {
 public:
  static constexpr uint32_t kMaxRows = kNoRow - 1;

  // `memory` outlives the rows.
  RowSlabs(int64_t stride, SlabMemory* memory)
      : stride_(static_cast<size_t>(stride)), memory_(memory) {
    while ((stride_ << (shift_ + 1)) <= kMaxChunkBytes) ++shift_;
    mask_ = (1u << shift_) - 1;
  }

  uint8_t* At(uint32_t row) const {
    return chunks_[row >> shift_] + (row & mask_) * stride_;
  }
  int64_t SignAt(uint32_t row) const { return LoadSign(At(row)); }

  static int64_t LoadSign(const uint8_t* row) {
    int64_t sign;
    std::memcpy(&sign, row + RowLayout::kSignOffset, sizeof(sign));
    return sign;
  }
  static void StoreSign(uint8_t* row, int64_t sign) {
    std::memcpy(row + RowLayout::kSignOffset, &sign, sizeof(sign));
  }

  // Whether Allocate has a number left.
  bool full() const { return free_ == kNoRow && used_ == kMaxRows; }

  // A live row whose bytes are anything. Not to be called when full. Throws
  // std::bad_alloc and changes nothing then.
  uint32_t Allocate() {
    uint32_t row = free_;
    if (row != kNoRow) {
      free_ = static_cast<uint32_t>(SignAt(row));
    } else {
      row = used_;
      if ((row >> shift_) == chunks_.size()) AddChunk();
      ++used_;
    }
    live_[row / 64] |= Bit(row);
    ++live_count_;
    return row;
  }

  void Free(uint32_t row) {
    live_[row / 64] &= ~Bit(row);
    --live_count_;
    StoreSign(At(row), free_);
    free_ = row;
  }

  // The first live row from `row` on; kNoRow if there is none.
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

  // The live ones of the rows 64 * word ... 64 * word + 63, as bits.
  uint64_t LiveBits(size_t word) const {
    return word * 64 < used_ ? live_[word] : 0;
  }

  int64_t live() const { return live_count_; }
  // Rows have numbers below this.
  uint32_t used() const { return used_; }
  int64_t free() const { return used_ - live_count_; }
  // Memory that rows have touched so far, and the bits.
  int64_t bytes() const {
    return static_cast<int64_t>(used_ * stride_ +
                                live_.capacity() * sizeof(uint64_t));
  }

 private:
  static constexpr size_t kMaxChunkBytes = 256 << 10;

  static uint64_t Bit(uint32_t row) { return uint64_t{1} << (row % 64); }

  void AddChunk() {
    const size_t rows = (chunks_.size() + 1) << shift_;
    live_.resize((rows + 63) / 64);  // harmless if what follows throws
    SlabMemory::Piece piece = memory_->Take(stride_ << shift_);
    if (regions_.empty() || regions_.back() != piece.region) {
      regions_.push_back(std::move(piece.region));
    }
    chunks_.push_back(piece.data);
  }

  size_t stride_;
  SlabMemory* memory_;
  int shift_ = 0;
  uint32_t mask_ = 0;
  uint32_t used_ = 0;  // rows ever handed out
  uint32_t free_ = kNoRow;
  int64_t live_count_ = 0;
  std::vector<uint8_t*> chunks_;
  std::vector<SlabMemory::Region> regions_;  // in which they are
  std::vector<uint64_t> live_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_ROW_SLABS_H_
