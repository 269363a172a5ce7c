// SPDX-License-Identifier: Apache-2.0
#include "cc/core/hashing/hash_part.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

template <typename T>
bool ParseWhole(const std::string& text, T* value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

Status CheckBoundaries(const std::string& column, ValueType type,
                       const std::vector<float>& boundaries) {
  if (type == ValueType::kFloat && boundaries.empty()) {
    return Invalid(column,
                   " has an input of type float, which needs boundaries; give"
                   " it boundaries, or an input of integers or strings.");
  }
  if (type == ValueType::kString && !boundaries.empty()) {
    return Invalid(column,
                   " has boundaries, which need numbers, but its input is of"
                   " type string.");
  }
  for (size_t i = 0; i < boundaries.size(); ++i) {
    if (!std::isfinite(boundaries[i])) {
      return Invalid(column, " has the boundary ", boundaries[i],
                     " at position ", i, "; boundaries must be finite.");
    }
    if (i > 0 && WithoutDenormals(boundaries[i - 1]) >=
                     WithoutDenormals(boundaries[i])) {
      return Invalid(
          column, " has boundaries that do not increase: ", boundaries[i - 1],
          " and then ", boundaries[i], " at position ", i, ".");
    }
  }
  return Status::Ok();
}

}  // namespace

const char* TypeName(ValueType type) {
  switch (type) {
    case ValueType::kString:
      return "string";
    case ValueType::kInt64:
      return "int64";
    case ValueType::kInt32:
      return "int32";
    case ValueType::kFloat:
      return "float";
  }
  return "unknown";
}

Status CheckBucketSize(const std::string& column, int64_t bucket_size) {
  if (bucket_size >= 0) return Status::Ok();
  return Invalid(column, " has bucket_size ", bucket_size,
                 ", which must be at least 1, or 0 for unbounded.");
}

Status PreparedPart::Init(const std::string& name, const HashPart& part,
                          const std::vector<ValueType>& input_types) {
  const auto num_inputs = static_cast<int64_t>(input_types.size());
  if (part.input < 0 || part.input >= num_inputs) {
    return Invalid(name, " uses input ", part.input, ", but there are ",
                   num_inputs, " inputs.");
  }
  input = part.input;
  type = input_types[part.input];
  for (const float boundary : part.boundaries) {
    boundaries.push_back(WithoutDenormals(boundary));
  }
  TF_EXT_RETURN_IF_ERROR(CheckBucketSize(name, part.bucket_size));
  bucket_size = static_cast<uint64_t>(part.bucket_size);
  Status status = CheckBoundaries(name, type, part.boundaries);
  if (!status.ok() || !part.has_missing) return status;

  has_missing = true;
  missing_text = part.missing;
  int32_t narrow = 0;
  bool parsed = true;
  switch (type) {
    case ValueType::kString:
      break;
    case ValueType::kInt64:
      parsed = ParseWhole(part.missing, &missing_integer);
      break;
    case ValueType::kInt32:
      parsed = ParseWhole(part.missing, &narrow);
      missing_integer = narrow;
      break;
    case ValueType::kFloat:
      parsed = ParseWhole(part.missing, &missing_float);
      missing_float = WithoutDenormals(missing_float);
      break;
  }
  if (parsed) return Status::Ok();
  return Invalid(name, " names ", Quoted(part.missing),
                 " as missing, which is not a value of its input's type, ",
                 TypeName(type), "; set missing to ",
                 type == ValueType::kFloat ? "a number" : "an integer",
                 " of that type, or to None for no such value.");
}

}  // namespace tf_ext
