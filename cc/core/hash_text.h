// Values as texts: the inner loops of ColumnHasher.
#ifndef TF_EXT_CC_CORE_HASH_TEXT_H_
#define TF_EXT_CC_CORE_HASH_TEXT_H_

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/fingerprint.h"
#include "cc/core/hash_columns.h"

namespace tf_ext {

// A text that is composed piece by piece and reused for the next one, so that
// no value allocates once the longest has been seen.
class TextBuffer {
 public:
  explicit TextBuffer(std::string_view start) : chars_(256) { Append(start); }

  size_t size() const { return size_; }
  void Truncate(size_t size) { size_ = size; }

  void Append(std::string_view text) {
    Reserve(text.size());
    if (!text.empty()) {
      std::memcpy(chars_.data() + size_, text.data(), text.size());
    }
    size_ += text.size();
  }

  void Append(char c) {
    Reserve(1);
    chars_[size_++] = c;
  }

  template <typename Integer>
  void AppendDecimal(Integer value) {
    constexpr size_t kMaxChars = 20;
    Reserve(kMaxChars);
    char* const begin = chars_.data() + size_;
    size_ = std::to_chars(begin, begin + kMaxChars, value).ptr - chars_.data();
  }

  // The fingerprint of the text from `begin` on.
  uint64_t FingerprintFrom(size_t begin) const {
    return Fingerprint64(chars_.data() + begin, size_ - begin);
  }

 private:
  void Reserve(size_t more) {
    if (size_ + more > chars_.size()) {
      chars_.resize(std::max(size_ + more, 2 * chars_.size()));
    }
  }

  std::vector<char> chars_;
  size_t size_ = 0;
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

inline float FloatAt(const HashInput& input, int64_t i) {
  return static_cast<const float*>(input.values)[i];
}

inline std::string_view StringAt(const HashInput& input, int64_t i) {
  return input.string_at(input.values, i);
}

// A HashPart made ready for the type of its input.
struct ColumnHasher::Part {
  int64_t input = 0;
  ValueType type = ValueType::kInt64;
  int64_t bucket_size = 0;
  std::vector<float> boundaries;
  bool has_missing = false;
  std::string missing_text;  // by type, one of these three
  int64_t missing_integer = 0;
  float missing_float = 0;

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

  void AppendText(const HashInput& values, int64_t i, TextBuffer* text) const {
    const size_t begin = text->size();
    if (type == ValueType::kString) {
      text->Append(StringAt(values, i));
    } else if (type == ValueType::kFloat) {
      text->AppendDecimal(BucketOf(FloatAt(values, i)));
    } else if (!boundaries.empty()) {
      text->AppendDecimal(BucketOf(static_cast<double>(IntegerAt(values, i))));
    } else {
      text->AppendDecimal(IntegerAt(values, i));
    }
    if (bucket_size == 0) return;
    const uint64_t hash = text->FingerprintFrom(begin);
    text->Truncate(begin);
    text->AppendDecimal(hash % static_cast<uint64_t>(bucket_size));
  }
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASH_TEXT_H_
