// SPDX-License-Identifier: Apache-2.0
#include "cc/core/bags/gradient_sum.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

// Some 30 microseconds of work.
constexpr int64_t kFloatsPerBlock = 32 << 10;
// Every block of sums reads all segments, which should be the lesser part of
// its work: that many floats of a row, or more, for each block.
constexpr int64_t kDimPerSumBlock = 8;
constexpr int64_t kMaxSumBlocks = 16;
// Values ahead of the current one whose sums are prefetched.
constexpr int64_t kAhead = 16;

// The sums [begin, end), which belong to one block. A sum is set when it is
// first needed, as far as segments rise; those that are passed over are zero.
template <int64_t kDim>
class BlockSums {
 public:
  BlockSums(int64_t dim, int64_t begin, int64_t end, float* sums)
      : dim_(dim), begin_(begin), end_(end), next_(begin), sums_(sums) {}

  void Add(const float* values, const int32_t* segments, int64_t n) {
    const int64_t dim = kDim == 0 ? dim_ : kDim;
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n && IsOwn(segments[i + kAhead])) {
        __builtin_prefetch(sums_ + segments[i + kAhead] * dim, 1);
      }
      const int64_t segment = segments[i];
      if (!IsOwn(segment)) continue;
      const float* __restrict from = values + i * dim;
      float* __restrict to = sums_ + segment * dim;
      if (segment >= next_) {
        ZeroUpTo(segment);
        next_ = segment + 1;
        // Not a copy: a sum that starts from 0 is never -0.
        for (int64_t d = 0; d < dim; ++d) to[d] = from[d] + 0.0f;
      } else {
        for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
      }
    }
  }

  void Finish() { ZeroUpTo(end_); }

 private:
  bool IsOwn(int64_t segment) const {
    return segment >= begin_ && segment < end_;
  }

  void ZeroUpTo(int64_t segment) {
    std::fill(sums_ + next_ * dim_, sums_ + segment * dim_, 0.0f);
  }

  const int64_t dim_;
  const int64_t begin_;
  const int64_t end_;
  int64_t next_;  // the first sum that is not set yet
  float* const sums_;
};

template <int64_t kDim>
void SumBlock(const std::vector<ValuePart>& parts, const int32_t* segments,
              int64_t dim, int64_t begin, int64_t end, float* sums) {
  BlockSums<kDim> block(dim, begin, end, sums);
  for (const ValuePart& part : parts) {
    block.Add(part.values, segments, part.n);
    segments += part.n;
  }
  block.Finish();
}

Status CheckSegments(const int32_t* segments, int64_t n, int64_t count) {
  // As unsigned a negative value is too large as well.
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, static_cast<uint32_t>(segments[i]));
  }
  if (n == 0 || static_cast<int64_t>(most) < count) return Status::Ok();
  int64_t i = 0;
  while (segments[i] >= 0 && segments[i] < count) ++i;
  return Invalid("segments[", i, "] is ", segments[i],
                 "; it must be at least 0 and below count, ", count, ".");
}

}  // namespace

Status SumSegments(const std::vector<ValuePart>& parts, const int32_t* segments,
                   int64_t dim, int64_t count, const ParallelFor& parallel_for,
                   float* sums) {
  int64_t n = 0;
  for (const ValuePart& part : parts) n += part.n;
  TF_EXT_RETURN_IF_ERROR(CheckSegments(segments, n, count));
  const int64_t blocks =
      std::max<int64_t>(1, std::min({n * dim / kFloatsPerBlock,
                                     dim / kDimPerSumBlock, kMaxSumBlocks}));
  RunBlocks(blocks, parallel_for, [&, blocks](int64_t block) {
    const auto sum = dim == 1    ? SumBlock<1>
                     : dim == 8  ? SumBlock<8>
                     : dim == 16 ? SumBlock<16>
                     : dim == 32 ? SumBlock<32>
                                 : SumBlock<0>;
    sum(parts, segments, dim, count * block / blocks,
        count * (block + 1) / blocks, sums);
  });
  return Status::Ok();
}

bool AllWithin(const float* values, int64_t n, float limit) {
  int beyond = 0;
  for (int64_t i = 0; i < n; ++i) beyond |= !(std::fabs(values[i]) <= limit);
  return beyond == 0;
}

}  // namespace tf_ext
