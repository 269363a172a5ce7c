// SPDX-License-Identifier: Apache-2.0
// The statistics of a row: the fields `show` and `click`.
//
// `show` counts how often the row's sign occurred in training, and `click` sums
// a value of those occurrences, such as the label. Both are float32, so that
// they can decay; a sum that exceeds the largest float32 stays there. From
// 2^24 = 16,777,216 on, an addition of 1 no longer changes a float32.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_
#define TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cc/core/table/batch_parts.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

// What a push adds to the statistics of a row.
struct Counts {
  // `values`: the first `width` of them.
  static Counts Load(const float* values, int64_t width) {
    return {values[0], width == 1 ? 0 : values[1]};
  }

  float show;
  float click;
};

// The signs of a push with counts, whose items carry the counts along: to read
// them by position in the order of stripes would be another cache miss a row.
// The lower half of an item's position is the position, the upper half the
// counts as bfloat16, if that is exact (as for whole numbers up to 256), and
// otherwise kInexact. There must be fewer than 2^32 signs.
struct CountedPart {
  static constexpr uint32_t kInexact = 0xffffffff;  // two NaNs: no counts

  int64_t sign(int64_t i) const { return signs[i]; }
  BatchItem item(int64_t i) const {
    return {signs[i], static_cast<int64_t>(uint64_t{Packed(i)} << 32 |
                                           static_cast<uint64_t>(first + i))};
  }
  CountedPart Slice(int64_t begin, int64_t end) const {
    return {signs + begin, end - begin, values + begin * width, width,
            first + begin};
  }
  // The counts of an item, and its position alone. `values`: of the batch.
  static Counts Unpack(const float* values, int64_t width, int64_t* position) {
    const uint32_t packed =
        static_cast<uint32_t>(static_cast<uint64_t>(*position) >> 32);
    *position &= 0xffffffff;
    if (packed == kInexact) {
      return Counts::Load(values + *position * width, width);
    }
    const uint32_t bits[2] = {packed & 0xffff0000u, packed << 16};
    Counts counts;
    static_assert(sizeof(counts) == sizeof(bits), "two float32");
    std::memcpy(&counts, bits, sizeof(counts));
    return counts;
  }

  const int64_t* signs;
  int64_t n;
  const float* values;  // [n, width]
  int64_t width;
  int64_t first;  // the position of the first sign

 private:
  uint32_t Packed(int64_t i) const {
    const Counts counts = Counts::Load(values + i * width, width);
    uint32_t bits[2];
    std::memcpy(bits, &counts, sizeof(bits));
    const bool exact = ((bits[0] | bits[1]) & 0xffffu) == 0;
    return exact ? bits[0] | bits[1] >> 16 : kInexact;
  }
};

// Accesses the fields in the rows of a table, which has the first `width` of
// them: none, `show`, or `show` and `click`, which is right behind it.
class RowStatistics {
 public:
  explicit RowStatistics(const RowLayout& layout) {
    const Field* const show = layout.Find(kStatisticsFields[0]);
    if (show == nullptr) return;
    offset_ = show->offset;
    width_ = layout.Find(kStatisticsFields[1]) == nullptr ? 1 : 2;
  }

  int width() const { return width_; }

  float Get(const uint8_t* row, int i) const {
    float value;
    std::memcpy(&value, row + offset_ + i * int64_t{sizeof(float)},
                sizeof(value));
    return value;
  }
  void Set(uint8_t* row, int i, float value) const {
    std::memcpy(row + offset_ + i * int64_t{sizeof(float)}, &value,
                sizeof(value));
  }
  // Adds the counts of a push to `n` rows; nullptr: each row's sign occurred
  // once, with a click of 0. Calls also(row) for each, unless there are no
  // statistics.
  template <typename Also>
  void Add(uint8_t* const* rows, int n, const Counts* counts,
           const Also& also) const {
    const int64_t offset = offset_;  // a copy that no store can change
    const auto add = [&](auto width, const auto& counts_at) {
      for (int i = 0; i < n; ++i) {
        also(rows[i]);
        AddTo<width>(rows[i] + offset, counts_at(i));
      }
    };
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    if (width_ == 0) return;
    if (counts == nullptr) {
      const Counts once = {1, 0};
      add(One(), [&once](int) { return &once; });
    } else if (width_ == 1) {
      add(One(), [counts](int i) { return counts + i; });
    } else {
      add(Two(), [counts](int i) { return counts + i; });
    }
  }
  // Copies those of `n` rows to their positions in `out`.
  void Copy(const uint8_t* const* rows, const int64_t* positions, int n,
            float* out) const {
    for (int i = 0; i < n; ++i) {
      std::memcpy(out + positions[i], rows[i] + offset_,
                  width_ * sizeof(float));
    }
  }
  void Scale(uint8_t* row, float factor) const {
    for (int i = 0; i < width_; ++i) Set(row, i, Get(row, i) * factor);
  }

 private:
  // A vector of one value or two.
  template <int kWidth>
  static void AddTo(uint8_t* to, const Counts* counts) {
    typedef float Values __attribute__((vector_size(kWidth * sizeof(float))));
    constexpr float kMost = std::numeric_limits<float>::max();
    Values sum, added;
    std::memcpy(&sum, to, sizeof(sum));
    std::memcpy(&added, counts, sizeof(added));
    sum += added;
    const Values most = Values{} + kMost;
    sum = sum > most ? most : sum;
    std::memcpy(to, &sum, sizeof(sum));
  }

  int64_t offset_ = 0;
  int width_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_
