// SPDX-License-Identifier: Apache-2.0
// Columns of the features of serialized tf.train.Examples, without copies of
// the messages in between.
#ifndef TF_EXT_CC_CORE_RECORDS_EXAMPLE_COLUMNS_H_
#define TF_EXT_CC_CORE_RECORDS_EXAMPLE_COLUMNS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tf_ext {

enum class ValueKind { kBytes, kInt64, kFloat };

// One feature that is read. A bag has any number of values; otherwise there is
// at most one.
struct ExampleField {
  std::string name;
  ValueKind kind;
  bool bag;
};

// The values of a feature in all examples.
struct ExampleColumn {
  std::string text;             // of kBytes, one after the other,
  std::vector<int32_t> ends;    // where each ends, after a 0;
  std::vector<int64_t> ints;    // of kInt64;
  std::vector<float> floats;    // of kFloat.
  std::vector<int32_t> splits;  // Of a bag: row splits, after a 0.
  std::vector<uint8_t> given;   // Otherwise: whether there is a value.
};

enum class ExampleError : uint8_t {
  kNone,
  kChecksum,       // Not of this file: callers set it.
  kMessage,        // The bytes are no tf.train.Example.
  kKind,           // Values of another kind than the field's.
  kSeveralValues,  // More than one, and the field is no bag.
};

class ExampleColumns {
 public:
  explicit ExampleColumns(std::vector<ExampleField> fields);

  // Appends the values of one example, or none of them if there is an error.
  // Integers are also values of kFloat. Without a value, bytes are "" and
  // numbers 0.
  ExampleError Append(std::string_view example);

  const std::vector<ExampleField>& fields() const { return fields_; }
  const std::vector<ExampleColumn>& columns() const { return columns_; }

 private:
  // The values of a field in the current example.
  struct Found {
    bool present = false;
    ValueKind kind = ValueKind::kBytes;
    std::string_view list;  // BytesList, Int64List or FloatList.
    int64_t count = 0;
  };

  bool ReadFeatures(std::string_view features);
  bool ReadEntry(std::string_view entry);
  int FieldOf(std::string_view name);
  void AppendList(int field);
  void AppendMissing(int field);

  std::vector<ExampleField> fields_;
  std::unordered_map<std::string_view, int> indices_;
  std::vector<ExampleColumn> columns_;
  std::vector<Found> found_;
  // Features mostly are in the same order in every example: what followed
  // each field, from -1, in the last one.
  std::vector<int> next_;
  int last_ = -1;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RECORDS_EXAMPLE_COLUMNS_H_
