// Raw feature values to signs, for many columns at once.
//
//   sign = Fingerprint64(namespace + "\x1f" + text)
//
// `text` of a string is the string, of an integer its decimal text, of a
// bucketised number the decimal text of its bucket. With bucket_size the text
// is the decimal text of Fingerprint64(text) mod bucket_size. A cross joins
// its parts' texts (a part's own bucket_size applied first) by "\x1e", in the
// declared order, for the Cartesian product of the parts' values (the last
// part runs fastest), weights multiplied. With `identity` an integer is its
// own sign.
#ifndef TF_EXT_CC_CORE_HASH_COLUMNS_H_
#define TF_EXT_CC_CORE_HASH_COLUMNS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/status.h"

namespace tf_ext {

enum class ValueType { kString, kInt64, kInt32, kFloat };

// How one input becomes texts.
struct HashPart {
  int64_t input = 0;              // which of the inputs
  int64_t bucket_size = 0;        // 0: none (always 0 for a column of one part)
  bool has_missing = false;       // values whose text is `missing` are dropped
  std::string missing;            // for numbers: parsed as the input's type
  std::vector<float> boundaries;  // rising; numbers only, required for floats
};

struct HashColumn {
  std::string ns;           // namespace
  int64_t bucket_size = 0;  // 0: unbounded
  bool identity = false;    // int64/int32 only, one part, no bucket_size
  std::vector<HashPart> parts;  // one; or two and more: a cross
};

// One input: `batch` bags of values. Float NaN is always missing.
struct HashInput {
  ValueType type = ValueType::kInt64;
  const void* values = nullptr;   // [n]; strings: through `string_at`
  std::string_view (*string_at)(const void* values, int64_t i) = nullptr;
  int64_t n = 0;
  int64_t batch = 0;
  const int64_t* row_splits = nullptr;  // [batch + 1]; nullptr: n / batch each
  const float* weights = nullptr;       // [n] or nullptr
};

struct HashedColumns {
  std::vector<int64_t> signs;       // [m], column after column
  std::vector<int64_t> row_splits;  // [columns * batch + 1]
  std::vector<float> weights;       // [m], or empty if no input used has any
};

// What can be told before any data is there: part inputs in range, types that
// fit boundaries / identity / missing, at least one part a column.
Status CheckHashColumns(const std::vector<HashColumn>& columns,
                        const std::vector<ValueType>& input_types);

// Inputs must have one batch size; splits must start at 0, not fall and end at
// n. Errors name the input, what was found and what is allowed. A result of
// more than 2^31 - 1 signs is an error.
Status HashColumns(const std::vector<HashColumn>& columns,
                   const std::vector<HashInput>& inputs,
                   const ParallelFor& parallel_for, HashedColumns* hashed);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASH_COLUMNS_H_
