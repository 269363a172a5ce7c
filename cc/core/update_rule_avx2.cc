// Nothing with inline functions may be included: the linker could keep the
// copy made here for callers on machines without these instructions.
#ifdef __x86_64__
#pragma GCC target("avx2")

#define TF_EXT_UPDATE_LOOPS kAvx2UpdateLoops
#include "cc/core/update_rule_loops.inc"
#endif
