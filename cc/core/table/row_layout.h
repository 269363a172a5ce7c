// SPDX-License-Identifier: Apache-2.0
// A row is one contiguous block:
//
//   struct Row {               // stride() bytes, a multiple of 8
//     int64_t sign;            // offset 0
//     float weights[dim];      // offset kWeightsOffset, always the first
//     field;
//                              // or float16, bfloat16
//     ...                      // shrunk, caught_up, the update rule's slots,
//                              // last_seen, show, click
//   };
//
// Fields are named; code that works on one finds its offset here once, never
// by counting floats. They are packed, as in the files of a snapshot, so those
// after a field of 2-byte values may be unaligned.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_LAYOUT_H_
#define TF_EXT_CC_CORE_TABLE_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/core/rules/narrow.h"
#include "cc/core/rules/rule_spec.h"
#include "cc/core/table/config.h"

namespace tf_ext {

// Row numbers have 32 bits; this value denotes no row.
inline constexpr uint32_t kNoRow = 0xffffffff;

// The int32 field for the time of a row's last push; see row_time.h.
inline constexpr char kLastSeenField[] = "last_seen";

// How far a row has been shrunk, an int64 as two int32; see rules/shrinkage.h.
// Right behind the weights, which are read with it.
inline constexpr char kShrunkField[] = "shrunk";

// The step up to which a row has been moved while it was absent from pushes;
// see rules/absent_history.h.
inline constexpr char kCaughtUpField[] = "caught_up";

struct Field {
  std::string name;  // "weights", "accumulator", "m", "v", "step", ...
  FieldType type;
  int64_t count;   // values in a row
  int64_t offset;  // bytes from the start of the row
  double start;    // value of a new row (weights: by the initializer)
  int64_t bytes() const { return count * FieldTypeBytes(type); }
};

class RowLayout {
 public:
  static constexpr int64_t kSignOffset = 0;
  static constexpr int64_t kWeightsOffset = 8;

  // weights[dim], then the slots of the rule, which have Keras's names, and
  // shrunk, caught_up, last_seen and the statistics if the configuration has
  // them.
  explicit RowLayout(const TableConfig& config);

  const std::vector<Field>& fields() const { return fields_; }
  // nullptr if there is none of that name.
  const Field* Find(const std::string& name) const;
  // Of all fields.
  std::vector<FieldOffset> offsets() const;
  int64_t stride() const { return stride_; }
  // Bytes that carry information: the sign and all fields.
  int64_t raw_bytes() const { return raw_bytes_; }
  // What the rule needs if some of its fields are stored in 2 bytes.
  std::optional<NarrowRows> narrow(uint64_t rounding_stream) const;

 private:
  std::vector<Field> fields_;
  int64_t stride_ = 0;
  int64_t raw_bytes_ = 0;
  // The rule's slots are the fields from the first to the end of these.
  size_t first_slot_ = 0;
  size_t end_of_slots_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_LAYOUT_H_
