// SPDX-License-Identifier: Apache-2.0
// The loops over narrow values, to be compiled into functions of one
// instruction set; all give the same bits.
#ifndef TF_EXT_CC_CORE_RULES_NARROW_LOOPS_H_
#define TF_EXT_CC_CORE_RULES_NARROW_LOOPS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/rules/inline_loops.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/rule_spec.h"

namespace tf_ext {

// Values of rows whose fields are packed.
typedef uint16_t Stored16 __attribute__((aligned(1), may_alias));
// Halves of a row's key.
typedef int32_t Stored32 __attribute__((may_alias));

TF_EXT_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TF_EXT_INLINE float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline constexpr uint32_t kMagnitude = 0x7fffffff;
inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr uint32_t kInfinity = 0x7f800000;

// The 16 random bits of a position, of which the upper ones are used. The row's
// key is well mixed, so one multiplication is enough (multiply-shift hashing:
// Dietzfelbinger et al., 1997): the sum is uniform because one of its terms is.
// Even and odd positions use different bits of the key. `i`: the position, or
// that from a multiple of 2 before it.
TF_EXT_INLINE uint32_t RandomBits(uint64_t row_key, uint16_t multiplier,
                                  int64_t i) {
  const uint32_t shift = (i & 1) * 16;
  return ((static_cast<uint32_t>(row_key) >> shift) * multiplier +
          (static_cast<uint32_t>(row_key >> 32) >> shift)) &
         0xffff;
}

// A narrow value of the magnitude `half`, and of the sign of `bits`; `nan` if
// these are NaN. By masks: the compiler would make a branch of a choice.
TF_EXT_INLINE uint32_t WithSignAndNan(int32_t half, uint32_t nan,
                                      uint32_t bits) {
  const uint32_t is_nan =
      -static_cast<uint32_t>((bits & kMagnitude) > kInfinity);
  return (static_cast<uint32_t>(half) & ~is_nan) | (nan & is_nan) |
         (bits >> 16 & 0x8000);
}

// The types are rounded by adding to the bits of the magnitude and dropping the
// lowest: a random number for stochastic rounding. A carry into the exponent
// gives the next larger value, as it should.

// What is added to round to the nearest: half of the distance between
// representable values, or 1 less if the lower one is even.
template <class Type>
uint32_t NearestAdded(uint32_t magnitude) {
  return (1u << (Type::kDropped - 1)) - 1 + ((magnitude >> Type::kDropped) & 1);
}

// float16: 10 bits of fraction, exponents from -14, below which values are
// multiples of 2^-24.
struct Float16 {
  using Stored = Stored16;
  static constexpr bool kHasSimdLoops = true;       // in narrow_simd_loops.h
  static constexpr uint32_t kLargest = 0x477fe000;  // 65504, as a float32
  static constexpr int kDropped = 13;
  static constexpr int32_t kLargestHalf = 0x7bff;
  static constexpr int32_t kNan = 0x7e00;
  static constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  // Between the exponents, in a float16.
  static constexpr int32_t kOffset = 112 << 10;

  static TF_EXT_INLINE float Widen(uint32_t half) {
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special =
        (magnitude << 13) | kInfinity | (magnitude > 0x7c00 ? 1u << 22 : 0);
    const uint32_t tiny =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    uint32_t bits = magnitude < 0x400 ? tiny : normal;
    bits = magnitude >= 0x7c00 ? special : bits;
    return FloatOf(bits | (half & 0x8000) << 16);
  }
  static TF_EXT_INLINE uint32_t Narrow(uint32_t bits, uint32_t added) {
    // From 2^-14 to 2^-13, a float32 without its 13 lowest bits is a multiple
    // of 2^-24, too, so 2^-14 is added to smaller magnitudes.
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t is_tiny =
        -static_cast<uint32_t>(magnitude < kSmallestNormal);
    const uint32_t moved =
        BitsOf(FloatOf(magnitude) + FloatOf(kSmallestNormal & is_tiny));
    int32_t half = static_cast<int32_t>((moved + added) >> kDropped) -
                   static_cast<int32_t>(kOffset + (0x400 & is_tiny));
    half = half < kLargestHalf ? half : kLargestHalf;
    return WithSignAndNan(half, kNan, bits);
  }
  static uint32_t NarrowToNearest(uint32_t bits) {
    const float magnitude = FloatOf(bits & kMagnitude);
    if (!(magnitude < 0x1p-14f)) {
      return Narrow(bits, NearestAdded<Float16>(bits & kMagnitude));
    }
    // Multiples of 2^-24. The sum with 2^52 is rounded to an integer.
    const double multiple = static_cast<double>(magnitude) * 0x1p24;
    const double rounded = (multiple + 0x1p52) - 0x1p52;
    return static_cast<uint32_t>(rounded) | (bits >> 16 & 0x8000);
  }
};

// bfloat16: the upper half of a float32.
struct Bfloat16 {
  using Stored = Stored16;
  static constexpr bool kHasSimdLoops = true;
  static constexpr uint32_t kLargest = 0x7f7f0000;
  static constexpr uint32_t kSmallestNormal = 0;  // none is rounded otherwise
  static constexpr int kDropped = 16;
  static constexpr int32_t kLargestHalf = 0x7f7f;
  static constexpr int32_t kNan = 0x7fc0;

  static TF_EXT_INLINE float Widen(uint32_t half) {
    return FloatOf(half << 16);
  }
  static TF_EXT_INLINE uint32_t Narrow(uint32_t bits, uint32_t added) {
    int32_t half =
        static_cast<int32_t>(((bits & kMagnitude) + added) >> kDropped);
    half = half < kLargestHalf ? half : kLargestHalf;
    return WithSignAndNan(half, kNan, bits);
  }
  static uint32_t NarrowToNearest(uint32_t bits) {
    return Narrow(bits, NearestAdded<Bfloat16>(bits & kMagnitude));
  }
};

constexpr bool IsNarrow(FieldType type) {
  return FieldTypeBytes(type) < static_cast<int64_t>(sizeof(float));
}

// The class of a type that is narrow.
template <FieldType kType>
using NarrowType =
    std::conditional_t<kType == FieldType::kFloat16, Float16, Bfloat16>;

template <FieldType kType>
constexpr bool HasSimdLoops() {
  if constexpr (IsNarrow(kType)) return NarrowType<kType>::kHasSimdLoops;
  return true;  // copies
}

// Calls fn with the type as a std::integral_constant; int32 as float32, as it
// is copied like that.
template <class Fn>
auto WithFieldType(FieldType type, const Fn& fn) {
  switch (type) {
    case FieldType::kFloat16:
      return fn(std::integral_constant<FieldType, FieldType::kFloat16>());
    case FieldType::kBfloat16:
      return fn(std::integral_constant<FieldType, FieldType::kBfloat16>());
    case FieldType::kFloat32:
    case FieldType::kInt32:
      break;
  }
  return fn(std::integral_constant<FieldType, FieldType::kFloat32>());
}

// Whether the value is limited to the largest finite one.
template <class Type>
TF_EXT_INLINE int32_t Saturates(uint32_t bits) {
  const int32_t magnitude = static_cast<int32_t>(bits & kMagnitude);
  // Not &&, which would be a branch.
  return static_cast<int32_t>(magnitude >
                              static_cast<int32_t>(Type::kLargest)) &
         static_cast<int32_t>(magnitude <= static_cast<int32_t>(kInfinity));
}

template <class Type>
TF_EXT_INLINE void WidenLoop(const void* from, int64_t n, float* to) {
  using Stored = typename Type::Stored;
  const Stored* const values = static_cast<const Stored*>(from);
  TF_EXT_ROW_LOOP(int64_t i = 0; i < n; ++i) to[i] = Type::Widen(values[i]);
}

template <class Type>
TF_EXT_INLINE int64_t NarrowLoop(const float* from, int64_t n,
                                 const uint64_t* row_key,
                                 const uint16_t* multipliers, void* to) {
  using Stored = typename Type::Stored;
  Stored* const values = static_cast<Stored*>(to);
  int32_t saturated = 0;
  TF_EXT_ROW_LOOP(int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(from[i]);
    const uint32_t random = RandomBits(*row_key, multipliers[i], i);
    values[i] = static_cast<Stored>(
        Type::Narrow(bits, random >> (16 - Type::kDropped)));
    saturated += Saturates<Type>(bits);
  }
  return saturated;
}

template <FieldType kType>
TF_EXT_INLINE void WidenValues(const uint8_t* from, int64_t n, float* to) {
  if constexpr (IsNarrow(kType)) {
    WidenLoop<NarrowType<kType>>(from, n, to);
  } else {
    __builtin_memcpy(to, from, n * sizeof(float));
  }
}

template <FieldType kType>
TF_EXT_INLINE int64_t NarrowValues(const float* from, int64_t n,
                                   const uint64_t* row_key,
                                   const uint16_t* multipliers, uint8_t* to) {
  if constexpr (IsNarrow(kType)) {
    return NarrowLoop<NarrowType<kType>>(from, n, row_key, multipliers, to);
  }
  __builtin_memcpy(to, from, n * sizeof(float));
  return 0;
}

// Many rows, by a class's Widen and Narrow, as functions of one instruction
// set. kCount: the values of a row, or 0 if the compiler does not know them.
#define TF_EXT_NARROW_ROWS(attributes)                                      \
  template <FieldType kType, int64_t kCount>                                \
  __attribute__((attributes)) static void WidenFields(                      \
      const NarrowedField& field, const uint8_t* const* rows, int count,    \
      int64_t stride, uint8_t* computed) {                                  \
    const int64_t n = kCount > 0 ? kCount : field.count;                    \
    const int64_t from = field.stored;                                      \
    uint8_t* to = computed + field.computed;                                \
    for (int i = 0; i < count; ++i, to += stride) {                         \
      Widen<kType>(rows[i] + from, n, reinterpret_cast<float*>(to));        \
    }                                                                       \
  }                                                                         \
  template <FieldType kType, int64_t kCount>                                \
  __attribute__((attributes)) static int64_t NarrowFields(                  \
      const NarrowedField& field, const uint8_t* computed, int64_t stride,  \
      const uint64_t* row_keys, int count, uint8_t* const* rows) {          \
    const int64_t n = kCount > 0 ? kCount : field.count;                    \
    const int64_t to = field.stored;                                        \
    const uint16_t* const multipliers = field.multipliers.data();           \
    const uint8_t* from = computed + field.computed;                        \
    int64_t saturated = 0;                                                  \
    for (int i = 0; i < count; ++i, from += stride) {                       \
      saturated += Narrow<kType>(reinterpret_cast<const float*>(from), n,   \
                                 row_keys + i, multipliers, rows[i] + to);  \
    }                                                                       \
    return saturated;                                                       \
  }                                                                         \
  template <FieldType kType, int64_t kCount>                                \
  __attribute__((attributes)) static void WidenRows(                        \
      const uint8_t* const* rows, int64_t offset, const int64_t* positions, \
      int count, int64_t dim, float* out) {                                 \
    for (int i = 0; i < count; ++i) {                                       \
      Widen<kType>(rows[i] + offset, kCount > 0 ? kCount : dim,             \
                   out + positions[i]);                                     \
    }                                                                       \
  }

// The reference that the other instruction sets must match bit by bit.
struct ScalarNarrow {
  template <FieldType kType>
  static TF_EXT_INLINE void Widen(const uint8_t* from, int64_t n, float* to) {
    WidenValues<kType>(from, n, to);
  }
  template <FieldType kType>
  static TF_EXT_INLINE int64_t Narrow(const float* from, int64_t n,
                                      const uint64_t* row_key,
                                      const uint16_t* multipliers,
                                      uint8_t* to) {
    return NarrowValues<kType>(from, n, row_key, multipliers, to);
  }
  TF_EXT_NARROW_ROWS(TF_EXT_SCALAR)
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_NARROW_LOOPS_H_
