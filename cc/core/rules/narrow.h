// SPDX-License-Identifier: Apache-2.0
// Floats stored as float16 or bfloat16: how they are read, and how what was
// computed in float32 is rounded when it is stored.
//
// Rounding is stochastic: a value between two representable ones becomes one of
// them, with a probability such that the expected value is the value itself
// (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015). So
// updates that are far smaller than the distance between representable values
// are not lost. The random bits depend on (seed, table name, sign, step,
// position) only, so every instruction set, number of threads, of shards and of
// workers gives the same rows.
//
// A magnitude above the largest finite value becomes that value. NaN stays NaN;
// what a push computes has none (finite_rows.h).
#ifndef TF_EXT_CC_CORE_RULES_NARROW_H_
#define TF_EXT_CC_CORE_RULES_NARROW_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/rules/rule_spec.h"

namespace tf_ext {

// Of a table: Fingerprint64(table_name) and the seed.
uint64_t RoundingStream(uint64_t seed, const std::string& table_name);

// The key of the random bits of a push, and of a row in it.
inline uint64_t RoundingKey(uint64_t stream, int64_t step) {
  return Mix64(stream + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15u);
}
inline uint64_t RowRoundingKey(uint64_t key, int64_t sign) {
  return Mix64(key ^ (static_cast<uint64_t>(sign) * 0x9e3779b97f4a7c15u));
}

struct NarrowedField;

// Converts a field of `count` rows to or from rows of float32, which are
// `stride` bytes apart.
using WidenFieldFn = void (*)(const NarrowedField& field,
                              const uint8_t* const* rows, int count,
                              int64_t stride, uint8_t* computed);
// Rounds with the rows' keys, and returns as NarrowTo does.
using NarrowFieldFn = int64_t (*)(const NarrowedField& field,
                                  const uint8_t* computed, int64_t stride,
                                  const uint64_t* row_keys, int count,
                                  uint8_t* const* rows);

// A field of which the rule works on a copy in float32.
struct NarrowedField {
  FieldType type;  // as stored
  int64_t count;
  int64_t stored;    // bytes from the start of the row
  int64_t computed;  // bytes from the start of the copies of the row
  // Of the positions of its values among all values of the row; see
  // RandomBits.
  std::vector<uint16_t> multipliers;
  WidenFieldFn widen;
  NarrowFieldFn narrow;
};

// The rows of a table that stores some of a rule's fields in 2 bytes. The rule
// works on copies of the weights if these are narrow, and of all slots if one
// of them is, or is not aligned to its size because of the weights.
class NarrowRows {
 public:
  // stream: RoundingStream.
  NarrowRows(uint64_t stream, bool copies_weights, bool copies_slots);

  // Adds the field after those before; weights are first.
  void Add(FieldType type, int64_t count, int64_t stored);

  const std::vector<NarrowedField>& fields() const { return fields_; }
  uint64_t stream() const { return stream_; }
  bool copies_weights() const { return copies_weights_; }
  bool copies_slots() const { return copies_slots_; }
  // Bytes of the copies of a row, and how many rows are copied at once.
  int64_t stride() const { return stride_; }
  int capacity() const { return capacity_; }
  // The offsets that the rule sees.
  std::vector<FieldOffset> ComputedOffsets(
      const std::vector<FieldOffset>& stored) const;

 private:
  const uint64_t stream_;
  const bool copies_weights_;
  const bool copies_slots_;
  std::vector<NarrowedField> fields_;  // that are copied
  int64_t values_ = 0;                 // of all fields
  int64_t computed_bytes_ = 0;
  int64_t stride_ = 0;
  int capacity_ = 0;
};

// The copies of some rows.
class ComputedRows {
 public:
  static constexpr int kMostRows = 24;
  static constexpr int64_t kBytes = 8192;
  static constexpr int64_t kLineBytes = 64;  // of a cache line

  // Throws std::bad_alloc for rows that are larger than usual.
  explicit ComputedRows(const NarrowRows& narrow);

  // Copies at most capacity() rows, which must stay until Narrow.
  void Widen(uint8_t* const* rows, int count);
  // What the rule works on.
  uint8_t* const* weights() const { return weights_; }
  uint8_t* const* slots() const { return slots_; }
  // Rounds the copies into the rows. Returns as NarrowTo does.
  int64_t Narrow(uint64_t rounding_key) const;

 private:
  const NarrowRows& narrow_;
  uint8_t* first_;
  std::unique_ptr<uint8_t[]> large_;
  uint8_t* const* rows_ = nullptr;
  uint8_t* const* weights_ = nullptr;
  uint8_t* const* slots_ = nullptr;
  int count_ = 0;
  uint8_t* copies_[kMostRows];
  // With room to start at a cache line. Not alignas(64): ASan's stack for
  // use-after-return does not keep it.
  uint8_t small_[kBytes + kLineBytes];
};

// Converts n values, exactly. `from` may be unaligned.
void WidenTo(FieldType type, const void* from, int64_t n, float* to);

// Rounds n values to the nearest, of two equally near ones to the even one.
// Returns how many magnitudes were above the largest finite value. `to` may be
// unaligned.
int64_t NarrowToNearest(FieldType type, const float* from, int64_t n, void* to);

// Rounds n values stochastically; multipliers: of their positions. Returns as
// NarrowToNearest does.
int64_t NarrowTo(FieldType type, const float* from, int64_t n, uint64_t row_key,
                 const uint16_t* multipliers, void* to);

// A number for each of the positions [first, first + n).
std::vector<uint16_t> PositionMultipliers(int64_t first, int64_t n);

// Converts `dim` values of each of `count` rows, `offset` bytes from its start,
// to their positions in `out`.
using WidenRowsFn = void (*)(const uint8_t* const* rows, int64_t offset,
                             const int64_t* positions, int count, int64_t dim,
                             float* out);

// For this CPU; nullptr for types that are not narrow.
WidenRowsFn WidenRowsOf(FieldType type, int64_t dim);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_NARROW_H_
