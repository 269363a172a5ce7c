// SPDX-License-Identifier: Apache-2.0
#include "cc/core/initializers/initializer.h"

#include <algorithm>
#include <cmath>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/support/cpu.h"

namespace tf_ext {
namespace {

const InitializerLoops& CurrentLoops() {
#ifdef __x86_64__
  switch (CurrentSimdLevel()) {
    case SimdLevel::kAvx512:
      return kAvx512InitializerLoops;
    case SimdLevel::kAvx2:
      return kAvx2InitializerLoops;
    case SimdLevel::kScalar:
      break;
  }
#endif
  return kScalarInitializerLoops;
}

// Two mixes, so that neither (seed, id) and (id, seed) nor seeds and ids of
// equal sum give the same stream.
uint64_t Stream(uint64_t seed, const std::string& table_name) {
  return Mix64(Mix64(seed + 0x9e3779b97f4a7c15u) ^ Fingerprint64(table_name));
}

}  // namespace

Initializer::Initializer(const InitializerConfig& config,
                         const std::string& table_name, uint64_t seed,
                         int64_t dim)
    : args_{0, dim, Stream(seed, table_name), config.a, config.b, 0} {
  const InitializerLoops& loops = CurrentLoops();
  switch (config.kind) {
    case InitializerKind::kZeros:
      args_.a = 0;
      fill_ = loops.constant;
      return;
    case InitializerKind::kConstant:
      fill_ = loops.constant;
      return;
    case InitializerKind::kUniform: {
      const float minval = config.a;
      const float maxval = config.b;
      args_.b = maxval - minval;
      // minval + u * range can be rounded up to maxval.
      args_.c = std::max(minval, std::nextafter(maxval, minval));
      fill_ = loops.uniform;
      return;
    }
    case InitializerKind::kNormal:
      fill_ = loops.normal;
      return;
    case InitializerKind::kTruncatedNormal:
      fill_ = loops.truncated_normal;
      return;
  }
  fill_ = loops.constant;
}

}  // namespace tf_ext
