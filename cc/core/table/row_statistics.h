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
    std::memcpy(&value, row + offset_ + i * kFieldTypeBytes, sizeof(value));
    return value;
  }
  void Set(uint8_t* row, int i, float value) const {
    std::memcpy(row + offset_ + i * kFieldTypeBytes, &value, sizeof(value));
  }
  // Adds those of a push to `n` rows. `values`: [batch, width]; nullptr: each
  // row's sign occurred once, with a click of 0. `positions`: in the batch.
  // Calls also(row) for each, unless there are no statistics.
  template <typename Also>
  void Add(uint8_t* const* rows, const int64_t* positions, int n,
           const float* values, const Also& also) const {
    const int64_t offset = offset_;  // a copy that no store can change
    const auto add = [&](auto width, const auto& values_at) {
      for (int i = 0; i < n; ++i) {
        also(rows[i]);
        AddTo<width>(rows[i] + offset, values_at(positions[i]));
      }
    };
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    if (width_ == 0) return;
    if (values == nullptr) {
      const float once = 1;
      add(One(), [&once](int64_t) { return &once; });
    } else if (width_ == 1) {
      add(One(), [values](int64_t position) { return values + position; });
    } else {
      add(Two(), [values](int64_t position) { return values + 2 * position; });
    }
  }
  // Prefetches what Add will read of `values`.
  void Prefetch(const float* values, const BatchItem* items, int64_t n) const {
    if (values == nullptr || width_ == 0) return;
    const int64_t width = width_;
    for (int64_t i = 0; i < n; ++i) {
      __builtin_prefetch(values + width * items[i].position);
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
  // A key that orders rows by `show`. Values that no push writes, but an import
  // may (negative ones and NaN), are equal to 0.
  uint32_t ShowKey(const uint8_t* row) const {
    const float show = Get(row, 0);
    if (!(show > 0)) return 0;
    uint32_t bits;
    std::memcpy(&bits, &show, sizeof(bits));
    return bits;
  }

 private:
  template <int kWidth>
  static void AddTo(uint8_t* to, const float* values) {
    // Not std::min, whose references become a branch.
    constexpr float kMost = std::numeric_limits<float>::max();
    float sums[kWidth];
    std::memcpy(sums, to, sizeof(sums));
    for (int i = 0; i < kWidth; ++i) {
      const float sum = sums[i] + values[i];
      sums[i] = sum > kMost ? kMost : sum;
    }
    std::memcpy(to, sums, sizeof(sums));
  }

  int64_t offset_ = 0;
  int width_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_
