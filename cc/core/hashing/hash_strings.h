// SPDX-License-Identifier: Apache-2.0
// Arrays of strings as inputs of ColumnHasher.
#ifndef TF_EXT_CC_CORE_HASHING_HASH_STRINGS_H_
#define TF_EXT_CC_CORE_HASHING_HASH_STRINGS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/text_words.h"

namespace tf_ext {

// ViewStrings of an array of String, which has data() and size().
template <typename String>
void ViewStringsOf(const void* values, int64_t begin, int64_t n,
                   std::string_view* views) {
  const String* const strings = static_cast<const String*>(values) + begin;
  for (int64_t k = 0; k < n; ++k) {
    views[k] = {strings[k].data(), strings[k].size()};
  }
}

// ReadWords of the same.
template <typename String>
bool ReadWordsOf(const void* values, int64_t begin, int64_t n, size_t most,
                 TextWords* words) {
  constexpr size_t kWord = sizeof(uint64_t);
  // Into the next page: there the processor stops to fetch by itself.
  constexpr uintptr_t kBytesAhead = 6 << 10;
  const String* const strings = static_cast<const String*>(values) + begin;
  for (int64_t k = 0; k < n; ++k) {
    __builtin_prefetch(reinterpret_cast<const void*>(
        reinterpret_cast<uintptr_t>(strings + k) + kBytesAhead));
    const char* const data = strings[k].data();
    const size_t size = strings[k].size();
    if (size < kWord || size > most) return false;
    words->size[k] = size;
    std::memcpy(&words->first[k], data, kWord);
    std::memcpy(&words->last[k], data + size - kWord, kWord);
  }
  return true;
}

// Texts one after the other, as Apache Arrow has them: text i is from
// offsets[i] up to offsets[i + 1] of the data.
class TextArray {
 public:
  TextArray() = default;
  // Both outlive this. offsets: [n + 1].
  TextArray(const int32_t* offsets, const char* data)
      : offsets_(offsets), data_(data) {}

  // False if a text is not within `size` bytes.
  static bool Fits(const int32_t* offsets, int64_t n, int64_t size) {
    bool rises = true;
    for (int64_t i = 0; i < n; ++i) rises &= offsets[i] <= offsets[i + 1];
    return rises && offsets[0] >= 0 && offsets[n] <= size;
  }

  std::string_view at(int64_t i) const {
    return {data_ + offsets_[i],
            static_cast<size_t>(offsets_[i + 1] - offsets_[i])};
  }

 private:
  const int32_t* offsets_ = nullptr;
  const char* data_ = nullptr;
};

// Some of the texts of a TextArray, each any number of times.
class IndexedTexts {
 public:
  IndexedTexts() = default;
  // indices, [n], outlive this.
  IndexedTexts(TextArray texts, const int32_t* indices)
      : texts_(texts), indices_(indices) {}

  // False if one of the indices is not of `size` texts.
  static bool Fits(const int32_t* indices, int64_t n, int64_t size) {
    bool fits = true;
    for (int64_t i = 0; i < n; ++i) {
      fits &= indices[i] >= 0 && indices[i] < size;
    }
    return fits;
  }

  std::string_view at(int64_t i) const { return texts_.at(indices_[i]); }

 private:
  TextArray texts_;
  const int32_t* indices_ = nullptr;
};

// ViewStrings of Texts: TextArray or IndexedTexts.
template <typename Texts>
void ViewTexts(const void* values, int64_t begin, int64_t n,
               std::string_view* views) {
  const Texts& texts = *static_cast<const Texts*>(values);
  for (int64_t k = 0; k < n; ++k) views[k] = texts.at(begin + k);
}

// ReadWords of the same. The processor fetches ahead by itself.
template <typename Texts>
bool ReadTextWords(const void* values, int64_t begin, int64_t n, size_t most,
                   TextWords* words) {
  constexpr size_t kWord = sizeof(uint64_t);
  const Texts& texts = *static_cast<const Texts*>(values);
  for (int64_t k = 0; k < n; ++k) {
    const std::string_view text = texts.at(begin + k);
    if (text.size() < kWord || text.size() > most) return false;
    words->size[k] = text.size();
    std::memcpy(&words->first[k], text.data(), kWord);
    std::memcpy(&words->last[k], text.data() + text.size() - kWord, kWord);
  }
  return true;
}

// Sets what an input of Texts, which outlive it, has besides its sizes.
template <typename Texts>
void SetTexts(const Texts* texts, HashInput* input) {
  input->type = ValueType::kString;
  input->values = texts;
  input->view_strings = ViewTexts<Texts>;
  input->read_words = ReadTextWords<Texts>;
}

// Sets what an input of an array of String has besides its sizes.
template <typename String>
void SetStrings(const String* values, HashInput* input) {
  input->type = ValueType::kString;
  input->values = values;
  input->view_strings = ViewStringsOf<String>;
  input->read_words = ReadWordsOf<String>;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_HASH_STRINGS_H_
