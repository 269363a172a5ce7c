// Nothing with inline functions may be included: the linker could keep the
// copy made here for callers on machines without these instructions.
#ifdef __x86_64__
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")

#define TF_EXT_UPDATE_LOOPS kAvx512UpdateLoops
#include "cc/core/update_rule_loops.inc"
#endif
