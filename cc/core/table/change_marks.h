// SPDX-License-Identifier: Apache-2.0
// The changes of a stripe since its last incremental snapshot: two bits per
// row, and the erased signs.
//
// There are two generations. Changes are recorded in the current one. A save
// takes it (Take), writes its changes, and then either discards it (Commit) or
// merges it back (PutBack); meanwhile, changes are recorded in the other one.
// So a failed save loses no changes, neither earlier ones nor those made while
// it ran.
#ifndef TF_EXT_CC_CORE_TABLE_CHANGE_MARKS_H_
#define TF_EXT_CC_CORE_TABLE_CHANGE_MARKS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/table/row_layout.h"

namespace tf_ext {

class ChangeMarks {
 public:
  // Reserves memory for rows below `rows`. May throw std::bad_alloc.
  void Reserve(uint32_t rows) {
    const size_t words = (size_t{rows} + 63) / 64;
    const size_t size = bits_[0].size();
    if (words <= size) return;
    // Growing by a factor of two would waste memory on nonexistent rows.
    for (auto& bits : bits_) bits.reserve(std::max(words, size + size / 16));
    // Both or none, as their sizes are the same.
    for (auto& bits : bits_) bits.resize(words);
  }
  // Reserves memory for `n` more erased signs. May throw std::bad_alloc.
  void ReserveErased(int64_t n) {
    std::vector<int64_t>& erased = erased_[current_];
    if (erased.size() + n <= erased.capacity()) return;
    // The same signs can be inserted and erased repeatedly.
    std::sort(erased.begin(), erased.end());
    erased.erase(std::unique(erased.begin(), erased.end()), erased.end());
    const size_t needed = erased.size() + n;
    if (needed > erased.capacity() / 2) {
      erased.reserve(needed + erased.size() / 2);
    }
  }

  // Reserve must have been called for all of the rows.
  void Touch(const uint32_t* rows, int count) {
    uint64_t* const bits = bits_[current_].data();
    for (int i = 0; i < count; ++i) bits[rows[i] / 64] |= Bit(rows[i]);
  }
  // Rows may be kNoRow, whose address is never dereferenced.
  void PrefetchToTouch(const uint32_t* rows, int count) const {
    const auto bits = reinterpret_cast<uintptr_t>(bits_[current_].data());
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(
          reinterpret_cast<const void*>(bits + rows[i] / 64 * sizeof(uint64_t)),
          1);
    }
  }
  // Records that the row of the sign was erased. ReserveErased must have been
  // called.
  void Erase(uint32_t row, int64_t sign) {
    for (std::vector<uint64_t>& bits : bits_) bits[row / 64] &= ~Bit(row);
    erased_[current_].push_back(sign);
  }
  // Moves the marks of row `from` to row `to`, which was free.
  void Move(uint32_t from, uint32_t to) {
    for (std::vector<uint64_t>& bits : bits_) {
      const bool marked = (bits[from / 64] & Bit(from)) != 0;
      bits[from / 64] &= ~Bit(from);
      bits[to / 64] &= ~Bit(to);
      if (marked) bits[to / 64] |= Bit(to);
    }
  }
  // Frees the bits of row numbers at or after `rows`, none of which is in use.
  void Shrink(uint32_t rows) {
    const size_t words = (size_t{rows} + 63) / 64;
    for (std::vector<uint64_t>& bits : bits_) {
      if (words >= bits.size()) continue;
      bits.resize(words);
      bits.shrink_to_fit();
    }
  }
  void ForgetRows() {
    for (std::vector<uint64_t>& bits : bits_)
      std::vector<uint64_t>().swap(bits);
  }

  void Take() { current_ ^= 1; }
  void Commit() {
    std::vector<uint64_t>& taken = bits_[current_ ^ 1];
    std::fill(taken.begin(), taken.end(), 0);
    std::vector<int64_t>().swap(erased_[current_ ^ 1]);
  }
  // May throw std::bad_alloc, in which case nothing changes.
  void PutBack() {
    std::vector<int64_t>& taken = erased_[current_ ^ 1];
    std::vector<int64_t>& current = erased_[current_];
    current.insert(current.end(), taken.begin(), taken.end());
    for (size_t word = 0; word < bits_[0].size(); ++word) {
      bits_[current_][word] |= bits_[current_ ^ 1][word];
    }
    Commit();
  }

  // A bitmap of the rows 64 * word ... 64 * word + 63 whose change was taken.
  uint64_t Taken(size_t word) const {
    const std::vector<uint64_t>& taken = bits_[current_ ^ 1];
    return word < taken.size() ? taken[word] : 0;
  }
  // The same for rows that were touched since Take.
  uint64_t Touched(size_t word) const {
    const std::vector<uint64_t>& touched = bits_[current_];
    return word < touched.size() ? touched[word] : 0;
  }
  const std::vector<int64_t>& taken_erased() const {
    return erased_[current_ ^ 1];
  }
  const std::vector<int64_t>& current_erased() const {
    return erased_[current_];
  }

  int64_t bytes() const {
    return static_cast<int64_t>((bits_[0].capacity() + bits_[1].capacity() +
                                 erased_[0].capacity() +
                                 erased_[1].capacity()) *
                                sizeof(uint64_t));
  }

 private:
  static uint64_t Bit(uint32_t row) { return uint64_t{1} << (row % 64); }

  int current_ = 0;
  std::vector<uint64_t> bits_[2];  // of rows, by generation
  std::vector<int64_t> erased_[2];
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_CHANGE_MARKS_H_
