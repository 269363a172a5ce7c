// SPDX-License-Identifier: Apache-2.0
// Raw feature values to signs, for many columns at once.
//
//   sign = Fingerprint64(namespace + "\x1f" + text)
//
// `text` of a string is the string, of an integer its decimal text, of a
// bucketised number the decimal text of its bucket: how many boundaries are
// not above it, compared as doubles, denormal floats as 0. With bucket_size the
// text is the decimal text of Fingerprint64(text) mod bucket_size. A cross
// joins its parts' texts (a part's own bucket_size applied first) by "\x1e", in
// the declared order, for the Cartesian product of the parts' values (the last
// part varies fastest), weights multiplied. With `identity` an integer is its
// own sign.
//
// A caller makes one ColumnHasher, and for each batch calls CheckInputs, then
// CountSigns into splits of its own, then Hash into memory of the size that
// the last split says: nothing is copied.
#ifndef TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_H_
#define TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/hashing/text_words.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"

namespace tf_ext {

// The most signs, and the most bags, that one call can make.
inline constexpr int64_t kMaxSignsPerCall = (int64_t{1} << 31) - 1;
// The most parts of a cross.
inline constexpr int64_t kMaxCrossParts = 64;

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
  std::string ns;               // namespace
  int64_t bucket_size = 0;      // 0: unbounded
  bool identity = false;        // int64/int32 only, one part, no bucket_size
  std::vector<HashPart> parts;  // one; or two and more: a cross
};

// Views of strings [begin, begin + n) of an array whose layout the core does
// not know.
using ViewStrings = void (*)(const void* values, int64_t begin, int64_t n,
                             std::string_view* views);

// The sizes, first and last words of strings [begin, begin + n), n up to
// TextWords::kMost. False if one has less than 8 or more than `most`
// bytes.
using ReadWords = bool (*)(const void* values, int64_t begin, int64_t n,
                           size_t most, TextWords* words);

// One input: `batch` bags of values. Float NaN is always missing.
struct HashInput {
  ValueType type = ValueType::kInt64;
  const void* values = nullptr;  // [n]; strings: through `view_strings`
  ViewStrings view_strings = nullptr;
  ReadWords read_words = nullptr;  // if there is a faster way than views
  int64_t n = 0;
  int64_t batch = 0;
  const int64_t* row_splits = nullptr;  // [batch + 1]; nullptr: n / batch each
  const float* weights = nullptr;       // [n] or nullptr
  // If the strings are some of others, each any number of times: those, and
  // which of them each is, [n].
  const HashInput* distinct = nullptr;
  const int32_t* places = nullptr;
};

class ColumnHasher {
 public:
  // Checks what does not depend on data: parts whose input exists, types that
  // fit boundaries, identity and missing, sizes in range. Errors name the
  // column, what was found and what is allowed.
  static Status Create(const std::vector<HashColumn>& columns,
                       const std::vector<ValueType>& input_types,
                       std::unique_ptr<ColumnHasher>* hasher);
  ~ColumnHasher();
  ColumnHasher(const ColumnHasher&) = delete;
  ColumnHasher& operator=(const ColumnHasher&) = delete;

  int64_t num_columns() const;

  // Inputs of the declared types and one batch size, which is the result;
  // splits that start at 0, do not fall and end at n. Errors name the input.
  Status CheckInputs(const std::vector<HashInput>& inputs,
                     int64_t* batch) const;

  // row_splits: [num_columns * batch + 1], bag b of column c at c * batch + b.
  // More than kMaxSignsPerCall signs are an error. Inputs have been checked.
  Status CountSigns(const std::vector<HashInput>& inputs, int64_t batch,
                    const ParallelFor& parallel_for, int64_t* row_splits) const;

  // True if each bag of each column has exactly one sign, as the inputs'
  // layout tells. Inputs have been checked.
  bool HaveOneSign(const std::vector<HashInput>& inputs) const;

  // signs: [batch, num_columns], of columns whose bags have one.
  void HashRows(const std::vector<HashInput>& inputs, int64_t batch,
                int64_t* signs) const;

  // True if an input that a column uses has weights. A column whose inputs
  // have none gets ones.
  bool HasWeights(const std::vector<HashInput>& inputs) const;

  // row_splits: from CountSigns; its last value is m. signs: [m]; weights:
  // [m], or nullptr if not wanted.
  void Hash(const std::vector<HashInput>& inputs, int64_t batch,
            const int64_t* row_splits, const ParallelFor& parallel_for,
            int64_t* signs, float* weights) const;

 private:
  class Column;

  ColumnHasher();

  std::string DescribeInput(int64_t input) const;

  std::vector<ValueType> input_types_;
  std::vector<Column> columns_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_HASH_COLUMNS_H_
