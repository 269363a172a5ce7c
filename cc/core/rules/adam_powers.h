// SPDX-License-Identifier: Apache-2.0
// Powers of Adam's betas, and the step size that follows from them.
#ifndef TF_EXT_CC_CORE_RULES_ADAM_POWERS_H_
#define TF_EXT_CC_CORE_RULES_ADAM_POWERS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cc/core/rules/inline_loops.h"

namespace tf_ext {

// beta_1^t and beta_2^t for every t below 2^32, by the digits of t in base
// 256: beta^t is the product of by_digit[i][digit i of t].
struct AdamPowers {
  AdamPowers(double base_1, double base_2) {
    Set(base_1, beta_1);
    Set(base_2, beta_2);
  }

  static TF_EXT_INLINE double Power(const double (&by_digit)[4][256],
                                    uint32_t t) {
    return by_digit[0][t & 255] * by_digit[1][t >> 8 & 255] *
           (by_digit[2][t >> 16 & 255] * by_digit[3][t >> 24]);
  }

  double beta_1[4][256];
  double beta_2[4][256];

 private:
  static void Set(double base, double (*by_digit)[256]) {
    for (int digit = 0; digit < 4; ++digit) {
      by_digit[digit][0] = 1;
      for (int i = 1; i < 256; ++i) {
        by_digit[digit][i] = by_digit[digit][i - 1] * base;
      }
      base *= by_digit[digit][255];
    }
  }
};

// Of all rows in step t, from 1 on.
inline double AdamStepSize(double learning_rate, double beta_1, double beta_2,
                           int64_t step) {
  const double t = static_cast<double>(std::max<int64_t>(step, 1));
  return learning_rate * std::sqrt(1 - std::pow(beta_2, t)) /
         (1 - std::pow(beta_1, t));
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_ADAM_POWERS_H_
