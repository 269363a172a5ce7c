// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/absent_rows.h"

#include <utility>

#include "cc/core/rules/inline_loops.h"
#include "cc/core/support/cpu.h"

namespace tf_ext {

// Moves rows on each instruction set, as in row_loop.h.
struct AbsentLoops {
  template <int64_t kDim, int kTerms, bool kMoments>
  static TF_EXT_INLINE void Rows(const AbsentRows& rows,
                                 const AbsentRows::Batch& batch, int count) {
    // Below which 1 / x is not finite.
    constexpr float kSmallest = 0x1p-120f;
    const int64_t dim = kDim > 0 ? kDim : rows.dim_;
    const float epsilon = rows.epsilon_;
    for (int i = 0; i < count; ++i) {
      const AbsentRows::Move move = batch.moves[i];
      const float* const w = batch.weights[i];
      const float* const m = batch.m[i];
      const float* const v = batch.v[i];
      float* const to = batch.to[i];
      float* const m_to = kMoments ? batch.m_to[i] : nullptr;
      float* const v_to = kMoments ? batch.v_to[i] : nullptr;
      TF_EXT_ROW_LOOP(int64_t j = 0; j < dim; ++j) {
        const float below = __builtin_sqrtf(v[j]) + epsilon;
        const float inverse = below > kSmallest ? 1.0f / below : 0.0f;
        const float q = epsilon * inverse;
        float sum = move.sums[kTerms - 1];
        for (int d = kTerms - 2; d >= 0; --d) sum = sum * q + move.sums[d];
        to[j] = w[j] - m[j] * inverse * sum;
        if (kMoments) {
          m_to[j] = m[j] * move.power_1;
          v_to[j] = v[j] * move.power_2;
        }
      }
    }
  }

#define TF_EXT_MOVE_ROWS(Simd, attributes)                                     \
  struct Simd {                                                                \
    template <int64_t kDim, int kTerms, bool kMoments>                         \
    __attribute__(attributes) static void Move(const AbsentRows& rows,         \
                                               const AbsentRows::Batch& batch, \
                                               int count) {                    \
      Rows<kDim, kTerms, kMoments>(rows, batch, count);                        \
    }                                                                          \
  }

  TF_EXT_MOVE_ROWS(ScalarMove, (TF_EXT_SCALAR));
#ifdef __x86_64__
  TF_EXT_MOVE_ROWS(Avx2Move, (TF_EXT_AVX2));
  TF_EXT_MOVE_ROWS(Avx512Move, (TF_EXT_AVX512));
#endif
#undef TF_EXT_MOVE_ROWS

  template <class Simd, int kTerms, bool kMoments>
  static AbsentRows::MoveFn OfDim(int64_t dim) {
    switch (dim) {
      case 8:
        return Simd::template Move<8, kTerms, kMoments>;
      case 16:
        return Simd::template Move<16, kTerms, kMoments>;
      case 32:
        return Simd::template Move<32, kTerms, kMoments>;
      case 64:
        return Simd::template Move<64, kTerms, kMoments>;
    }
    return Simd::template Move<0, kTerms, kMoments>;
  }

  template <class Simd, bool kMoments>
  static AbsentRows::MoveFn OfTerms(int64_t dim, int terms) {
    return terms <= 3 ? OfDim<Simd, 3, kMoments>(dim)
                      : OfDim<Simd, AbsentWeights::kMostTerms, kMoments>(dim);
  }

  template <bool kMoments>
  static AbsentRows::MoveFn ForCpu(int64_t dim, int terms) {
#ifdef __x86_64__
    switch (CurrentSimdLevel()) {
      case SimdLevel::kAvx512:
        return OfTerms<Avx512Move, kMoments>(dim, terms);
      case SimdLevel::kAvx2:
        return OfTerms<Avx2Move, kMoments>(dim, terms);
      case SimdLevel::kScalar:
        break;
    }
#endif
    return OfTerms<ScalarMove, kMoments>(dim, terms);
  }
};

namespace {

// Where a rule sees a field.
int64_t Seen(const std::optional<NarrowRows>& narrow, int64_t offset) {
  if (!narrow) return offset;
  return narrow->ComputedOffsets({{"", offset}}).front().second;
}

float* FloatsAt(uint8_t* part, int64_t offset) {
  return reinterpret_cast<float*>(part + offset);
}

}  // namespace

AbsentRows::AbsentRows(const AdamMoments& moments, int64_t dim,
                       const AbsentFields& fields,
                       std::optional<NarrowRows> narrow)
    : dim_(dim),
      fields_(fields),
      narrow_(std::move(narrow)),
      weights_(Seen(narrow_, fields.weights.offset)),
      m_(Seen(narrow_, fields.m.offset)),
      v_(Seen(narrow_, fields.v.offset)),
      history_(moments),
      powers_(moments.beta_1, moments.beta_2),
      epsilon_(static_cast<float>(moments.epsilon * history_.weights().base())),
      move_weights_(
          AbsentLoops::ForCpu<false>(dim, history_.weights().terms())),
      move_all_(AbsentLoops::ForCpu<true>(dim, history_.weights().terms())) {}

void AbsentRows::FindMove(const AbsentView& view, const uint8_t* row,
                          bool with_powers, Move* move) const {
  const int64_t step = std::max<int64_t>(Get(row), 0);
  view.Get(step, move->sums);
  if (!with_powers) return;
  const uint32_t ago =
      static_cast<uint32_t>(std::max<int64_t>(view.now() - step, 0));
  move->power_1 = static_cast<float>(AdamPowers::Power(powers_.beta_1, ago));
  move->power_2 = static_cast<float>(AdamPowers::Power(powers_.beta_2, ago));
}

void AbsentRows::Read(const AbsentView& view, const uint8_t* const* rows,
                      const int64_t* positions, int64_t count,
                      float* out) const {
  const auto read = [&](int64_t begin, int n, uint8_t* const* weights,
                        uint8_t* const* slots) {
    Batch batch;
    for (int i = 0; i < n; ++i) {
      FindMove(view, rows[begin + i], false, &batch.moves[i]);
      batch.weights[i] = FloatsAt(weights[i], weights_);
      batch.m[i] = FloatsAt(slots[i], m_);
      batch.v[i] = FloatsAt(slots[i], v_);
      batch.to[i] = out + positions[begin + i];
    }
    move_weights_(*this, batch, n);
  };
  // They are only read.
  uint8_t* const* const mutable_rows = const_cast<uint8_t* const*>(rows);
  if (!narrow_) {
    for (int64_t begin = 0; begin < count; begin += kMostRows) {
      const int n =
          static_cast<int>(std::min<int64_t>(kMostRows, count - begin));
      read(begin, n, mutable_rows + begin, mutable_rows + begin);
    }
    return;
  }
  ComputedRows computed(*narrow_);
  for (int64_t begin = 0; begin < count; begin += narrow_->capacity()) {
    const int n =
        static_cast<int>(std::min<int64_t>(narrow_->capacity(), count - begin));
    computed.Widen(mutable_rows + begin, n);
    read(begin, n, computed.weights(), computed.slots());
  }
}

void AbsentRows::CatchUp(const AbsentView& view, const uint8_t* const* rows,
                         uint8_t* const* weights, uint8_t* const* slots,
                         int64_t count) const {
  for (int64_t begin = 0; begin < count; begin += kMostRows) {
    const int n = static_cast<int>(std::min<int64_t>(kMostRows, count - begin));
    Batch batch;
    for (int i = 0; i < n; ++i) {
      FindMove(view, rows[begin + i], true, &batch.moves[i]);
      batch.weights[i] = batch.to[i] = FloatsAt(weights[begin + i], weights_);
      batch.m[i] = batch.m_to[i] = FloatsAt(slots[begin + i], m_);
      batch.v[i] = batch.v_to[i] = FloatsAt(slots[begin + i], v_);
    }
    move_all_(*this, batch, n);
  }
}

void AbsentRows::Store(const AbsentView& view, const Shrinkage* shrinkage,
                       int64_t shrunk, const uint8_t* row,
                       const StoredMoved& to) const {
  std::vector<float> values(3 * dim_);
  float* const w = values.data();
  float* const m = w + dim_;
  float* const v = m + dim_;
  WidenTo(fields_.weights.type, row + fields_.weights.offset, dim_, w);
  WidenTo(fields_.m.type, row + fields_.m.offset, dim_, m);
  WidenTo(fields_.v.type, row + fields_.v.offset, dim_, v);
  Batch batch;
  FindMove(view, row, true, &batch.moves[0]);
  batch.weights[0] = batch.to[0] = w;
  batch.m[0] = batch.m_to[0] = m;
  batch.v[0] = batch.v_to[0] = v;
  move_all_(*this, batch, 1);
  if (shrinkage != nullptr) {
    const auto at = [w](int64_t) { return w; };
    shrinkage->Shrink(&row, shrunk, 1, at, at);
  }
  const auto store = [this](const AbsentFields::Moved& field, const float* from,
                            uint8_t* at) {
    if (at != nullptr) NarrowToNearest(field.type, from, dim_, at);
  };
  store(fields_.weights, w, to.weights);
  store(fields_.m, m, to.m);
  store(fields_.v, v, to.v);
}

void AbsentRows::Settle(const AbsentView& view, const Shrinkage* shrinkage,
                        int64_t shrunk, uint8_t* row) const {
  Store(view, shrinkage, shrunk, row,
        {row + fields_.weights.offset, row + fields_.m.offset,
         row + fields_.v.offset});
  Record(&row, view.now(), 1);
  // A row that was never pushed keeps its weights until it is.
  if (shrinkage != nullptr && shrinkage->Get(row) != kNotShrunk) {
    shrinkage->Record(&row, shrunk, 1);
  }
}

}  // namespace tf_ext
