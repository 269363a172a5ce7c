// What has changed in a stripe since its last incremental snapshot: two bits a
// row, and the signs that were erased.
//
// There are two generations. Changes go to the current one. A save takes it
// (Take), writes what is in it and then either forgets it (Commit) or puts it
// back (PutBack), while further changes go to the other. So a save that fails
// loses no change, and none that comes while it runs.
#ifndef TF_EXT_CC_CORE_CHANGE_MARKS_H_
#define TF_EXT_CC_CORE_CHANGE_MARKS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/row_layout.h"

namespace tf_ext {

class ChangeMarks {
 public:
  // Makes room for rows below `rows`; throws std::bad_alloc.
  void Reserve(uint32_t rows) {
    const size_t words = (size_t{rows} + 63) / 64;
    for (std::vector<uint64_t>& bits : bits_) {
      if (words <= bits.size()) continue;
      // Not doubled: bits that no row has would be most of what marks take.
      bits.reserve(std::max(words, bits.size() + bits.size() / 16));
      bits.resize(words);
    }
  }
  // Makes room for `n` more erased signs; throws std::bad_alloc.
  void ReserveErased(int64_t n) {
    std::vector<int64_t>& erased = erased_[current_];
    if (erased.size() + n <= erased.capacity()) return;
    // The same signs can come and go for ever.
    std::sort(erased.begin(), erased.end());
    erased.erase(std::unique(erased.begin(), erased.end()), erased.end());
    const size_t needed = erased.size() + n;
    if (needed > erased.capacity() / 2) {
      erased.reserve(needed + erased.size() / 2);
    }
  }

  // Reserve has been called for all of the rows before.
  void Touch(const uint32_t* rows, int count) {
    uint64_t* const bits = bits_[current_].data();
    for (int i = 0; i < count; ++i) bits[rows[i] / 64] |= Bit(rows[i]);
  }
  // Rows may be kNoRow, whose address is never used.
  void PrefetchToTouch(const uint32_t* rows, int count) const {
    const auto bits = reinterpret_cast<uintptr_t>(bits_[current_].data());
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(
          reinterpret_cast<const void*>(bits + rows[i] / 64 * sizeof(uint64_t)),
          1);
    }
  }
  // The row is not the sign's any more. ReserveErased has been called before.
  void Erase(uint32_t row, int64_t sign) {
    for (std::vector<uint64_t>& bits : bits_) bits[row / 64] &= ~Bit(row);
    erased_[current_].push_back(sign);
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
  // Throws std::bad_alloc and changes nothing then.
  void PutBack() {
    std::vector<int64_t>& taken = erased_[current_ ^ 1];
    std::vector<int64_t>& current = erased_[current_];
    current.insert(current.end(), taken.begin(), taken.end());
    for (size_t word = 0; word < bits_[0].size(); ++word) {
      bits_[current_][word] |= bits_[current_ ^ 1][word];
    }
    Commit();
  }

  // Which of the rows 64 * word ... 64 * word + 63 were taken.
  uint64_t Taken(size_t word) const {
    const std::vector<uint64_t>& taken = bits_[current_ ^ 1];
    return word < taken.size() ? taken[word] : 0;
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

#endif  // TF_EXT_CC_CORE_CHANGE_MARKS_H_
