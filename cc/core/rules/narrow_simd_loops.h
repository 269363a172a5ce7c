// SPDX-License-Identifier: Apache-2.0
// The loops over narrow values with AVX2 and AVX-512, which the compiler does
// not find by itself: it uses half of the width of the registers.
#ifndef TF_EXT_CC_CORE_RULES_NARROW_SIMD_LOOPS_H_
#define TF_EXT_CC_CORE_RULES_NARROW_SIMD_LOOPS_H_
#ifdef __x86_64__

#include <immintrin.h>

#include <cstdint>

#include "cc/core/rules/narrow_loops.h"

namespace tf_ext {

#define TF_EXT_AVX2_INLINE \
  __attribute__((always_inline, TF_EXT_AVX2)) static inline
#define TF_EXT_AVX512_INLINE \
  __attribute__((always_inline, TF_EXT_AVX512)) static inline

// Of 8 or 16 values, of which some are NaN or above the largest: not inlined,
// because there are hardly any.
template <FieldType kType>
__attribute__((noinline)) int64_t NarrowSpecial(const float* from, int64_t n,
                                                const uint64_t* row_key,
                                                const uint16_t* multipliers,
                                                uint8_t* to) {
  return NarrowValues<kType>(from, n, row_key, multipliers, to);
}

struct Avx2Narrow {
  template <FieldType kType>
  TF_EXT_AVX2_INLINE void Widen(const uint8_t* from, int64_t n, float* to) {
    const int64_t bytes = FieldTypeBytes(kType);
    for (; n >= 8; n -= 8, from += 8 * bytes, to += 8) {
      _mm256_storeu_ps(to, Load8<kType>(from));
    }
    WidenValues<kType>(from, n, to);
  }
  template <FieldType kType>
  TF_EXT_AVX2_INLINE int64_t Narrow(const float* from, int64_t n,
                                    const uint64_t* row_key,
                                    const uint16_t* multipliers, uint8_t* to) {
    const int64_t bytes = FieldTypeBytes(kType);
    int64_t saturated = 0;
    for (; n >= 16; n -= 16, from += 16, multipliers += 16, to += 16 * bytes) {
      saturated += Store16<kType>(from, row_key, multipliers, to);
    }
    for (; n >= 8; n -= 8, from += 8, multipliers += 8, to += 8 * bytes) {
      saturated += Store8<kType>(from, row_key, multipliers, to);
    }
    return saturated + NarrowValues<kType>(from, n, row_key, multipliers, to);
  }
  TF_EXT_NARROW_ROWS(TF_EXT_AVX2)

  template <FieldType kType>
  TF_EXT_AVX2_INLINE __m256 Load8(const uint8_t* from) {
    if (kType == FieldType::kFloat32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    }
    const __m128i halves =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if (kType == FieldType::kFloat16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // Magnitudes, moved so that comparisons of signed numbers find those that
  // IsSpecial asks for.
  template <FieldType kType>
  TF_EXT_AVX2_INLINE __m256i MovedMagnitude(__m256i bits) {
    return _mm256_sub_epi32(
        _mm256_and_si256(bits, _mm256_set1_epi32(kMagnitude)),
        _mm256_set1_epi32(NarrowType<kType>::kSmallestNormal + kSignBit));
  }
  // Whether some are NaN, too large, or too small to be rounded like the
  // others.
  template <FieldType kType>
  TF_EXT_AVX2_INLINE bool IsSpecial(__m256i moved) {
    using Type = NarrowType<kType>;
    const __m256i special = _mm256_cmpgt_epi32(
        moved,
        _mm256_set1_epi32(Type::kLargest - Type::kSmallestNormal - kSignBit));
    return __builtin_expect(!_mm256_testz_si256(special, special), 0);
  }
  template <FieldType kType>
  TF_EXT_AVX2_INLINE int64_t Store16(const float* from, const uint64_t* row_key,
                                     const uint16_t* multipliers, uint8_t* to) {
    const auto values = reinterpret_cast<const __m256i*>(from);
    const __m256i low = _mm256_loadu_si256(values);
    const __m256i high = _mm256_loadu_si256(values + 1);
    const auto out = reinterpret_cast<__m128i*>(to);
    if (kType == FieldType::kFloat32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + 1, high);
      return 0;
    }
    if (IsSpecial<kType>(_mm256_max_epi32(MovedMagnitude<kType>(low),
                                          MovedMagnitude<kType>(high)))) {
      return StoreSpecial8<kType>(from, row_key, multipliers, to) +
             StoreSpecial8<kType>(from + 8, row_key, multipliers + 8, to + 16);
    }
    const __m256i random =
        _mm256_permute4x64_epi64(Random16<kType>(row_key, multipliers), 0xd8);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low_sum =
        _mm256_add_epi32(low, _mm256_unpacklo_epi16(random, zero));
    const __m256i high_sum =
        _mm256_add_epi32(high, _mm256_unpackhi_epi16(random, zero));
    if (kType == FieldType::kFloat16) {
      _mm_storeu_si128(out, _mm256_cvtps_ph(_mm256_castsi256_ps(low_sum),
                                            _MM_FROUND_TO_ZERO));
      _mm_storeu_si128(out + 1, _mm256_cvtps_ph(_mm256_castsi256_ps(high_sum),
                                                _MM_FROUND_TO_ZERO));
    } else {
      const __m256i packed = _mm256_packus_epi32(
          _mm256_srli_epi32(low_sum, 16), _mm256_srli_epi32(high_sum, 16));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          _mm256_permute4x64_epi64(packed, 0xd8));
    }
    return 0;
  }
  template <FieldType kType>
  TF_EXT_AVX2_INLINE int64_t Store8(const float* from, const uint64_t* row_key,
                                    const uint16_t* multipliers, uint8_t* to) {
    const __m256i bits =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if (kType == FieldType::kFloat32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
      return 0;
    }
    if (IsSpecial<kType>(MovedMagnitude<kType>(bits))) {
      return StoreSpecial8<kType>(from, row_key, multipliers, to);
    }
    const __m256i sum =
        _mm256_add_epi32(bits, Random8<kType>(row_key, multipliers));
    const auto out = reinterpret_cast<__m128i*>(to);
    if (kType == FieldType::kFloat16) {
      _mm_storeu_si128(
          out, _mm256_cvtps_ph(_mm256_castsi256_ps(sum), _MM_FROUND_TO_ZERO));
    } else {
      const __m256i half = _mm256_srli_epi32(sum, 16);
      _mm_storeu_si128(out, _mm256_castsi256_si128(_mm256_permute4x64_epi64(
                                _mm256_packus_epi32(half, half), 0x08)));
    }
    return 0;
  }
  // The same if some values are special. Numbers that are only small, such as
  // zeros, may be frequent.
  template <FieldType kType>
  __attribute__((noinline, TF_EXT_AVX2)) static int64_t StoreSpecial8(
      const float* from, const uint64_t* row_key, const uint16_t* multipliers,
      uint8_t* to) {
    const __m256i bits =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i magnitude =
        _mm256_and_si256(bits, _mm256_set1_epi32(kMagnitude));
    const __m256i large =
        _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(Float16::kLargest));
    if (kType == FieldType::kBfloat16 || !_mm256_testz_si256(large, large)) {
      return NarrowValues<kType>(from, 8, row_key, multipliers, to);
    }
    // As Float16::Narrow, with signed numbers; the conversion is exact.
    const __m256i added = Random8<kType>(row_key, multipliers);
    const __m256i sign =
        _mm256_andnot_si256(_mm256_set1_epi32(kMagnitude), bits);
    const __m256i normal = _mm256_set1_epi32(Float16::kSmallestNormal);
    const __m256 moved_by = _mm256_castsi256_ps(_mm256_and_si256(
        _mm256_cmpgt_epi32(normal, magnitude), _mm256_or_si256(normal, sign)));
    const __m256 moved = _mm256_add_ps(_mm256_castsi256_ps(bits), moved_by);
    const __m256i rounded = _mm256_andnot_si256(
        _mm256_set1_epi32((1 << Float16::kDropped) - 1),
        _mm256_add_epi32(_mm256_castps_si256(moved), added));
    const __m256 back = _mm256_sub_ps(_mm256_castsi256_ps(rounded), moved_by);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm256_cvtps_ph(_mm256_or_ps(back, _mm256_castsi256_ps(sign)),
                        _MM_FROUND_TO_ZERO));
    return 0;
  }
  // What is added to 8 or 16 values, of RandomBits.
  template <FieldType kType>
  TF_EXT_AVX2_INLINE __m256i Random8(const uint64_t* row_key,
                                     const uint16_t* multipliers) {
    const auto of_positions = reinterpret_cast<const __m128i*>(multipliers);
    const auto halves = reinterpret_cast<const Stored32*>(row_key);
    const __m128i random =
        _mm_add_epi16(_mm_mullo_epi16(_mm_loadu_si128(of_positions),
                                      _mm_set1_epi32(halves[0])),
                      _mm_set1_epi32(halves[1]));
    return _mm256_cvtepu16_epi32(
        _mm_srli_epi16(random, 16 - NarrowType<kType>::kDropped));
  }
  template <FieldType kType>
  TF_EXT_AVX2_INLINE __m256i Random16(const uint64_t* row_key,
                                      const uint16_t* multipliers) {
    const auto of_positions = reinterpret_cast<const __m256i*>(multipliers);
    const auto halves = reinterpret_cast<const Stored32*>(row_key);
    const __m256i random =
        _mm256_add_epi16(_mm256_mullo_epi16(_mm256_loadu_si256(of_positions),
                                            _mm256_set1_epi32(halves[0])),
                         _mm256_set1_epi32(halves[1]));
    return _mm256_srli_epi16(random, 16 - NarrowType<kType>::kDropped);
  }
};

struct Avx512Narrow {
  template <FieldType kType>
  TF_EXT_AVX512_INLINE void Widen(const uint8_t* from, int64_t n, float* to) {
    const int64_t bytes = FieldTypeBytes(kType);
    for (; n >= 16; n -= 16, from += 16 * bytes, to += 16) {
      _mm512_storeu_ps(to, Load16<kType>(from));
    }
    Avx2Narrow::Widen<kType>(from, n, to);
  }
  template <FieldType kType>
  TF_EXT_AVX512_INLINE int64_t Narrow(const float* from, int64_t n,
                                      const uint64_t* row_key,
                                      const uint16_t* multipliers,
                                      uint8_t* to) {
    const int64_t bytes = FieldTypeBytes(kType);
    int64_t saturated = 0;
    for (; n >= 16; n -= 16, from += 16, multipliers += 16, to += 16 * bytes) {
      saturated += Store16<kType>(from, row_key, multipliers, to);
    }
    return saturated +
           Avx2Narrow::Narrow<kType>(from, n, row_key, multipliers, to);
  }
  TF_EXT_NARROW_ROWS(TF_EXT_AVX512)

  // For maskz, of which the compiler knows that it reads nothing undefined.
  static constexpr __mmask16 kAll = 0xffff;

  template <FieldType kType>
  TF_EXT_AVX512_INLINE __m512 Load16(const uint8_t* from) {
    if (kType == FieldType::kFloat32) return _mm512_loadu_ps(from);
    const __m256i halves =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if (kType == FieldType::kFloat16) {
      return _mm512_maskz_cvtph_ps(kAll, halves);
    }
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
        kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16));
  }
  template <FieldType kType>
  TF_EXT_AVX512_INLINE int64_t Store16(const float* from,
                                       const uint64_t* row_key,
                                       const uint16_t* multipliers,
                                       uint8_t* to) {
    const __m512i bits = _mm512_loadu_si512(from);
    if (kType == FieldType::kFloat32) {
      _mm512_storeu_si512(to, bits);
      return 0;
    }
    using Type = NarrowType<kType>;
    const __m512i magnitude =
        _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitude));
    // NaN, too large, or too small to be rounded like the others.
    const __mmask16 special = _mm512_cmpgt_epu32_mask(
        _mm512_sub_epi32(magnitude, _mm512_set1_epi32(Type::kSmallestNormal)),
        _mm512_set1_epi32(Type::kLargest - Type::kSmallestNormal));
    if (__builtin_expect(special != 0, 0)) {
      return StoreSpecial16<kType>(from, row_key, multipliers, to);
    }
    const __m512i sum =
        _mm512_add_epi32(bits, Random16<kType>(row_key, multipliers));
    const auto out = reinterpret_cast<__m256i*>(to);
    if (kType == FieldType::kFloat16) {
      _mm256_storeu_si256(out,
                          _mm512_maskz_cvtps_ph(kAll, _mm512_castsi512_ps(sum),
                                                _MM_FROUND_TO_ZERO));
    } else {
      const __m512i half = _mm512_maskz_srli_epi32(kAll, sum, Type::kDropped);
      _mm256_storeu_si256(out, _mm512_maskz_cvtepi32_epi16(kAll, half));
    }
    return 0;
  }
  // The same if some values are special. Numbers that are only small, such as
  // zeros, may be frequent.
  template <FieldType kType>
  __attribute__((noinline, TF_EXT_AVX512)) static int64_t StoreSpecial16(
      const float* from, const uint64_t* row_key, const uint16_t* multipliers,
      uint8_t* to) {
    const __m512i bits = _mm512_loadu_si512(from);
    const __m512i magnitude =
        _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitude));
    if (kType == FieldType::kBfloat16 ||
        _mm512_cmpgt_epi32_mask(magnitude,
                                _mm512_set1_epi32(Float16::kLargest)) != 0) {
      return NarrowSpecial<kType>(from, 16, row_key, multipliers, to);
    }
    // As Float16::Narrow, with signed numbers; the conversion is exact.
    const __m512i added = Random16<kType>(row_key, multipliers);
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(~kMagnitude));
    const __m512i normal = _mm512_set1_epi32(Float16::kSmallestNormal);
    const __mmask16 is_tiny = _mm512_cmpgt_epi32_mask(normal, magnitude);
    const __m512 moved_by = _mm512_castsi512_ps(_mm512_or_si512(normal, sign));
    const __m512 unmoved = _mm512_castsi512_ps(bits);
    const __m512i moved = _mm512_castps_si512(
        _mm512_mask_add_ps(unmoved, is_tiny, unmoved, moved_by));
    const __m512 rounded = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_add_epi32(moved, added),
                         _mm512_set1_epi32(~((1 << Float16::kDropped) - 1))));
    const __m512i back = _mm512_castps_si512(
        _mm512_mask_sub_ps(rounded, is_tiny, rounded, moved_by));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to),
        _mm512_maskz_cvtps_ph(kAll,
                              _mm512_castsi512_ps(_mm512_or_si512(back, sign)),
                              _MM_FROUND_TO_ZERO));
    return 0;
  }
  template <FieldType kType>
  TF_EXT_AVX512_INLINE __m512i Random16(const uint64_t* row_key,
                                        const uint16_t* multipliers) {
    return _mm512_maskz_cvtepu16_epi32(
        kAll, Avx2Narrow::Random16<kType>(row_key, multipliers));
  }
};
#undef TF_EXT_AVX2_INLINE
#undef TF_EXT_AVX512_INLINE

}  // namespace tf_ext

#endif  // __x86_64__
#endif  // TF_EXT_CC_CORE_RULES_NARROW_SIMD_LOOPS_H_
