// SPDX-License-Identifier: Apache-2.0
// How a rule's loop over a row becomes one over rows, on each instruction set.
//
// A rule writes its formula once, as a struct with
//
//   using Args = ...;  // derived from RowArgs: one push, as plain data
//   static TF_EXT_INLINE void Row(const Args& args, int64_t dim, RowParts row,
//                                 const float* __restrict g);
//
// and Prepared<Loop>(push, args) picks the function for the dim and the
// machine. Only these functions, one a rule, dim and instruction set, may use
// its instructions: what they call is compiled into them (TF_EXT_INLINE), for
// of an ordinary inline function the linker keeps one copy, for all machines.
//
// Formulas use only float +, -, *, /, sqrt and comparisons, in a fixed order
// and without contraction, so that every instruction set gives the same bits.
// The order of operations is that of Keras 3 (keras/src/optimizers).
#ifndef TF_EXT_CC_CORE_RULES_ROW_LOOP_H_
#define TF_EXT_CC_CORE_RULES_ROW_LOOP_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "cc/core/rules/inline_loops.h"
#include "cc/core/rules/rule_spec.h"
#include "cc/core/support/cpu.h"

namespace tf_ext {

// What the offsets of a row's fields are added to: the row, or copies of its
// weights and slots in float32.
struct RowParts {
  uint8_t* weights;
  uint8_t* slots;
};

// What all rules need of a push. Fields are bytes from the start of a part.
struct RowArgs {
  explicit RowArgs(const PushInput& push)
      : dim(push.dim),
        weights(push.Offset("weights")),
        learning_rate(push.Float("learning_rate")),
        weight_decay(push.Float("weight_decay")) {}

  int64_t dim;
  int64_t weights;
  float learning_rate;
  float weight_decay;
};

TF_EXT_INLINE float* Floats(uint8_t* part, int64_t offset) {
  return reinterpret_cast<float*>(part + offset);
}

TF_EXT_INLINE float Sqrt(float x) { return __builtin_sqrtf(x); }

// numerator / denominator, but no step at all where Keras would make a row
// infinite or NaN forever: a denominator of zero (no epsilon, and squares
// that are zero or underflow) or NaN (root of a number below zero).
TF_EXT_INLINE float Step(float numerator, float denominator) {
  return denominator > 0.0f ? numerator / denominator : 0.0f;
}

TF_EXT_INLINE float Decayed(const RowArgs& args, float weight) {
  return weight - weight * args.weight_decay * args.learning_rate;
}

// kDim: the dim if it is known to the compiler, or 0.
template <class Loop, int64_t kDim>
TF_EXT_INLINE void UpdateRows(const void* args, uint8_t* const* weights,
                              uint8_t* const* slots, const float* gradients,
                              const int64_t* gradient_index, int64_t count) {
  // A copy that no store to a row can change: it stays in registers.
  const typename Loop::Args a = *static_cast<const typename Loop::Args*>(args);
  const int64_t dim = kDim > 0 ? kDim : a.dim;
  for (int64_t i = 0; i < count; ++i) {
    Loop::Row(a, dim, {weights[i], slots[i]},
              gradients + gradient_index[i] * dim);
  }
}

// UpdateRows as a function of one instruction set.
#define TF_EXT_UPDATE_ROWS(Simd, attributes)                                  \
  struct Simd {                                                               \
    template <class Loop, int64_t kDim>                                       \
    __attribute__(attributes) static void Update(                             \
        const void* args, uint8_t* const* weights, uint8_t* const* slots,     \
        const float* gradients, const int64_t* gradient_index,                \
        int64_t count) {                                                      \
      UpdateRows<Loop, kDim>(args, weights, slots, gradients, gradient_index, \
                             count);                                          \
    }                                                                         \
  }

// The reference that the other instruction sets must match bit by bit.
TF_EXT_UPDATE_ROWS(ScalarRows, (TF_EXT_SCALAR));
#ifdef __x86_64__
TF_EXT_UPDATE_ROWS(Avx2Rows, (TF_EXT_AVX2));
TF_EXT_UPDATE_ROWS(Avx512Rows, (TF_EXT_AVX512));
#endif
#undef TF_EXT_UPDATE_ROWS

template <class Simd, class Loop>
UpdateFn UpdateOfDim(int64_t dim) {
  switch (dim) {
    case 1:
      return Simd::template Update<Loop, 1>;
    case 4:
      return Simd::template Update<Loop, 4>;
    case 8:
      return Simd::template Update<Loop, 8>;
    case 16:
      return Simd::template Update<Loop, 16>;
    case 32:
      return Simd::template Update<Loop, 32>;
    case 64:
      return Simd::template Update<Loop, 64>;
  }
  return Simd::template Update<Loop, 0>;
}

template <class Loop>
UpdateFn UpdateOf(const PushInput& push) {
#ifdef __x86_64__
  switch (push.simd) {
    case SimdLevel::kAvx512:
      return UpdateOfDim<Avx512Rows, Loop>(push.dim);
    case SimdLevel::kAvx2:
      return UpdateOfDim<Avx2Rows, Loop>(push.dim);
    case SimdLevel::kScalar:
      break;
  }
#endif
  return UpdateOfDim<ScalarRows, Loop>(push.dim);
}

template <class Loop>
PreparedPush Prepared(const PushInput& push, typename Loop::Args args) {
  return {std::make_shared<const typename Loop::Args>(std::move(args)),
          UpdateOf<Loop>(push)};
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_ROW_LOOP_H_
