// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/finite_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cc/core/rules/inline_loops.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tf_ext {
namespace {

constexpr int32_t kInfinity = 0x7f800000;  // the bits of its exponent

// Whether any of n values of `count` rows is infinite or NaN.
bool AnyScalar(uint8_t* const* rows, int64_t offset, int64_t n, int64_t count) {
  int32_t most = 0;
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* const values = rows[r] + offset;
    for (int64_t i = 0; i < n; ++i) {
      int32_t bits;
      std::memcpy(&bits, values + i * sizeof(bits), sizeof(bits));
      most = std::max(most, bits & kInfinity);
    }
  }
  return most == kInfinity;
}

#ifdef __x86_64__
// The exponents of 8 values, of which those of infinity and NaN are the
// largest.
__attribute__((always_inline, TF_EXT_AVX2)) inline __m256i Exponents8(
    const uint8_t* values) {
  return _mm256_and_si256(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)),
      _mm256_set1_epi32(kInfinity));
}

// No branches but at the end: while rows are still on their way to the cache,
// the processor goes on with the next ones.
__attribute__((TF_EXT_AVX2)) bool AnyAvx2(uint8_t* const* rows, int64_t offset,
                                          int64_t n, int64_t count) {
  if (n < 8) return AnyScalar(rows, offset, n, count);
  __m256i most = _mm256_setzero_si256();
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* const values = rows[r] + offset;
    for (int64_t i = 0; i + 8 < n; i += 8) {
      most = _mm256_max_epi32(most, Exponents8(values + i * sizeof(float)));
    }
    // The last 8 overlap those before them.
    most = _mm256_max_epi32(most, Exponents8(values + (n - 8) * sizeof(float)));
  }
  const __m256i special =
      _mm256_cmpeq_epi32(most, _mm256_set1_epi32(kInfinity));
  return _mm256_movemask_epi8(special) != 0;
}

// Which of 16 values are infinite or NaN.
__attribute__((always_inline, TF_EXT_AVX512)) inline __mmask16 Special16(
    const uint8_t* values) {
  const __m512i infinity = _mm512_set1_epi32(kInfinity);
  return _mm512_cmpeq_epi32_mask(
      _mm512_and_si512(_mm512_loadu_si512(values), infinity), infinity);
}

__attribute__((TF_EXT_AVX512)) bool AnyAvx512(uint8_t* const* rows,
                                              int64_t offset, int64_t n,
                                              int64_t count) {
  if (n < 16) return AnyAvx2(rows, offset, n, count);
  uint32_t any = 0;
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* const values = rows[r] + offset;
    for (int64_t i = 0; i + 16 < n; i += 16) {
      any |= Special16(values + i * sizeof(float));
    }
    any |= Special16(values + (n - 16) * sizeof(float));
  }
  return any != 0;
}
#endif

bool Any(SimdLevel simd, uint8_t* const* rows, int64_t offset, int64_t n,
         int64_t count) {
#ifdef __x86_64__
  switch (simd) {
    case SimdLevel::kAvx512:
      return AnyAvx512(rows, offset, n, count);
    case SimdLevel::kAvx2:
      return AnyAvx2(rows, offset, n, count);
    case SimdLevel::kScalar:
      break;
  }
#endif
  return AnyScalar(rows, offset, n, count);
}

int64_t LimitRow(uint8_t* values, int64_t n, bool narrow) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  int64_t limited = 0;
  for (int64_t i = 0; i < n; ++i) {
    float value;
    uint8_t* const at = values + i * sizeof(value);
    std::memcpy(&value, at, sizeof(value));
    if (value >= -kLargest && value <= kLargest) continue;
    if (value != value) {
      value = 0;
    } else if (narrow) {
      continue;
    } else {
      value = value > 0 ? kLargest : -kLargest;
    }
    std::memcpy(at, &value, sizeof(value));
    ++limited;
  }
  return limited;
}

}  // namespace

void FiniteRows::Add(bool of_slots, int64_t offset, int64_t count,
                     bool narrow) {
  if (!ranges_.empty()) {
    Range& last = ranges_.back();
    const int64_t end =
        last.offset + last.count * static_cast<int64_t>(sizeof(float));
    if (last.of_slots == of_slots && last.narrow == narrow && end == offset) {
      last.count += count;
      return;
    }
  }
  ranges_.push_back({of_slots, offset, count, narrow});
}

int64_t FiniteRows::Limit(uint8_t* const* weights, uint8_t* const* slots,
                          int64_t count) const {
  int64_t limited = 0;
  for (const Range& range : ranges_) {
    uint8_t* const* const rows = range.of_slots ? slots : weights;
    if (!Any(simd_, rows, range.offset, range.count, count)) continue;
    for (int64_t i = 0; i < count; ++i) {
      limited += LimitRow(rows[i] + range.offset, range.count, range.narrow);
    }
  }
  return limited;
}

}  // namespace tf_ext
