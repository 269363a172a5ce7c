// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/example_columns.h"

#include <cstring>
#include <utility>

namespace tf_ext {
namespace {

// How a field of a message is stored.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Reads a message of protocol buffers, field by field.
class Message {
 public:
  explicit Message(std::string_view data)
      : data_(data.data()), end_(data.data() + data.size()) {}

  bool AtEnd() const { return data_ == end_; }

  // Reads the number and wire type of the next field.
  bool Tag(uint32_t* number, int* type) {
    uint64_t tag;
    if (!Varint(&tag) || tag > 0xffffffffu || tag < 8) return false;
    *number = static_cast<uint32_t>(tag >> 3);
    *type = static_cast<int>(tag & 7);
    return true;
  }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70 && data_ < end_; shift += 7) {
      const uint64_t byte = static_cast<uint8_t>(*data_++);
      *value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Bytes(std::string_view* value) {
    uint64_t size;
    if (!Varint(&size)) return false;
    return Take(size, value);
  }

  bool Take(uint64_t size, std::string_view* value) {
    if (size > static_cast<uint64_t>(end_ - data_)) return false;
    *value = {data_, static_cast<size_t>(size)};
    data_ += size;
    return true;
  }

  // Passes over a value that is not wanted. There are no groups.
  bool Skip(int type) {
    uint64_t number;
    std::string_view bytes;
    switch (type) {
      case kVarint:
        return Varint(&number);
      case kFixed64:
        return Take(8, &bytes);
      case kBytes:
        return Bytes(&bytes);
      case kFixed32:
        return Take(4, &bytes);
      default:
        return false;
    }
  }

 private:
  const char* data_;
  const char* const end_;
};

float ToFloat(std::string_view bytes) {
  float value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// Calls `take` with each value: a std::string_view, int64_t or float. A list
// of numbers is packed into one field or has a field for each.
template <typename Take>
bool ForEach(ValueKind kind, std::string_view list, const Take& take) {
  Message message(list);
  while (!message.AtEnd()) {
    uint32_t number;
    int type;
    if (!message.Tag(&number, &type)) return false;
    uint64_t integer;
    std::string_view bytes;
    if (number != 1) {
      if (!message.Skip(type)) return false;
    } else if (kind == ValueKind::kBytes) {
      if (type != kBytes || !message.Bytes(&bytes)) return false;
      take(bytes);
    } else if (type == kBytes) {
      if (!message.Bytes(&bytes)) return false;
      Message packed(bytes);
      while (!packed.AtEnd()) {
        std::string_view one;
        if (kind == ValueKind::kFloat) {
          if (!packed.Take(4, &one)) return false;
          take(ToFloat(one));
        } else {
          if (!packed.Varint(&integer)) return false;
          take(static_cast<int64_t>(integer));
        }
      }
    } else if (kind == ValueKind::kFloat) {
      if (type != kFixed32 || !message.Take(4, &bytes)) return false;
      take(ToFloat(bytes));
    } else {
      if (type != kVarint || !message.Varint(&integer)) return false;
      take(static_cast<int64_t>(integer));
    }
  }
  return true;
}

struct Appender {
  ValueKind kind;
  ExampleColumn* column;

  void operator()(std::string_view value) const {
    column->text.append(value);
    column->ends.push_back(static_cast<int32_t>(column->text.size()));
  }
  void operator()(int64_t value) const {
    if (kind == ValueKind::kFloat) {
      column->floats.push_back(static_cast<float>(value));
    } else {
      column->ints.push_back(value);
    }
  }
  void operator()(float value) const { column->floats.push_back(value); }
};

int32_t ValuesOf(const ExampleField& field, const ExampleColumn& column) {
  switch (field.kind) {
    case ValueKind::kBytes:
      return static_cast<int32_t>(column.ends.size()) - 1;
    case ValueKind::kInt64:
      return static_cast<int32_t>(column.ints.size());
    default:
      return static_cast<int32_t>(column.floats.size());
  }
}

}  // namespace

ExampleColumns::ExampleColumns(std::vector<ExampleField> fields)
    : fields_(std::move(fields)),
      columns_(fields_.size()),
      found_(fields_.size()),
      next_(fields_.size() + 1, -1) {
  for (size_t i = 0; i < fields_.size(); ++i) {
    indices_.emplace(fields_[i].name, static_cast<int>(i));
    if (fields_[i].kind == ValueKind::kBytes) columns_[i].ends.push_back(0);
    if (fields_[i].bag) columns_[i].splits.push_back(0);
  }
}

ExampleError ExampleColumns::Append(std::string_view example) {
  for (Found& found : found_) found = Found();
  last_ = -1;
  Message message(example);
  while (!message.AtEnd()) {
    uint32_t number;
    int type;
    std::string_view features;
    if (!message.Tag(&number, &type)) return ExampleError::kMessage;
    if (number != 1) {
      if (!message.Skip(type)) return ExampleError::kMessage;
    } else if (type != kBytes || !message.Bytes(&features) ||
               !ReadFeatures(features)) {
      return ExampleError::kMessage;
    }
  }
  for (size_t i = 0; i < fields_.size(); ++i) {
    Found& found = found_[i];
    if (!found.present) continue;
    int64_t count = 0;
    if (!ForEach(found.kind, found.list, [&](auto) { ++count; })) {
      return ExampleError::kMessage;
    }
    found.count = count;
    const ValueKind kind = fields_[i].kind;
    // An empty list has no kind: writers make one of missing values.
    if (count && found.kind != kind &&
        !(kind == ValueKind::kFloat && found.kind == ValueKind::kInt64)) {
      return ExampleError::kKind;
    }
    if (count > 1 && !fields_[i].bag) return ExampleError::kSeveralValues;
  }
  for (size_t i = 0; i < fields_.size(); ++i) {
    const int field = static_cast<int>(i);
    if (found_[i].count) {
      AppendList(field);
    } else if (!fields_[i].bag) {
      AppendMissing(field);
    }
    if (fields_[i].bag) {
      columns_[i].splits.push_back(ValuesOf(fields_[i], columns_[i]));
    } else {
      columns_[i].given.push_back(found_[i].count != 0);
    }
  }
  return ExampleError::kNone;
}

bool ExampleColumns::ReadFeatures(std::string_view features) {
  Message message(features);
  while (!message.AtEnd()) {
    uint32_t number;
    int type;
    std::string_view entry;
    if (!message.Tag(&number, &type)) return false;
    if (number != 1) {
      if (!message.Skip(type)) return false;
    } else if (type != kBytes || !message.Bytes(&entry) || !ReadEntry(entry)) {
      return false;
    }
  }
  return true;
}

// An entry of the map from names to features: of several with a name, the last
// one counts, as of several lists in a feature.
bool ExampleColumns::ReadEntry(std::string_view entry) {
  Message message(entry);
  std::string_view name, feature;
  while (!message.AtEnd()) {
    uint32_t number;
    int type;
    if (!message.Tag(&number, &type)) return false;
    if (number == 1 || number == 2) {
      std::string_view* const value = number == 1 ? &name : &feature;
      if (type != kBytes || !message.Bytes(value)) return false;
    } else if (!message.Skip(type)) {
      return false;
    }
  }
  Found found;
  Message lists(feature);
  while (!lists.AtEnd()) {
    uint32_t number;
    int type;
    if (!lists.Tag(&number, &type)) return false;
    if (number > 3) {
      if (!lists.Skip(type)) return false;
      continue;
    }
    if (type != kBytes || !lists.Bytes(&found.list)) return false;
    found.present = true;
    found.kind = number == 1   ? ValueKind::kBytes
                 : number == 2 ? ValueKind::kFloat
                               : ValueKind::kInt64;
  }
  const int field = FieldOf(name);
  if (field >= 0) found_[field] = found;
  return true;
}

int ExampleColumns::FieldOf(std::string_view name) {
  int& expected = next_[last_ + 1];
  if (expected < 0 || fields_[expected].name != name) {
    const auto place = indices_.find(name);
    if (place == indices_.end()) return -1;
    expected = place->second;
  }
  last_ = expected;
  return expected;
}

void ExampleColumns::AppendList(int field) {
  // `Append` has read the list before, so it is well-formed.
  ForEach(found_[field].kind, found_[field].list,
          Appender{fields_[field].kind, &columns_[field]});
}

void ExampleColumns::AppendMissing(int field) {
  ExampleColumn& column = columns_[field];
  switch (fields_[field].kind) {
    case ValueKind::kBytes:
      column.ends.push_back(static_cast<int32_t>(column.text.size()));
      break;
    case ValueKind::kInt64:
      column.ints.push_back(0);
      break;
    case ValueKind::kFloat:
      column.floats.push_back(0.0f);
      break;
  }
}

}  // namespace tf_ext
