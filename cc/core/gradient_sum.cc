#include "cc/core/gradient_sum.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

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

// The sums [begin, end), which belong to one block. Long ones are set to zero
// just before they are first needed, as far as segments rise.
template <int64_t kDim>
void SumRange(const float* values, const int32_t* segments, int64_t n,
              int64_t any_dim, int64_t begin, int64_t end, float* sums) {
  const int64_t dim = kDim == 0 ? any_dim : kDim;
  const auto is_own = [begin, end](int64_t segment) {
    return segment >= begin && segment < end;
  };
  int64_t zeroed = begin;
  if (dim < kDimPerSumBlock) {
    std::fill(sums + begin * dim, sums + end * dim, 0.0f);
    zeroed = end;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n && is_own(segments[i + kAhead])) {
      __builtin_prefetch(sums + segments[i + kAhead] * dim, 1);
    }
    const int64_t segment = segments[i];
    if (!is_own(segment)) continue;
    if (segment >= zeroed) {
      std::fill(sums + zeroed * dim, sums + (segment + 1) * dim, 0.0f);
      zeroed = segment + 1;
    }
    const float* __restrict from = values + i * dim;
    float* __restrict to = sums + segment * dim;
    for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
  }
  std::fill(sums + zeroed * dim, sums + end * dim, 0.0f);
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
  return Status::InvalidArgument("segments[" + std::to_string(i) + "] is " +
                                 std::to_string(segments[i]) +
                                 "; it must be at least 0 and below count, " +
                                 std::to_string(count) + ".");
}

}  // namespace

Status SumSegments(const float* values, const int32_t* segments, int64_t n,
                   int64_t dim, int64_t count, const ParallelFor& parallel_for,
                   float* sums) {
  const Status status = CheckSegments(segments, n, count);
  if (!status.ok()) return status;
  const int64_t blocks =
      std::max<int64_t>(1, std::min({n * dim / kFloatsPerBlock,
                                     dim / kDimPerSumBlock, kMaxSumBlocks}));
  RunBlocks(blocks, parallel_for, [=](int64_t block) {
    const int64_t begin = count * block / blocks;
    const int64_t end = count * (block + 1) / blocks;
    const auto sum = dim == 1    ? SumRange<1>
                     : dim == 8  ? SumRange<8>
                     : dim == 16 ? SumRange<16>
                     : dim == 32 ? SumRange<32>
                                 : SumRange<0>;
    sum(values, segments, n, dim, begin, end, sums);
  });
  return Status::Ok();
}

bool AllWithin(const float* values, int64_t n, float limit,
               const ParallelFor& parallel_for) {
  std::atomic<bool> all{true};
  const int64_t blocks = std::max<int64_t>(1, n / kFloatsPerBlock);
  RunBlocks(blocks, parallel_for,
            [&all, values, n, limit, blocks](int64_t block) {
              const int64_t end = n * (block + 1) / blocks;
              int beyond = 0;
              for (int64_t i = n * block / blocks; i < end; ++i) {
                beyond |= !(std::fabs(values[i]) <= limit);
              }
              if (beyond != 0) all.store(false, std::memory_order_relaxed);
            });
  return all.load(std::memory_order_relaxed);
}

}  // namespace tf_ext
