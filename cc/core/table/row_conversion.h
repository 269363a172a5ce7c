// SPDX-License-Identifier: Apache-2.0
// Converts stored rows to the types of a table's fields.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_CONVERSION_H_
#define TF_EXT_CC_CORE_TABLE_ROW_CONVERSION_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "cc/core/rules/rule_spec.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

// A field of a table, and where and in which type stored rows have it.
struct StoredCopy {
  const Field* to;
  FieldType type;
  int64_t from;  // bytes from the start of a stored row
};

// What a conversion did.
struct ConversionCounts {
  int64_t values = 0;     // those of fields of another type
  int64_t rounded = 0;    // those that changed
  int64_t saturated = 0;  // and became the largest finite value
};

// Sums, to which several threads may add.
struct ConvertedValues {
  std::atomic<int64_t> values{0};
  std::atomic<int64_t> rounded{0};
  std::atomic<int64_t> saturated{0};

  void Add(const ConversionCounts& counts) {
    values += counts.values;
    rounded += counts.rounded;
    saturated += counts.saturated;
  }
};

// Whether values of one type can become values of the other.
bool CanConvert(FieldType from, FieldType to);

// Whether any of the fields has another type than the stored rows.
bool NeedsConversion(const std::vector<StoredCopy>& copies);

// Copies `n` rows of `row_bytes` bytes into rows with the layout of the table,
// `to_bytes` each. Floats are rounded to the nearest value: each value is
// rounded once, so there is no sum of errors that could have a bias, and no
// other rounding has a smaller error. Fields that are not among `copies` are
// 0. `*counts`: what was done. May throw std::bad_alloc.
std::vector<uint8_t> ConvertRows(const std::vector<StoredCopy>& copies,
                                 const uint8_t* rows, int64_t n,
                                 int64_t row_bytes, int64_t to_bytes,
                                 ConversionCounts* counts);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_CONVERSION_H_
