// SPDX-License-Identifier: Apache-2.0
// The reference that the other instruction sets must match bit by bit.
#pragma GCC optimize("no-tree-loop-vectorize", "no-tree-slp-vectorize")

#define TF_EXT_INITIALIZER_LOOPS kScalarInitializerLoops
#include "cc/core/initializers/initializer_loops.inc"
