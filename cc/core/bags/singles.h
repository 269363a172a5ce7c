// SPDX-License-Identifier: Apache-2.0
// Bags of one value each, without weights: a combiner makes no difference.
#ifndef TF_EXT_CC_CORE_BAGS_SINGLES_H_
#define TF_EXT_CC_CORE_BAGS_SINGLES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/bags/combine.h"

namespace tf_ext {

// Values ahead of the current one whose rows are prefetched.
inline constexpr int64_t kAhead = 16;

// Calls fn with the dim as a constant for the common ones, so that loops over
// it unroll and sums stay in registers; with 0 for all others.
template <typename Fn>
void DispatchDim(int64_t dim, const Fn& fn) {
  switch (dim) {
    case 1:
      return fn(std::integral_constant<int64_t, 1>());
    case 8:
      return fn(std::integral_constant<int64_t, 8>());
    case 16:
      return fn(std::integral_constant<int64_t, 16>());
    case 32:
      return fn(std::integral_constant<int64_t, 32>());
    case 64:
      return fn(std::integral_constant<int64_t, 64>());
    default:
      return fn(std::integral_constant<int64_t, 0>());
  }
}

inline void PrefetchFloats(const float* values, int64_t count) {
  constexpr int64_t kFloatsPerLine = 16;
  const int64_t most = std::min<int64_t>(count, 16 * kFloatsPerLine);
  for (int64_t i = 0; i < most; i += kFloatsPerLine) {
    __builtin_prefetch(values + i);
  }
}

// Copies rows to rows [first, last) of the batch; `stride` as of CombineBags.
template <int64_t kDim>
void CopySingles(const Bags& bags, int64_t first, int64_t last, int64_t stride,
                 float* __restrict out) {
  const int64_t dim = kDim == 0 ? bags.dim : kDim;
  for (int64_t c = 0; c < bags.columns(); ++c) {
    const int32_t* const inverse = bags.inverse + c * bags.batch;
    float* to = out + first * stride + c * dim;
    for (int64_t b = first; b < last; ++b, to += stride) {
      if (b + kAhead < last) {
        PrefetchFloats(bags.rows + inverse[b + kAhead] * dim, dim);
      }
      std::memcpy(to, bags.rows + inverse[b] * dim, dim * sizeof(float));
    }
  }
}

// The gradient of all rows, on one thread: nothing is distributed, and a row's
// values are added in their order.
template <int64_t kDim>
void SumSingles(const Bags& bags, const float* gradient, float* rows_gradient) {
  const int64_t dim = kDim == 0 ? bags.dim : kDim;
  const int64_t stride = bags.columns() * dim;
  std::fill_n(rows_gradient, bags.unique * dim, 0.0f);
  for (int64_t c = 0; c < bags.columns(); ++c) {
    const int32_t* const inverse = bags.inverse + c * bags.batch;
    const float* __restrict from = gradient + c * dim;
    for (int64_t b = 0; b < bags.batch; ++b, from += stride) {
      if (b + kAhead < bags.batch) PrefetchFloats(from + kAhead * stride, dim);
      float* __restrict to = rows_gradient + inverse[b] * dim;
      for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
    }
  }
}

// The gradient of rows [begin, end), to the same bits. All values are read for
// it, but the gradients of these rows' alone.
template <int64_t kDim>
void SumSinglesOf(const Bags& bags, const float* gradient, int64_t begin,
                  int64_t end, float* rows_gradient) {
  const int64_t dim = kDim == 0 ? bags.dim : kDim;
  const int64_t stride = bags.columns() * dim;
  constexpr int64_t kAtOnce = 512;
  int64_t own[kAtOnce];
  std::fill(rows_gradient + begin * dim, rows_gradient + end * dim, 0.0f);
  for (int64_t c = 0; c < bags.columns(); ++c) {
    const int32_t* const inverse = bags.inverse + c * bags.batch;
    const float* const column = gradient + c * dim;
    for (int64_t first = 0; first < bags.batch; first += kAtOnce) {
      const int64_t last = std::min(bags.batch, first + kAtOnce);
      int64_t n = 0;
      // Without a branch for each.
      for (int64_t b = first; b < last; ++b) {
        own[n] = b;
        n += (inverse[b] >= begin) & (inverse[b] < end);
      }
      for (int64_t i = 0; i < n; ++i) {
        if (i + kAhead < n) {
          PrefetchFloats(column + own[i + kAhead] * stride, dim);
        }
        const float* __restrict from = column + own[i] * stride;
        float* __restrict to = rows_gradient + inverse[own[i]] * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
      }
    }
  }
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BAGS_SINGLES_H_
