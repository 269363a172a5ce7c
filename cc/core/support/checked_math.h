// SPDX-License-Identifier: Apache-2.0
// Sums and products of sizes that a caller, a peer or a file has named.
#ifndef TF_EXT_CC_CORE_SUPPORT_CHECKED_MATH_H_
#define TF_EXT_CC_CORE_SUPPORT_CHECKED_MATH_H_

#include <cstdint>

namespace tf_ext {

// The result of a sum or a product that does not fit int64. No tensor, file or
// buffer is of this size, so a comparison with a limit refuses it.
inline constexpr int64_t kBeyondInt64 = INT64_MAX;

// Of two sizes, which are not negative.
inline int64_t SaturatedAdd(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kBeyondInt64 : sum;
}

inline int64_t SaturatedMultiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kBeyondInt64 : product;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_CHECKED_MATH_H_
