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
    const size_t words = WordsFor(rows);
    if (words <= words_.size()) return;
    // Not doubled: bits that no row has would be most of what marks take.
    words_.reserve(std::max(words, words_.size() + words_.size() / 16));
    words_.resize(words);
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

  // Reserve(row + 1) has been called before.
  void Touch(uint32_t row) { Word(row, current_) |= Bit(row); }
  // The row is not the sign's any more. ReserveErased has been called before.
  void Erase(uint32_t row, int64_t sign) {
    Word(row, 0) &= ~Bit(row);
    Word(row, 1) &= ~Bit(row);
    erased_[current_].push_back(sign);
  }
  void ForgetRows() { std::vector<uint64_t>().swap(words_); }

  void Take() { current_ ^= 1; }
  void Commit() {
    for (size_t i = current_ ^ 1; i < words_.size(); i += 2) words_[i] = 0;
    std::vector<int64_t>().swap(erased_[current_ ^ 1]);
  }
  // Throws std::bad_alloc and changes nothing then.
  void PutBack() {
    std::vector<int64_t>& taken = erased_[current_ ^ 1];
    std::vector<int64_t>& current = erased_[current_];
    current.insert(current.end(), taken.begin(), taken.end());
    for (size_t i = 0; i < words_.size(); i += 2) {
      words_[i + current_] |= words_[i + (current_ ^ 1)];
    }
    Commit();
  }

  // Which of the rows 64 * word ... 64 * word + 63 were taken.
  uint64_t Taken(size_t word) const {
    const size_t at = 2 * word + (current_ ^ 1);
    return at < words_.size() ? words_[at] : 0;
  }
  const std::vector<int64_t>& taken_erased() const {
    return erased_[current_ ^ 1];
  }
  const std::vector<int64_t>& current_erased() const {
    return erased_[current_];
  }

  int64_t bytes() const {
    return static_cast<int64_t>(
        (words_.capacity() + erased_[0].capacity() + erased_[1].capacity()) *
        sizeof(uint64_t));
  }

 private:
  static size_t WordsFor(uint32_t rows) {
    return 2 * ((size_t{rows} + 63) / 64);
  }
  static uint64_t Bit(uint32_t row) { return uint64_t{1} << (row % 64); }
  uint64_t& Word(uint32_t row, int generation) {
    return words_[row / 64 * 2 + generation];
  }

  int current_ = 0;
  std::vector<uint64_t> words_;  // of both generations in turn
  std::vector<int64_t> erased_[2];
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_CHANGE_MARKS_H_
