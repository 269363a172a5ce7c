// SPDX-License-Identifier: Apache-2.0
// Initial weights of a row. They depend on (seed, table id, sign, position)
// only, and are bitwise the same on every instruction set.
#ifndef TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_H_
#define TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_H_

#include <cstdint>
#include <string>

#include "cc/core/initializers/initializer_args.h"

namespace tf_ext {

enum class InitializerKind {
  kZeros,            // no parameter
  kConstant,         // initializer.value
  kUniform,          // initializer.minval, initializer.maxval: [minval, maxval)
  kNormal,           // initializer.mean, initializer.stddev
  kTruncatedNormal,  // the same; values beyond two stddev do not occur
};

struct InitializerConfig {
  InitializerKind kind = InitializerKind::kZeros;
  float a = 0;  // value, minval or mean
  float b = 0;  // maxval or stddev
};

class Initializer {
 public:
  // The table id is Fingerprint64(table_name).
  Initializer(const InitializerConfig& config, const std::string& table_name,
              uint64_t seed, int64_t dim);

  // out: [dim].
  void Fill(int64_t sign, float* out) const { fill_(args_, sign, out); }
  // Only positions [first, first + n). out: [n].
  void Fill(int64_t sign, int64_t first, int64_t n, float* out) const {
    InitializerArgs args = args_;
    args.first = first;
    args.n = n;
    fill_(args, sign, out);
  }

 private:
  InitializerArgs args_;
  InitializerFn fill_;  // picked for this CPU once
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_H_
