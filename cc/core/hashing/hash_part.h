// SPDX-License-Identifier: Apache-2.0
// One input of a column: its values as texts, and the batches in which they are
// hashed. The inner loops of ColumnHasher.
#ifndef TF_EXT_CC_CORE_HASHING_HASH_PART_H_
#define TF_EXT_CC_CORE_HASHING_HASH_PART_H_

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/text_words.h"

namespace tf_ext {

// The decimal text of a 64-bit integer.
class Decimal {
 public:
  template <typename Integer>
  std::string_view Write(Integer value) {
    char* const end = std::to_chars(chars_, chars_ + sizeof(chars_), value).ptr;
    return {chars_, static_cast<size_t>(end - chars_)};
  }

  // The text that is hashed for `text`, possibly the same one.
  std::string_view WriteBucket(std::string_view text, uint64_t bucket_size) {
    return Write(Fingerprint64(text) % bucket_size);
  }

 private:
  char chars_[20];
};

// Values [begin, end) of an input.
struct ValueSpan {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Where the values of bags are. Made once for a loop: it divides.
class BagSpans {
 public:
  explicit BagSpans(const HashInput& input)
      : row_splits_(input.row_splits),
        per_bag_(input.batch == 0 ? 0 : input.n / input.batch) {}

  // Of bags [begin, end).
  ValueSpan Of(int64_t begin, int64_t end) const {
    if (row_splits_ != nullptr) return {row_splits_[begin], row_splits_[end]};
    return {begin * per_bag_, end * per_bag_};
  }

 private:
  const int64_t* row_splits_;
  int64_t per_bag_;
};

inline int64_t IntegerAt(const HashInput& input, int64_t i) {
  return input.type == ValueType::kInt32
             ? static_cast<const int32_t*>(input.values)[i]
             : static_cast<const int64_t*>(input.values)[i];
}

// TensorFlow's threads take denormal numbers as 0, others do not: signs must
// not depend on it.
inline float WithoutDenormals(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? 0 : value;
}

inline float FloatAt(const HashInput& input, int64_t i) {
  return WithoutDenormals(static_cast<const float*>(input.values)[i]);
}

inline std::string_view StringAt(const HashInput& input, int64_t i) {
  std::string_view view;
  input.view_strings(input.values, i, 1, &view);
  return view;
}

const char* TypeName(ValueType type);

// `column` names the column, to begin a sentence.
Status CheckBucketSize(const std::string& column, int64_t bucket_size);

// A HashPart made ready for the type of its input.
struct PreparedPart {
  int64_t input = 0;
  ValueType type = ValueType::kInt64;
  uint64_t bucket_size = 0;
  std::vector<float> boundaries;
  bool has_missing = false;
  std::string missing_text;  // by type, one of these three
  int64_t missing_integer = 0;
  float missing_float = 0;

  // `column` names the column, to begin a sentence.
  Status Init(const std::string& column, const HashPart& part,
              const std::vector<ValueType>& input_types);

  // False: no value of this part is ever missing.
  bool CanDrop() const { return has_missing || type == ValueType::kFloat; }

  bool IsMissing(const HashInput& values, int64_t i) const {
    if (type == ValueType::kFloat) {
      const float value = FloatAt(values, i);
      return std::isnan(value) || (has_missing && value == missing_float);
    }
    if (!has_missing) return false;
    if (type == ValueType::kString) return StringAt(values, i) == missing_text;
    return IntegerAt(values, i) == missing_integer;
  }

  int64_t BucketOf(double value) const {
    const auto above =
        std::upper_bound(boundaries.begin(), boundaries.end(), value,
                         [](double v, float boundary) { return v < boundary; });
    return above - boundaries.begin();
  }

  // The text is in the input or in `decimal`.
  std::string_view TextAt(const HashInput& values, int64_t i,
                          Decimal* decimal) const {
    std::string_view text;
    if (type == ValueType::kString) {
      text = StringAt(values, i);
    } else if (type == ValueType::kFloat) {
      text = decimal->Write(BucketOf(FloatAt(values, i)));
    } else if (!boundaries.empty()) {
      text =
          decimal->Write(BucketOf(static_cast<double>(IntegerAt(values, i))));
    } else {
      text = decimal->Write(IntegerAt(values, i));
    }
    return bucket_size == 0 ? text : decimal->WriteBucket(text, bucket_size);
  }
};

// A few values of a part. All texts are written before the first is hashed:
// reading back what was just written stalls the processor.
class ValueBatch {
 public:
  static constexpr int64_t kMaxSize = TextWords::kMost;

  // Those of up to kMaxSize values [begin, end) that are not missing.
  void Read(const PreparedPart& part, const HashInput& input, int64_t begin,
            int64_t end) {
    begin_ = begin;
    size_ = end - begin;
    gaps_ = false;
    if (!part.CanDrop()) return;
    size_ = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (!part.IsMissing(input, i)) places_[size_++] = i;
    }
    gaps_ = size_ < end - begin;
  }

  int64_t size() const { return size_; }
  // Which of the input's values value k is.
  int64_t place(int64_t k) const { return gaps_ ? places_[k] : begin_ + k; }

  // [size()], valid until the next call.
  const std::string_view* Texts(const PreparedPart& part,
                                const HashInput& input) {
    if (part.type == ValueType::kString && part.bucket_size == 0 && !gaps_) {
      input.view_strings(input.values, begin_, size_, texts_);
    } else {
      for (int64_t k = 0; k < size_; ++k) {
        texts_[k] = part.TextAt(input, place(k), &decimals_[k]);
      }
    }
    return texts_;
  }

 private:
  int64_t begin_ = 0;
  int64_t size_ = 0;
  bool gaps_ = false;
  int64_t places_[kMaxSize];  // only if there are gaps
  std::string_view texts_[kMaxSize];
  Decimal decimals_[kMaxSize];
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_HASH_PART_H_
