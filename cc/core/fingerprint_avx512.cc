// Nothing with inline functions may be included: the linker could keep the
// copy made here for callers on machines without these instructions.
//
// Eight multiplications of 64 bits at once are what makes this worth while;
// AVX2 has none.
#ifdef __x86_64__
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")

#include "cc/core/fingerprint_lanes.h"
#include "cc/core/fingerprint_words.inc"

namespace tf_ext {

void HashLanes8To16Avx512(FingerprintLanes* lanes, int n) {
  for (int i = 0; i < n; ++i) {
    lanes->first[i] =
        Hash8To16(lanes->first[i], lanes->last[i], lanes->size[i]);
  }
}

void HashLanes17To32Avx512(FingerprintLanes* lanes, int n) {
  for (int i = 0; i < n; ++i) {
    lanes->first[i] =
        Hash17To32(lanes->first[i], lanes->second[i], lanes->last_but_one[i],
                   lanes->last[i], lanes->size[i]);
  }
}

}  // namespace tf_ext
#endif
