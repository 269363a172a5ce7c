// SPDX-License-Identifier: Apache-2.0
// FarmHash's Fingerprint64: fixed for ever, the same as
// tf.strings.to_hash_bucket_fast, BigQuery's FARM_FINGERPRINT, Guava's
// farmHashFingerprint64 and ClickHouse's farmFingerprint64.
#ifndef TF_EXT_CC_CORE_HASHING_FINGERPRINT_H_
#define TF_EXT_CC_CORE_HASHING_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cc/core/hashing/text_words.h"

namespace tf_ext {

uint64_t Fingerprint64(const char* data, size_t size);

inline uint64_t Fingerprint64(std::string_view text) {
  return Fingerprint64(text.data(), text.size());
}

// Fingerprints of texts that begin alike, without joining the parts of short
// ones in memory: copying them costs more than hashing them.
class PrefixFingerprint {
 public:
  explicit PrefixFingerprint(std::string_view prefix);

  size_t prefix_size() const { return padded_.size() - kPadding; }
  std::string_view prefix() const { return {padded_.data(), prefix_size()}; }

  // out[i] = Fingerprint64(prefix + texts[i]) as a signed number, for i in
  // [0, n).
  void Fingerprints(const std::string_view* texts, int64_t n,
                    int64_t* out) const;

  // The same of n texts of 8 to MostOfWords() bytes, as words. That is 0 if
  // words are of no use with this prefix or processor.
  size_t MostOfWords() const;
  void OfWords(TextWords* words, int n, int64_t* out) const;

 private:
  static constexpr size_t kPadding = 8;

  uint64_t One(std::string_view text) const;
  // Of more than 64 bytes with the prefix.
  uint64_t Joined(std::string_view text) const;

  std::string padded_;  // the prefix, then zero bytes
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_FINGERPRINT_H_
