// SPDX-License-Identifier: Apache-2.0
// The narrow types by their definition.
#ifndef TF_EXT_CC_CORE_RULES_NARROW_TEST_UTIL_H_
#define TF_EXT_CC_CORE_RULES_NARROW_TEST_UTIL_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "cc/core/rules/rule_spec.h"

namespace tf_ext {

// Bits of the exponent and the fraction.
struct Format {
  FieldType type;
  int exponent_bits;
  int fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t infinity() const {
    return ((1u << exponent_bits) - 1) << fraction_bits;
  }
  uint32_t largest() const { return infinity() - 1; }
  double Value(uint32_t half) const {
    const uint32_t magnitude = half & 0x7fff;
    const int exponent = static_cast<int>(magnitude >> fraction_bits);
    const uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
    double value;
    if (magnitude > infinity()) {
      value = std::nan("");
    } else if (magnitude == infinity()) {
      value = std::numeric_limits<double>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(fraction, 1 - bias() - fraction_bits);
    } else {
      value = std::ldexp((1u << fraction_bits) + fraction,
                         exponent - bias() - fraction_bits);
    }
    return (half & 0x8000) != 0 ? -value : value;
  }
  // The largest representable magnitude that is at most |value|, as bits.
  uint32_t Below(double value) const {
    uint32_t low = 0;
    uint32_t high = largest();
    while (low < high) {
      const uint32_t middle = (low + high + 1) / 2;
      if (Value(middle) <= std::fabs(value)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

inline constexpr Format kFormats[] = {{FieldType::kFloat16, 5, 10},
                                      {FieldType::kBfloat16, 8, 7}};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_NARROW_TEST_UTIL_H_
