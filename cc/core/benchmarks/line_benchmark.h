// SPDX-License-Identifier: Apache-2.0
// The cache lines that a pull and a push touch, and what they cost besides.
#ifndef TF_EXT_CC_CORE_BENCHMARKS_LINE_BENCHMARK_H_
#define TF_EXT_CC_CORE_BENCHMARKS_LINE_BENCHMARK_H_

#include <cstdint>

#include "cc/core/benchmarks/benchmark_util.h"
#include "cc/core/table/table.h"

namespace tf_ext {

// Prints, for a table with Adagrad that has the signs 0 to rows - 1:
//
// - the cache lines a row that a pull and a push touch, by kind, counted from
//   the addresses of a batch,
// - the CPU time of both, in turns with that of touching the same lines with
//   the same prefetches, but without hashing, tags, signs and the update,
// - the difference of the two.
void ReportLines(const Options& options, int64_t rows, Table* table);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BENCHMARKS_LINE_BENCHMARK_H_
