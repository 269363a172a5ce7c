// SPDX-License-Identifier: Apache-2.0
// Which instruction set update rules, initializers and fingerprints use.
#ifndef TF_EXT_CC_CORE_SUPPORT_CPU_H_
#define TF_EXT_CC_CORE_SUPPORT_CPU_H_

namespace tf_ext {

enum class SimdLevel { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// The best level of this machine, or less if SetSimdLevelForTesting said so.
SimdLevel CurrentSimdLevel();
SimdLevel BestSimdLevel();
// Tables, rules and initializers made after the call use `level`, which must
// not be above BestSimdLevel().
void SetSimdLevelForTesting(SimdLevel level);
const char* SimdLevelName(SimdLevel level);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_CPU_H_
