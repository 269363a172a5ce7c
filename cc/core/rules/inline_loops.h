// SPDX-License-Identifier: Apache-2.0
// How loops over rows are written, so that they can be compiled into functions
// of one instruction set.
#ifndef TF_EXT_CC_CORE_RULES_INLINE_LOOPS_H_
#define TF_EXT_CC_CORE_RULES_INLINE_LOOPS_H_

#define TF_EXT_INLINE inline __attribute__((always_inline))
// Loops over a row: its fields and the gradient do not overlap, which saves a
// second version of each loop; and loops of a few values are left whole for
// the vectorizer, which does better than with the straight line that
// unrolling makes of them.
#define TF_EXT_ROW_LOOP _Pragma("GCC ivdep") _Pragma("GCC unroll 1") for

// Attributes of the functions of an instruction set.
#define TF_EXT_SCALAR \
  optimize("no-tree-loop-vectorize", "no-tree-slp-vectorize")
#define TF_EXT_AVX2 target("avx2,f16c")
#define TF_EXT_AVX512                            \
  target(                                        \
      "avx512f,avx512dq,avx512vl,avx512bw,f16c," \
      "prefer-vector-width=512")

#endif  // TF_EXT_CC_CORE_RULES_INLINE_LOOPS_H_
