// SPDX-License-Identifier: Apache-2.0
// Bags of rows combined into one vector each, and the gradient of that.
//
// There are `columns` columns of `batch` bags; bag (c, b) holds the values
// row_splits[c * batch + b] .. row_splits[c * batch + b + 1] and is written to
// out[b, c * dim : (c + 1) * dim]. A row of `out` may be part of a longer one,
// with the bags of other tables.
#ifndef TF_EXT_CC_CORE_BAGS_COMBINE_H_
#define TF_EXT_CC_CORE_BAGS_COMBINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"

namespace tf_ext {

enum class Combiner { kSum, kMean, kSqrtn, kMax };

Status ParseCombiner(const std::string& name, Combiner* combiner);

// Weighted bags: sum = sum(w x), mean = sum(w x) / sum(w), sqrtn = sum(w x) /
// sqrt(sum(w^2)), as tf.nn.embedding_lookup_sparse; max takes no weights. An
// empty bag, or one whose divisor is zero, gives zeros.
struct Bags {
  std::vector<Combiner> combiners;  // [columns]
  int64_t batch = 0;
  int64_t dim = 0;
  int64_t unique = 0;                   // rows in `rows`
  int64_t n = 0;                        // values
  const float* rows = nullptr;          // [unique, dim]
  const int32_t* inverse = nullptr;     // [n], each in [0, unique)
  const int64_t* row_splits = nullptr;  // [columns * batch + 1]
  const float* weights = nullptr;       // [n] or nullptr
  // Whether row_splits are 0, 1, 2, ...: one value in each bag. False is right
  // for such bags, too, only slower.
  bool singles = false;

  int64_t columns() const { return static_cast<int64_t>(combiners.size()); }
};

// What `singles` of the bags may be.
bool HaveOneValueEach(const Bags& bags);

// Splits that start at 0, do not fall and end at n; inverse in range; no
// weights with max. The error names position, found and allowed value.
Status CheckBags(const Bags& bags);

// out: [batch, columns * dim]. `bags` must have passed CheckBags.
void CombineBags(const Bags& bags, const ParallelFor& parallel_for, float* out);

// The same for bags of several tables with the same batch, at least one. From
// one row of each of `outs` to the next one are `stride` values.
void CombineBags(const std::vector<Bags>& tables,
                 const ParallelFor& parallel_for, int64_t stride,
                 const std::vector<float*>& outs);

// gradient: [batch, columns * dim]; rows_gradient: [unique, dim], a row's
// values added in the order of `inverse` whatever the number of threads;
// weights_gradient: [n], or nullptr if not wanted or there are no weights. The
// gradient of max goes in equal parts to all values of the bag that reach it.
// Only an error if memory for scratch is lacking.
Status CombineBagsGradient(const Bags& bags, const float* gradient,
                           const ParallelFor& parallel_for,
                           float* rows_gradient, float* weights_gradient);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BAGS_COMBINE_H_
