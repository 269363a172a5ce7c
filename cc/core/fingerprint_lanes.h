// Texts of nearly one size to be hashed together, as plain data: this file is
// compiled for several instruction sets and must not bring in inline functions,
// of which the linker keeps one copy for all.
#ifndef TF_EXT_CC_CORE_FINGERPRINT_LANES_H_
#define TF_EXT_CC_CORE_FINGERPRINT_LANES_H_

#include <stdint.h>

namespace tf_ext {

// Up to kMost texts, all of 8 to 16 bytes or all of 17 to 32.
struct FingerprintLanes {
  static constexpr int kMost = 64;

  uint64_t size[kMost];
  uint64_t first[kMost];         // 8 bytes each
  uint64_t second[kMost];        // of 17 to 32 bytes only
  uint64_t last_but_one[kMost];  // of 17 to 32 bytes only
  uint64_t last[kMost];
};

// Puts the fingerprints of the first n texts into `first`.
#ifdef __x86_64__
void HashLanes8To16Avx512(FingerprintLanes* lanes, int n);
void HashLanes17To32Avx512(FingerprintLanes* lanes, int n);
#endif

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_FINGERPRINT_LANES_H_
