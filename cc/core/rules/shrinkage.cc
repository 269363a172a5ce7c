// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/shrinkage.h"

#include <vector>

#include "cc/core/rules/inline_loops.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/support/cpu.h"

namespace tf_ext {
namespace {

// Units of the clock in 1.
constexpr int kUnitBits = 47;
constexpr double kUnits = int64_t{1} << kUnitBits;

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// -log(1 - x) for x from 0 to less than 1.
double MinusLogOfRest(double x) {
  double rest = 1 - x;
  double result = 0;
  for (; rest < 0.5; rest *= 2) result += kLn2;
  // Exact, but for the x that was passed, of which no bit may be lost.
  if (result > 0) x = 1 - rest;
  // The logarithm is -2 atanh(s).
  const double s = x / (2 - x);
  const double square = s * s;
  double sum = 0;
  for (int odd = 41; odd > 0; odd -= 2) sum = sum * square + 1.0 / odd;
  return result + 2 * s * sum;
}

}  // namespace

// Shrinks rows on each instruction set, as in row_loop.h.
struct ShrinkLoops {
  static constexpr int kLanes = Shrinkage::kLanes;
  typedef int64_t Longs __attribute__((vector_size(kLanes * sizeof(int64_t))));
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));

  // What is left of a weight w is s + s * change - less, with s = w * power:
  // a factor near 1 in a single float would have the error of its last bit in
  // every step.
  struct Factors {
    float power[Shrinkage::kMostRows];
    float change[Shrinkage::kMostRows];
    float less[Shrinkage::kMostRows];
  };

  // How far rows are behind, by lane. clocks: receives how far they are then.
  // Vectors are not returned: how depends on the instruction set of the caller.
  static TF_EXT_INLINE void FindBehind(const uint8_t* const* fields,
                                       int64_t now, int64_t* clocks,
                                       Longs* behind) {
    const auto at = [=](int lane) {
      int64_t shrunk;
      __builtin_memcpy(&shrunk, fields[lane], sizeof(shrunk));
      // Any number below 0, as of a forged file, is kNotShrunk.
      return shrunk | (shrunk >> 63);
    };
    // Not by an array: the processor cannot read several values together right
    // after it has stored each of them.
    const Longs shrunk = {at(0), at(1), at(2), at(3),
                          at(4), at(5), at(6), at(7)};
    // By bits: of comparisons, the compiler makes a branch a lane.
    const Longs found = now - shrunk;
    const Longs ahead = found & ~(found >> 63);
    const Longs reached = shrunk + ahead;
    __builtin_memcpy(clocks, &reached, sizeof(reached));
    *behind = ahead & ~(shrunk >> 63);  // kNotShrunk is below 0
  }

  // Of 2^-x, with x = k - y and |y| at most 1/2: the power is 2^-k, and the
  // change 2^y - 1.
  template <bool kL1>
  static TF_EXT_INLINE void FactorsOf(float ratio, const Longs& x, int first,
                                      Factors* factors) {
    // With which the bits of the power are those of 0.
    constexpr int32_t kMost = 127;
    constexpr int64_t kHalf = int64_t{1} << (kUnitBits - 1);
    constexpr float kToExponent = static_cast<float>(-kLn2 / kUnits);
    const Longs rounded = (x + kHalf) >> kUnitBits;
    // y ln 2, and e to it by its series.
    const Floats r =
        __builtin_convertvector(x - (rounded << kUnitBits), Floats) *
        kToExponent;
    Floats q = r * (1.0f / 40320) + 1.0f / 5040;
    q = q * r + 1.0f / 720;
    q = q * r + 1.0f / 120;
    q = q * r + 1.0f / 24;
    q = q * r + 1.0f / 6;
    q = q * r + 0.5f;
    const Floats change = q * r * r + r;
    const Ints found = __builtin_convertvector(rounded, Ints);
    const Ints k = found < kMost ? found : Ints{} + kMost;
    const Ints bits = (kMost - k) << 23;
    Floats power;
    __builtin_memcpy(&power, &bits, sizeof(power));
    __builtin_memcpy(factors->power + first, &power, sizeof(power));
    __builtin_memcpy(factors->change + first, &change, sizeof(change));
    if (!kL1) return;
    const Floats less = ratio * ((1 - power) - power * change);
    __builtin_memcpy(factors->less + first, &less, sizeof(less));
  }

  template <int64_t kDim, bool kL1>
  static TF_EXT_INLINE void Rows(const Shrinkage& shrinkage,
                                 const uint8_t* const* fields, int64_t now,
                                 int count, int64_t* clocks,
                                 const float* const* from, float* const* to) {
    const bool l2 = !kL1 || shrinkage.l2_ > 0;
    const float ratio =
        static_cast<float>(l2 ? shrinkage.l1_ / shrinkage.l2_ : 1 / kUnits);
    const int64_t dim = kDim > 0 ? kDim : shrinkage.dim_;
    // First all factors: the processor computes those of the next lanes while
    // these wait for one another.
    Factors factors;
    for (int first = 0; first < count; first += kLanes) {
      Longs behind;
      FindBehind(fields + first, now, clocks + first, &behind);
      // Without l2, nothing is multiplied.
      FactorsOf<kL1>(ratio, l2 ? behind : Longs{}, first, &factors);
      if (kL1 && !l2) {
        const Floats less = ratio * __builtin_convertvector(behind, Floats);
        __builtin_memcpy(factors.less + first, &less, sizeof(less));
      }
    }
    for (int i = 0; i < count; ++i) {
      const float power = factors.power[i];
      const float change = factors.change[i];
      const float less = kL1 ? factors.less[i] : 0;
      const float* const source = from[i];
      float* const target = to[i];
      TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
        if (!kL1) {
          const float scaled = source[j] * power;
          target[j] = scaled + scaled * change;
        } else {
          const float scaled = __builtin_fabsf(source[j]) * power;
          const float left = (scaled + scaled * change) - less;
          target[j] = __builtin_copysignf(left > 0 ? left : 0, source[j]);
        }
      }
    }
  }

#define TF_EXT_SHRINK_ROWS(Simd, attributes)                                   \
  struct Simd {                                                                \
    template <int64_t kDim, bool kL1>                                          \
    __attribute__(attributes) static void Shrink(const Shrinkage& shrinkage,   \
                                                 const uint8_t* const* fields, \
                                                 int64_t now, int count,       \
                                                 int64_t* clocks,              \
                                                 const float* const* from,     \
                                                 float* const* to) {           \
      Rows<kDim, kL1>(shrinkage, fields, now, count, clocks, from, to);        \
    }                                                                          \
  }

  TF_EXT_SHRINK_ROWS(ScalarShrink, (TF_EXT_SCALAR));
#ifdef __x86_64__
  TF_EXT_SHRINK_ROWS(Avx2Shrink, (TF_EXT_AVX2));
  TF_EXT_SHRINK_ROWS(Avx512Shrink, (TF_EXT_AVX512));
#endif
#undef TF_EXT_SHRINK_ROWS

  template <class Simd, bool kL1>
  static Shrinkage::ShrinkFn OfDim(int64_t dim) {
    switch (dim) {
      case 1:
        return Simd::template Shrink<1, kL1>;
      case 8:
        return Simd::template Shrink<8, kL1>;
      case 16:
        return Simd::template Shrink<16, kL1>;
      case 32:
        return Simd::template Shrink<32, kL1>;
      case 64:
        return Simd::template Shrink<64, kL1>;
    }
    return Simd::template Shrink<0, kL1>;
  }

  template <class Simd>
  static Shrinkage::ShrinkFn OfL1(int64_t dim, bool l1) {
    return l1 ? OfDim<Simd, true>(dim) : OfDim<Simd, false>(dim);
  }

  static Shrinkage::ShrinkFn ForCpu(int64_t dim, bool l1) {
#ifdef __x86_64__
    switch (CurrentSimdLevel()) {
      case SimdLevel::kAvx512:
        return OfL1<Avx512Shrink>(dim, l1);
      case SimdLevel::kAvx2:
        return OfL1<Avx2Shrink>(dim, l1);
      case SimdLevel::kScalar:
        break;
    }
#endif
    return OfL1<ScalarShrink>(dim, l1);
  }
};

Shrinkage::Shrinkage(double l2, double l1, int64_t dim, int64_t field)
    : l2_(l2),
      l1_(l1),
      dim_(dim),
      field_(field),
      shrink_(ShrinkLoops::ForCpu(dim, l1 > 0)) {}

int64_t Shrinkage::Advance(double learning_rate) {
  const double by = l2_ > 0 ? MinusLogOfRest(learning_rate * l2_) / kLn2
                            : learning_rate * l1_;
  const int64_t step = static_cast<int64_t>(
      std::min(by * kUnits + 0.5, static_cast<double>(kLast / 2)));
  int64_t now = now_.load(std::memory_order_relaxed);
  int64_t next;
  do {
    next = std::min(now + step, kLast);
  } while (!now_.compare_exchange_weak(now, next));
  return next;
}

void Shrinkage::ShrinkStored(const uint8_t* const* rows, int64_t now,
                             int64_t count, FieldType type, uint8_t* weights,
                             int64_t stride) const {
  std::vector<float> row(dim_);
  for (int64_t i = 0; i < count; ++i) {
    uint8_t* const stored = weights + i * stride;
    WidenTo(type, stored, dim_, row.data());
    const auto at = [&row](int64_t) { return row.data(); };
    Shrink(rows + i, now, 1, at, at);
    NarrowToNearest(type, row.data(), dim_, stored);
  }
}

}  // namespace tf_ext
