// SPDX-License-Identifier: Apache-2.0
// Nothing with inline functions may be included: the linker could keep the
// copy made here for callers on machines without these instructions.
//
// Eight multiplications of 64 bits at once are what makes this worth while;
// AVX2 has none.
#ifdef __x86_64__
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")

#include "cc/core/hashing/fingerprint_words.inc"
#include "cc/core/hashing/text_words.h"

namespace tf_ext {

void HashWordsAvx512(TextWords* words, int n, uint64_t prefix,
                     uint64_t prefix_size) {
  for (int i = 0; i < n; ++i) {
    words->first[i] = Hash8To16(prefix | words->first[i] << (8 * prefix_size),
                                words->last[i], words->size[i] + prefix_size);
  }
}

}  // namespace tf_ext
#endif
