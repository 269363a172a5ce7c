// SPDX-License-Identifier: Apache-2.0
// What the initializer loops need, as plain data: this file is compiled once
// for each instruction set and must not bring in inline functions, of which
// the linker keeps one copy for all.
#ifndef TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_ARGS_H_
#define TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_ARGS_H_

#include <stdint.h>

namespace tf_ext {

struct InitializerArgs {
  int64_t first;    // the position of the first value
  int64_t n;        // values
  uint64_t stream;  // mixed from the seed and the table id
  // constant: value, -, -
  // uniform: minval, maxval - minval, the greatest result
  // normal: mean, stddev, -
  float a;
  float b;
  float c;
};

// out: [args.n].
using InitializerFn = void (*)(const InitializerArgs& args, int64_t sign,
                               float* out);

struct InitializerLoops {
  InitializerFn constant;
  InitializerFn uniform;
  InitializerFn normal;
  InitializerFn truncated_normal;
};

extern const InitializerLoops kScalarInitializerLoops;
#ifdef __x86_64__
extern const InitializerLoops kAvx2InitializerLoops;
extern const InitializerLoops kAvx512InitializerLoops;
#endif

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_INITIALIZERS_INITIALIZER_ARGS_H_
