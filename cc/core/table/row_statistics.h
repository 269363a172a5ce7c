// The statistics of a row: the fields `show` and `click`.
//
// `show` counts how often the row's sign occurred in training, and `click` sums
// a value of those occurrences, such as the label. Both are float32, so that
// they can decay; a sum that exceeds the largest float32 stays there. From
// 2^24 = 16,777,216 on, an addition of 1 no longer changes a float32.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_
#define TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

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
  void Add(uint8_t* const* rows, const int64_t* positions, int n,
           const float* values) const {
    if (values == nullptr) {
      for (int i = 0; i < n; ++i) AddTo(rows[i], 0, 1.0f);
    } else if (width_ == 1) {
      for (int i = 0; i < n; ++i) AddTo(rows[i], 0, values[positions[i]]);
    } else {
      for (int i = 0; i < n; ++i) {
        AddTo(rows[i], 0, values[2 * positions[i]]);
        AddTo(rows[i], 1, values[2 * positions[i] + 1]);
      }
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
  void AddTo(uint8_t* row, int i, float value) const {
    Set(row, i,
        std::min(Get(row, i) + value, std::numeric_limits<float>::max()));
  }

  int64_t offset_ = 0;
  int width_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_STATISTICS_H_
