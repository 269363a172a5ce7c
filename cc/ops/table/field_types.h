// SPDX-License-Identifier: Apache-2.0
// The types of a table's fields as those of tensors.
#ifndef TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_
#define TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_

#include "cc/core/rules/rule_spec.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ext {

inline tensorflow::DataType ToDataType(FieldType type) {
  switch (type) {
    case FieldType::kFloat32:
      return tensorflow::DT_FLOAT;
    case FieldType::kInt32:
      return tensorflow::DT_INT32;
    case FieldType::kFloat16:
      return tensorflow::DT_HALF;
    case FieldType::kBfloat16:
      return tensorflow::DT_BFLOAT16;
  }
  return tensorflow::DT_INVALID;
}

// `type` must be one of those that ToDataType returns.
inline FieldType ToFieldType(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_INT32:
      return FieldType::kInt32;
    case tensorflow::DT_HALF:
      return FieldType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return FieldType::kBfloat16;
    default:
      return FieldType::kFloat32;
  }
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_TABLE_FIELD_TYPES_H_
