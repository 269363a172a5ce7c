// The reference that the other instruction sets must match bit by bit.
#pragma GCC optimize("no-tree-loop-vectorize", "no-tree-slp-vectorize")

#define TF_EXT_UPDATE_LOOPS kScalarUpdateLoops
#include "cc/core/update_rule_loops.inc"
