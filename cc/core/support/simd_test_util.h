// SPDX-License-Identifier: Apache-2.0
// For tests that compare the instruction sets of this machine.
#ifndef TF_EXT_CC_CORE_SUPPORT_SIMD_TEST_UTIL_H_
#define TF_EXT_CC_CORE_SUPPORT_SIMD_TEST_UTIL_H_

#include <vector>

#include "cc/core/support/cpu.h"

namespace tf_ext {

// From kScalar to the best of this machine.
inline std::vector<SimdLevel> SimdLevels() {
  std::vector<SimdLevel> levels;
  for (SimdLevel level :
       {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= BestSimdLevel()) levels.push_back(level);
  }
  return levels;
}

// What is made while this lives uses `level`.
class ScopedSimdLevel {
 public:
  explicit ScopedSimdLevel(SimdLevel level) : before_(CurrentSimdLevel()) {
    SetSimdLevelForTesting(level);
  }
  ~ScopedSimdLevel() { SetSimdLevelForTesting(before_); }
  ScopedSimdLevel(const ScopedSimdLevel&) = delete;
  ScopedSimdLevel& operator=(const ScopedSimdLevel&) = delete;

 private:
  const SimdLevel before_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_SIMD_TEST_UTIL_H_
