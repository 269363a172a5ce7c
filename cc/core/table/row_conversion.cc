// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/row_conversion.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cc/core/rules/narrow.h"

namespace tf_ext {
namespace {

// The values of one field of one row.
class ValueConverter {
 public:
  // `most`: the most values of a field. May throw std::bad_alloc.
  explicit ValueConverter(int64_t most) : before_(most), after_(most) {}

  void Convert(const StoredCopy& copy, const uint8_t* from, uint8_t* to) {
    const int64_t n = copy.to->count;
    WidenTo(copy.type, from, n, before_.data());
    counts_.saturated += NarrowToNearest(copy.to->type, before_.data(), n, to);
    WidenTo(copy.to->type, to, n, after_.data());
    for (int64_t i = 0; i < n; ++i) {
      const bool is_nan = std::isnan(before_[i]);
      counts_.rounded += !is_nan && before_[i] != after_[i];
    }
    counts_.values += n;
  }

  const ConversionCounts& counts() const { return counts_; }

 private:
  std::vector<float> before_, after_;
  ConversionCounts counts_;
};

}  // namespace

bool CanConvert(FieldType from, FieldType to) {
  return from == to || (InfoOf(from).is_float && InfoOf(to).is_float);
}

bool NeedsConversion(const std::vector<StoredCopy>& copies) {
  return std::any_of(copies.begin(), copies.end(), [](const StoredCopy& copy) {
    return copy.type != copy.to->type;
  });
}

std::vector<uint8_t> ConvertRows(const std::vector<StoredCopy>& copies,
                                 const uint8_t* rows, int64_t n,
                                 int64_t row_bytes, int64_t to_bytes,
                                 ConversionCounts* counts) {
  std::vector<uint8_t> result(n * to_bytes);
  int64_t most = 0;
  for (const StoredCopy& copy : copies) {
    most = std::max(most, copy.to->count);
  }
  ValueConverter converter(most);
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* const row = rows + i * row_bytes;
    uint8_t* const out = result.data() + i * to_bytes;
    for (const StoredCopy& copy : copies) {
      const uint8_t* const from = row + copy.from;
      uint8_t* const to = out + copy.to->offset;
      if (copy.type == copy.to->type) {
        std::memcpy(to, from, copy.to->bytes());
      } else {
        converter.Convert(copy, from, to);
      }
    }
  }
  *counts = converter.counts();
  return result;
}

}  // namespace tf_ext
