#ifdef __x86_64__
#pragma GCC target("avx2,fma")

#define TF_EXT_UPDATE_LOOPS kAvx2UpdateLoops
#include "cc/core/update_rule_loops.inc"
#endif
