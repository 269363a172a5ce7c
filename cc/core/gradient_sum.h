// Gradients of several workers, or of several layers, added up by row.
#ifndef TF_EXT_CC_CORE_GRADIENT_SUM_H_
#define TF_EXT_CC_CORE_GRADIENT_SUM_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/status.h"

namespace tf_ext {

// sums[s] = the sum of values[i] with segments[i] == s, in the order of i,
// starting from 0: the same bits whatever the number of threads.
//
//   values    (n * dim)
//   segments  (n)            0 to count - 1, in any order
//   sums      (count * dim)  zeros where there is no value
//
// Fastest where most segments appear in rising order, as those of
// UniqueByShard do for one shard.
Status SumSegments(const float* values, const int32_t* segments, int64_t n,
                   int64_t dim, int64_t count, const ParallelFor& parallel_for,
                   float* sums);

// Whether -limit <= value <= limit for all of them; NaN is not.
//
//   values  (n)
bool AllWithin(const float* values, int64_t n, float limit,
               const ParallelFor& parallel_for);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_GRADIENT_SUM_H_
