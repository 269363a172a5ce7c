// SPDX-License-Identifier: Apache-2.0
// What the memory system allows a pull: no signs, no hashing, no comparison.
#ifndef TF_EXT_CC_CORE_BENCHMARKS_MEMORY_BENCHMARK_H_
#define TF_EXT_CC_CORE_BENCHMARKS_MEMORY_BENCHMARK_H_

#include "cc/core/benchmarks/benchmark_util.h"

namespace tf_ext {

// Prints the CPU time of reading the random lines that a pull reads, with the
// same prefetches, in pages of 4 KiB and in huge ones.
void BenchmarkMemory(const Options& options);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BENCHMARKS_MEMORY_BENCHMARK_H_
