// SPDX-License-Identifier: Apache-2.0
// Counts from 1 to 255 by hash of a sign, in an open-addressed table.
//
//   struct Line {           // 64 bytes, one cache line
//     uint64_t hashes[7];
//     uint8_t counts[7];    // 0: the cell is empty
//     uint8_t passed;       // counters that were inserted past this line
//   };
//
// The hash of a sign is a bijection, and whole hashes are compared, so counts
// are exact: two signs never share a counter, and the sign can be recovered.
//
// find:   starting at the home line, compare the hashes, and stop at a line
//         that no counter has passed.
// insert: into the first line with an empty cell; increment `passed` of the
//         full lines on the way.
// remove: empty the cell; decrement `passed` of the lines on the way. There are
//         no tombstones. `passed` saturates: at 255 it is no longer decremented
//         until the table is rebuilt.
//
// At the maximum load of 7/10, a counter takes 13 bytes, and finding an absent
// sign reads 1.3 lines on average, of which all but the first are adjacent in
// memory. A full table grows by a half, so a counter takes at most 19.6 bytes.
// Churn leaves counters behind lines that have become free, so a table is also
// rebuilt after as many removals as it can hold twice.
#ifndef TF_EXT_CC_CORE_TABLE_ADMISSION_COUNTER_LINES_H_
#define TF_EXT_CC_CORE_TABLE_ADMISSION_COUNTER_LINES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "cc/core/table/pages.h"

namespace tf_ext {

class CounterLines {
 public:
  static constexpr int kCells = 7;
  static constexpr uint8_t kMostCount = 255;

  // `phase`, in [0, 1): tables of different phases grow at different sizes.
  explicit CounterLines(double phase = 0) : phase_(phase) {}
  CounterLines(CounterLines&& other) noexcept : phase_(other.phase_) {
    swap(other);
  }
  CounterLines& operator=(CounterLines&& other) noexcept {
    swap(other);
    return *this;
  }
  // Except for the phase.
  void swap(CounterLines& other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(count_, other.count_);
    std::swap(size_, other.size_);
    std::swap(removed_, other.removed_);
    std::swap(level_, other.level_);
  }

  // The number of counters.
  int64_t size() const { return static_cast<int64_t>(size_); }
  int64_t bytes() const { return static_cast<int64_t>(pages_.bytes()); }

  void Prefetch(uint64_t hash) const {
    if (count_ > 0) __builtin_prefetch(lines() + Home(hash), 1);
  }

  // The count of the hash; nullptr: there is none. Valid until the next
  // insertion.
  uint8_t* Find(uint64_t hash) const {
    const Place place = Walk(hash);
    return place.cell < 0 ? nullptr : &lines()[place.line].counts[place.cell];
  }

  // Adds a counter, which must be absent; `count` is at least 1. Throws
  // std::bad_alloc, and then nothing has changed.
  void Insert(uint64_t hash, uint8_t count) {
    const size_t capacity = Capacity(count_);
    if (size_ >= capacity || removed_ > 2 * capacity) {
      Rebuild(size_ >= capacity - capacity / 8 ? level_ + 1 : level_);
    }
    Put(hash, count);
    ++size_;
  }

  // Makes room for `n` more counters. Required before inserting many in the
  // order of home lines, which would otherwise overfill the first lines of a
  // small table. Throws std::bad_alloc.
  void Reserve(int64_t n) {
    if (n == 0) return;
    int level = std::max(level_, 0);
    while (Capacity(LinesAt(level)) < size_ + static_cast<size_t>(n)) ++level;
    if (level > level_) Rebuild(level);
  }

  // Returns the count that was removed; 0: there was none.
  uint8_t Remove(uint64_t hash) {
    if (size_ == 0) return 0;
    const Place place = Walk(hash);
    if (place.cell < 0) return 0;
    for (size_t at = Home(hash); at != place.line; at = Next(at)) {
      uint8_t& passed = lines()[at].passed;
      if (passed != kMostPassed) --passed;
    }
    --size_;
    ++removed_;
    return std::exchange(lines()[place.line].counts[place.cell], 0);
  }

  // The number of lines that a search for the hash reads.
  size_t SearchLength(uint64_t hash) const {
    if (count_ == 0) return 0;
    const size_t home = Home(hash);
    const size_t last = Walk(hash).line;
    return last - home + (last < home ? count_ : 0) + 1;
  }

  // Calls visit(hash, count) for all counters.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (size_t at = 0; at < count_; ++at) {
      const Line& line = lines()[at];
      for (int cell = 0; cell < kCells; ++cell) {
        if (line.counts[cell] != 0) visit(line.hashes[cell], line.counts[cell]);
      }
    }
  }

  // The number of keys, which are the lower halves of hashes, per `lines`
  // lines. At least 1, and 2^32 for all of a small table.
  uint64_t KeysOf(uint64_t lines) const {
    constexpr uint64_t kKeys = uint64_t{1} << 32;
    return count_ <= lines ? kKeys
                           : std::max<uint64_t>(1, kKeys * lines / count_);
  }

  // Calls visit(hash, count) for the counters whose key is from `first` to
  // `last`. Home lines are in the order of keys at any size, so a walk over all
  // keys can release the lock in between: it visits what is there throughout
  // exactly once.
  template <typename Visit>
  void ForEachOf(uint32_t first, uint32_t last, const Visit& visit) const {
    if (size_ == 0) return;
    const size_t homes = Home(last) - Home(first);
    size_t at = Home(first);
    for (size_t seen = 0; seen < count_; ++seen, at = Next(at)) {
      const Line& line = lines()[at];
      for (int cell = 0; cell < kCells; ++cell) {
        const uint32_t key = static_cast<uint32_t>(line.hashes[cell]);
        if (line.counts[cell] != 0 && first <= key && key <= last) {
          visit(line.hashes[cell], line.counts[cell]);
        }
      }
      if (seen >= homes && line.passed == 0) break;
    }
  }

  // Frees memory if most of the cells are empty. Throws std::bad_alloc.
  void Shrink() {
    if (size_ == 0) {
      CounterLines(phase_).swap(*this);
      return;
    }
    int level = level_;
    while (level > 0 && size_ < Capacity(LinesAt(level - 1)) / 8 * 7) --level;
    if (level < level_ - 1) Rebuild(level);
  }

 private:
  static constexpr size_t kFirstLines = 8;
  static constexpr double kGrowth = 1.5;
  static constexpr uint8_t kMostPassed = std::numeric_limits<uint8_t>::max();

  struct Line {
    uint64_t hashes[kCells];
    uint8_t counts[kCells];
    uint8_t passed;
  };
  static_assert(sizeof(Line) == 64, "a cache line");

  struct Place {
    size_t line;  // the last one that was read
    int cell;     // -1: the counter is absent
  };

  Line* lines() const { return reinterpret_cast<Line*>(pages_.data()); }

  // The low half of the hash decides: the high bits are the same for all signs
  // of a stripe.
  size_t Home(uint64_t hash) const {
    return (hash & 0xffffffff) * count_ >> 32;
  }
  size_t Next(size_t line) const { return line + 1 == count_ ? 0 : line + 1; }
  // The number of counters at which a table is full.
  static size_t Capacity(size_t lines) { return lines * kCells * 7 / 10; }
  size_t LinesAt(int level) const {
    return static_cast<size_t>(
        std::ceil(kFirstLines * std::pow(kGrowth, level + phase_)));
  }

  Place Walk(uint64_t hash) const {
    if (count_ == 0) return {0, -1};
    size_t at = Home(hash);
    for (size_t seen = 1;; ++seen, at = Next(at)) {
      const Line& line = lines()[at];
      for (int cell = 0; cell < kCells; ++cell) {
        if (line.hashes[cell] == hash && line.counts[cell] != 0) {
          return {at, cell};
        }
      }
      if (line.passed == 0 || seen == count_) return {at, -1};
    }
  }

  // There must be an empty cell.
  void Put(uint64_t hash, uint8_t count) {
    for (size_t at = Home(hash);; at = Next(at)) {
      Line& line = lines()[at];
      for (int cell = 0; cell < kCells; ++cell) {
        if (line.counts[cell] != 0) continue;
        line.hashes[cell] = hash;
        line.counts[cell] = count;
        return;
      }
      if (line.passed != kMostPassed) ++line.passed;
    }
  }

  void Rebuild(int level) {
    CounterLines rebuilt(phase_);
    rebuilt.level_ = level;
    rebuilt.count_ = LinesAt(level);
    rebuilt.pages_ = Pages(rebuilt.count_ * sizeof(Line), PageSize::kHuge);
    // In the order of home lines, whatever their number, so both tables are
    // accessed sequentially.
    ForEach(
        [&rebuilt](uint64_t hash, uint8_t count) { rebuilt.Put(hash, count); });
    rebuilt.size_ = size_;
    swap(rebuilt);
  }

  Pages pages_;
  size_t count_ = 0;    // of lines
  size_t size_ = 0;     // of counters
  size_t removed_ = 0;  // since the table was built
  int level_ = -1;      // of growth; -1: no lines
  double phase_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ADMISSION_COUNTER_LINES_H_
