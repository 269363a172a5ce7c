// SPDX-License-Identifier: Apache-2.0
// The memory for the rows of a table: pieces of large regions, which all
// stripes share, so that rows can be in huge pages of 2 MiB although the table
// takes hardly more memory than its rows.
//
// Huge pages are used because with pages of 4 KiB, each access to a row of a
// large table costs a page table walk in addition to its own cache lines, and
// each new page costs a fault. Regions are shared, and filled in order, so that
// the table has only one partly used page, not one per stripe. The first region
// has small pages, because the pieces of a small table are nearly empty.
//
// All pieces of a table have the same size. The first free piece is taken, in
// the order of region age and then of address, so released pieces are reused
// first. A region is returned to the system when its last piece is released,
// and a page of a region when no piece that overlaps it is taken. With
// TakeBefore, stripes can move their rows to earlier pieces, so that the
// regions and pages at the end become empty.
#ifndef TF_EXT_CC_CORE_TABLE_SLAB_MEMORY_H_
#define TF_EXT_CC_CORE_TABLE_SLAB_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/support/mutex.h"
#include "cc/core/table/pages.h"

namespace tf_ext {

class SlabMemory {
 public:
  class Region;

  struct Piece {
    uint8_t* data = nullptr;  // nullptr: none
    Region* region = nullptr;
  };

  explicit SlabMemory(size_t piece_bytes)
      : piece_bytes_(Pages::Aligned(piece_bytes)) {}
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  // Aligned to cache lines, with arbitrary bytes. Throws std::bad_alloc.
  Piece Take() {
    const ExclusiveLock lock(mutex_);
    SkipFullRegions();
    if (first_open_ == regions_.size()) AddRegion();
    return TakeFirst();
  }

  // Takes a free piece that precedes `piece`, if there is one.
  Piece TakeBefore(const Piece& piece) {
    const ExclusiveLock lock(mutex_);
    SkipFullRegions();
    if (first_open_ == regions_.size()) return {};
    const Region& open = *regions_[first_open_];
    if (open.number > piece.region->number ||
        (&open == piece.region &&
         open.FirstFree() > IndexOf(open, piece.data))) {
      return {};
    }
    return TakeFirst();
  }

  // The caller should not hold the lock of a stripe, because returning memory
  // to the system takes time.
  void Release(const Piece& piece) {
    std::unique_ptr<Region> empty;  // unmapped after unlocking
    const ExclusiveLock lock(mutex_);
    const auto at = std::lower_bound(
        regions_.begin(), regions_.end(), piece.region->number,
        [](const std::unique_ptr<Region>& region, int64_t number) {
          return region->number < number;
        });
    Region& region = **at;
    const size_t index = IndexOf(region, piece.data);
    region.taken[index] = false;
    --taken_;
    if (--region.taken_count == 0) {
      first_open_ = std::min<size_t>(first_open_, at - regions_.begin());
      empty = std::move(*at);
      regions_.erase(at);
    } else {
      first_open_ = std::min<size_t>(first_open_, at - regions_.begin());
      DiscardAround(region, index);
    }
  }

  // Returns the pages that are entirely within the bytes of a taken piece at
  // and after `begin` to the system; the contents of these bytes become
  // arbitrary. Returns whether there are such pages.
  bool DiscardEnd(const Piece& piece, size_t begin) {
    const size_t start = piece.data - piece.region->pages.data();
    return piece.region->pages.Discard(start + begin, start + piece_bytes_);
  }

  // Whether so many pieces are free that moving the others is worthwhile: at
  // least two regions, and a quarter of all pieces.
  bool scattered() {
    const ExclusiveLock lock(mutex_);
    const size_t all = regions_.size() * PiecesOfRegion();
    return all - taken_ >= 2 * PiecesOfRegion() && (all - taken_) * 4 >= all;
  }

  // One mapping, and which of its pieces are taken.
  class Region {
   public:
    Region(int64_t its_number, size_t piece_count, size_t piece_bytes,
           PageSize page_size)
        : number(its_number),
          pages(piece_count * piece_bytes, page_size),
          taken(piece_count) {}
    size_t FirstFree() const {
      return std::find(taken.begin(), taken.end(), false) - taken.begin();
    }

    const int64_t number;  // increases with each new region
    Pages pages;
    std::vector<bool> taken;
    size_t taken_count = 0;
  };

 private:
  // Also the amount of a table's memory that has small pages.
  static constexpr size_t kRegionBytes = 32 << 20;

  size_t PiecesOfRegion() const {
    return std::max<size_t>(1, kRegionBytes / piece_bytes_);
  }
  size_t IndexOf(const Region& region, const uint8_t* data) const {
    return (data - region.pages.data()) / piece_bytes_;
  }

  void SkipFullRegions() TF_EXT_REQUIRES(mutex_) {
    while (first_open_ < regions_.size() &&
           regions_[first_open_]->taken_count == PiecesOfRegion()) {
      ++first_open_;
    }
  }
  void AddRegion() TF_EXT_REQUIRES(mutex_) {
    regions_.push_back(nullptr);
    try {
      regions_.back() = std::make_unique<Region>(
          next_number_, PiecesOfRegion(), piece_bytes_,
          regions_.size() == 1 ? PageSize::kSmall : PageSize::kHuge);
    } catch (...) {
      regions_.pop_back();
      throw;
    }
    ++next_number_;
  }
  Piece TakeFirst() TF_EXT_REQUIRES(mutex_) {
    Region* const region = regions_[first_open_].get();
    const size_t index = region->FirstFree();
    region->taken[index] = true;
    ++region->taken_count;
    ++taken_;
    return {region->pages.data() + index * piece_bytes_, region};
  }
  // Returns the pages of a free piece that overlap no taken piece to the
  // system.
  void DiscardAround(Region& region, size_t index) {
    size_t begin = index;
    while (begin > 0 && !region.taken[begin - 1]) --begin;
    size_t end = index + 1;
    while (end < region.taken.size() && !region.taken[end]) ++end;
    const size_t page = region.pages.page_bytes();
    const size_t first = index * piece_bytes_ / page * page;
    const size_t last = ((index + 1) * piece_bytes_ + page - 1) / page * page;
    region.pages.Discard(std::max(begin * piece_bytes_, first),
                         end == region.taken.size()
                             ? std::min(region.pages.bytes(), last)
                             : std::min(end * piece_bytes_, last));
  }

  const size_t piece_bytes_;
  Mutex mutex_;
  // By number.
  std::vector<std::unique_ptr<Region>> regions_ TF_EXT_GUARDED_BY(mutex_);
  int64_t next_number_ TF_EXT_GUARDED_BY(mutex_) = 0;
  // Regions before this one have no free piece.
  size_t first_open_ TF_EXT_GUARDED_BY(mutex_) = 0;
  // The number of taken pieces.
  size_t taken_ TF_EXT_GUARDED_BY(mutex_) = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_SLAB_MEMORY_H_
