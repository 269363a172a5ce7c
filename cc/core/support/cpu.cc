// SPDX-License-Identifier: Apache-2.0
#include "cc/core/support/cpu.h"

#include <algorithm>
#include <atomic>

namespace tf_ext {
namespace {

SimdLevel Detect() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw")) {
    return SimdLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return SimdLevel::kAvx2;
  }
#endif
  return SimdLevel::kScalar;
}

std::atomic<SimdLevel>& Current() {
  static std::atomic<SimdLevel> level(BestSimdLevel());
  return level;
}

}  // namespace

SimdLevel CurrentSimdLevel() {
  return Current().load(std::memory_order_relaxed);
}

SimdLevel BestSimdLevel() {
  static const SimdLevel level = Detect();
  return level;
}

void SetSimdLevelForTesting(SimdLevel level) {
  Current().store(std::min(level, BestSimdLevel()), std::memory_order_relaxed);
}

const char* SimdLevelName(SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512:
      return "avx512";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kScalar:
      break;
  }
  return "scalar";
}

}  // namespace tf_ext
