// SPDX-License-Identifier: Apache-2.0
// The types of the fields of rows.
//
// A type is an entry here, and, if it is narrower than float32, a class in
// narrow_loops.h that converts it; all else asks these.
#ifndef TF_EXT_CC_CORE_RULES_FIELD_TYPE_H_
#define TF_EXT_CC_CORE_RULES_FIELD_TYPE_H_

#include <cstdint>
#include <limits>

namespace tf_ext {

enum class FieldType { kFloat32, kInt32, kFloat16, kBfloat16 };

struct FieldTypeInfo {
  FieldType type;
  const char* name;  // NumPy's
  int64_t bytes;
  bool is_float;
  // Whether tables may store their weights, and floats of slots, in it.
  bool of_weights;
  bool of_slots;
  // The largest magnitude of what initializers are made of.
  float largest;
};

// In the order of FieldType.
inline constexpr float kAnyFloat = std::numeric_limits<float>::infinity();
inline constexpr FieldTypeInfo kFieldTypes[] = {
    {FieldType::kFloat32, "float32", 4, true, true, true, kAnyFloat},
    {FieldType::kInt32, "int32", 4, false, false, false, kAnyFloat},
    // Squares of gradients, in slots, are often below what it can represent.
    {FieldType::kFloat16, "float16", 2, true, true, false, 65504},
    {FieldType::kBfloat16, "bfloat16", 2, true, true, true, kAnyFloat},
};

constexpr const FieldTypeInfo& InfoOf(FieldType type) {
  return kFieldTypes[static_cast<int>(type)];
}
constexpr int64_t FieldTypeBytes(FieldType type) { return InfoOf(type).bytes; }
constexpr const char* FieldTypeName(FieldType type) {
  return InfoOf(type).name;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_FIELD_TYPE_H_
