#include "cc/core/initializer.h"

#include <algorithm>
#include <cmath>

#include "cc/core/cpu.h"
#include "cc/core/fingerprint.h"
#include "cc/core/mix.h"

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
uint64_t Stream(const TableConfig& config) {
  return Mix64(Mix64(config.seed + 0x9e3779b97f4a7c15u) ^
               Fingerprint64(config.name));
}

}  // namespace

Initializer::Initializer(const TableConfig& config)
    : args_{config.dim, Stream(config), config.initializer.a,
            config.initializer.b, 0} {
  const InitializerLoops& loops = CurrentLoops();
  switch (config.initializer.kind) {
    case InitializerKind::kZeros:
      args_.a = 0;
      fill_ = loops.constant;
      return;
    case InitializerKind::kConstant:
      fill_ = loops.constant;
      return;
    case InitializerKind::kUniform: {
      const float minval = config.initializer.a;
      const float maxval = config.initializer.b;
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
