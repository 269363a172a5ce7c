// SPDX-License-Identifier: Apache-2.0
// The types of a table's fields as those of tensors.
#ifndef TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_
#define TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_

#include <algorithm>
#include <iterator>

#include "cc/core/rules/field_type.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ext {

// In the order of FieldType; and, in any order, as the types of an attribute.
inline constexpr tensorflow::DataType kDataTypes[] = {
    tensorflow::DT_FLOAT,
    tensorflow::DT_INT32,
    tensorflow::DT_HALF,
    tensorflow::DT_BFLOAT16,
};
#define TF_EXT_FIELD_TYPES "{float, half, bfloat16, int32}"
static_assert(std::size(kDataTypes) == std::size(kFieldTypes));

inline tensorflow::DataType ToDataType(FieldType type) {
  return kDataTypes[static_cast<int>(type)];
}

// `type` must be one of those that ToDataType returns.
inline FieldType ToFieldType(tensorflow::DataType type) {
  const auto* const found =
      std::find(std::begin(kDataTypes), std::end(kDataTypes), type);
  return kFieldTypes[found - kDataTypes].type;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_
