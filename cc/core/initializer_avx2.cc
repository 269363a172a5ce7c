#ifdef __x86_64__
#pragma GCC target("avx2,fma")

#define TF_EXT_INITIALIZER_LOOPS kAvx2InitializerLoops
#include "cc/core/initializer_loops.inc"
#endif
