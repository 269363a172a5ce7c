// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/unknown_rows.h"

#include <cmath>
#include <cstddef>

#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

constexpr char kKey[] = "unknown";
constexpr char kVectorKey[] = "unknown.vector";
constexpr char kBucketsKey[] = "unknown.buckets";
constexpr char kBucketsAllowed[] = "from 1 to 1048576";

struct KindText {
  UnknownRows::Kind kind;
  const char* name;
};

constexpr KindText kKinds[] = {{UnknownRows::Kind::kInitial, "initial"},
                               {UnknownRows::Kind::kZeros, "zeros"},
                               {UnknownRows::Kind::kVector, "vector"},
                               {UnknownRows::Kind::kShared, "shared"}};

// Numbers that are separated by commas.
Status ReadVector(const std::string& text, std::vector<float>* vector) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    float value = 0;
    TF_EXT_RETURN_IF_ERROR(
        Lines::ParseNumber(kVectorKey, text.substr(begin, end - begin),
                           "numbers that are separated by commas", &value));
    vector->push_back(value);
    begin = end + 1;
  }
  return Status::Ok();
}

}  // namespace

Status UnknownRows::Read(Lines* lines) {
  std::string value;
  if (!lines->Take(kKey, &value)) return Status::Ok();
  for (const KindText& each : kKinds) {
    if (value != each.name) continue;
    kind = each.kind;
    if (kind == Kind::kVector) {
      std::string text;
      TF_EXT_RETURN_IF_ERROR(lines->TakeRequired(kVectorKey, &text));
      return ReadVector(text, &vector);
    }
    if (kind == Kind::kShared) {
      buckets = 1;
      return lines->TakeNumber(kBucketsKey, kBucketsAllowed, &buckets);
    }
    return Status::Ok();
  }
  return BadValue(kKey, value, "one of " + AllowedNames(kKinds));
}

void UnknownRows::Write(std::map<std::string, std::string>* lines) const {
  if (kind == Kind::kInitial) return;
  for (const KindText& each : kKinds) {
    if (kind == each.kind) (*lines)[kKey] = each.name;
  }
  if (kind == Kind::kVector) {
    std::string text;
    for (const float value : vector) {
      if (!text.empty()) text += ',';
      text += NumberToText(value);
    }
    (*lines)[kVectorKey] = text;
  }
  if (kind == Kind::kShared && buckets != 1) {
    (*lines)[kBucketsKey] = NumberToText(buckets);
  }
}

Status UnknownRows::Check(int64_t dim) const {
  if (kind == Kind::kShared && (buckets < 1 || buckets > kMostSharedRows)) {
    return BadValue(kBucketsKey, NumberToText(buckets), kBucketsAllowed);
  }
  if (kind != Kind::kVector) return Status::Ok();
  if (static_cast<int64_t>(vector.size()) != dim) {
    return Invalid("table config: unknown.vector has ", vector.size(),
                   " values; it must have as many as dim, ", dim, ".");
  }
  for (const float value : vector) {
    if (std::isfinite(value)) continue;
    return BadValue(kVectorKey, NumberToText(value), "finite");
  }
  return Status::Ok();
}

}  // namespace tf_ext
