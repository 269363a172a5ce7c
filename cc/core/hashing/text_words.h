// SPDX-License-Identifier: Apache-2.0
// Short texts to be hashed together, as plain data: this file is compiled for
// several instruction sets and must not bring in inline functions, of which the
// linker keeps one copy for all.
#ifndef TF_EXT_CC_CORE_HASHING_TEXT_WORDS_H_
#define TF_EXT_CC_CORE_HASHING_TEXT_WORDS_H_

#include <stdint.h>

namespace tf_ext {

// Of texts of at least 8 bytes.
struct TextWords {
  static constexpr int kMost = 64;

  uint64_t size[kMost];   // in bytes
  uint64_t first[kMost];  // 8 bytes each
  uint64_t last[kMost];
};

// Puts the fingerprints of the first n texts, with the prefix, into `first`.
// Prefixes have up to 7 bytes, and up to 16 with the text.
#ifdef __x86_64__
void HashWordsAvx512(TextWords* words, int n, uint64_t prefix,
                     uint64_t prefix_size);
#endif

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_TEXT_WORDS_H_
