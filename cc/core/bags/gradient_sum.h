// SPDX-License-Identifier: Apache-2.0
// Gradients of several workers, or of several layers, added up by row.
#ifndef TF_EXT_CC_CORE_BAGS_GRADIENT_SUM_H_
#define TF_EXT_CC_CORE_BAGS_GRADIENT_SUM_H_

#include <cstdint>
#include <vector>

#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"

namespace tf_ext {

// Some of the values to sum: n rows of them.
struct ValuePart {
  const float* values;
  int64_t n;
};

// sums[s] = the sum of the rows i of all parts, one part after the other, with
// segments[i] == s, in the order of i, starting from 0: the same bits whatever
// the number of threads.
//
//   parts     n rows of dim values together
//   segments  (n)            0 to count - 1, in any order
//   sums      (count * dim)  zeros where there is no value
//
// Fastest where most segments appear in rising order, as those of
// UniqueByShard do for one shard.
Status SumSegments(const std::vector<ValuePart>& parts, const int32_t* segments,
                   int64_t dim, int64_t count, const ParallelFor& parallel_for,
                   float* sums);

// Whether -limit <= value <= limit for all of them; NaN is not.
//
//   values  (n)
bool AllWithin(const float* values, int64_t n, float limit);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BAGS_GRADIENT_SUM_H_
