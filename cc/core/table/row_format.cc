#include "cc/core/table/row_format.h"

#include <cstring>

#include "cc/core/table/row_slabs.h"

namespace tf_ext {

RowFormat::RowFormat(const RowLayout& layout,
                     const Initializer* row_initializer, bool unknown_as_zeros)
    : stride(layout.stride()),
      dim(layout.fields()[0].count),
      initializer(row_initializer),
      unknown_zeros(unknown_as_zeros) {
  const int64_t slots_offset =
      RowLayout::kWeightsOffset + layout.fields()[0].bytes();
  slots.resize(stride - slots_offset);
  for (size_t f = 1; f < layout.fields().size(); ++f) {
    const Field& field = layout.fields()[f];
    uint8_t* at = slots.data() + (field.offset - slots_offset);
    for (int64_t i = 0; i < field.count; ++i, at += kFieldTypeBytes) {
      if (field.type == FieldType::kFloat32) {
        const float start = static_cast<float>(field.start);
        std::memcpy(at, &start, sizeof(start));
      } else {
        const int32_t start = static_cast<int32_t>(field.start);
        std::memcpy(at, &start, sizeof(start));
      }
    }
  }
}

void RowFormat::Start(uint8_t* row, int64_t sign, bool with_weights) const {
  RowSlabs::StoreSign(row, sign);
  if (with_weights) {
    initializer->Fill(
        sign, reinterpret_cast<float*>(row + RowLayout::kWeightsOffset));
  }
  // data() of an empty vector may be null, which must not be passed to memcpy.
  if (!slots.empty()) {
    std::memcpy(row + stride - slots.size(), slots.data(), slots.size());
  }
}

}  // namespace tf_ext
