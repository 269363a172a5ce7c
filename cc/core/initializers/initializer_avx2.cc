// SPDX-License-Identifier: Apache-2.0
// Nothing with inline functions may be included: the linker could keep the
// copy made here for callers on machines without these instructions.
#ifdef __x86_64__
#pragma GCC target("avx2")

#define TF_EXT_INITIALIZER_LOOPS kAvx2InitializerLoops
#include "cc/core/initializers/initializer_loops.inc"
#endif
