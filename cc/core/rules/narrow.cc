// SPDX-License-Identifier: Apache-2.0
#include "cc/core/rules/narrow.h"

#include <algorithm>
#include <cstring>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/rules/narrow_loops.h"
#include "cc/core/rules/narrow_simd_loops.h"
#include "cc/core/support/cpu.h"

namespace tf_ext {
namespace {

// Other bits than those of the initial weights.
constexpr uint64_t kSalt = 0x2545f4914f6cdd1du;

template <class Type>
int64_t Nearest(const float* from, int64_t n, void* to) {
  using Stored = typename Type::Stored;
  Stored* const values = static_cast<Stored*>(to);
  int64_t saturated = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(from[i]);
    values[i] = static_cast<Stored>(Type::NarrowToNearest(bits));
    saturated += Saturates<Type>(bits);
  }
  return saturated;
}

// What a table needs for a field.
struct Functions {
  WidenFieldFn widen;
  NarrowFieldFn narrow;
  WidenRowsFn widen_rows;
};

template <class Simd, FieldType kType, int64_t kCount>
Functions FunctionsOf() {
  return {Simd::template WidenFields<kType, kCount>,
          Simd::template NarrowFields<kType, kCount>,
          Simd::template WidenRows<kType, kCount>};
}

template <class Simd, FieldType kType>
Functions FunctionsOfCount(int64_t count) {
  switch (count) {
    case 1:
      return FunctionsOf<Simd, kType, 1>();
    case 8:
      return FunctionsOf<Simd, kType, 8>();
    case 16:
      return FunctionsOf<Simd, kType, 16>();
    case 32:
      return FunctionsOf<Simd, kType, 32>();
    case 64:
      return FunctionsOf<Simd, kType, 64>();
  }
  return FunctionsOf<Simd, kType, 0>();
}

template <class Simd>
Functions FunctionsOfType(FieldType type, int64_t count) {
  return WithFieldType(type, [count](auto constant) {
    using Loops =
        std::conditional_t<HasSimdLoops<constant()>(), Simd, ScalarNarrow>;
    return FunctionsOfCount<Loops, constant()>(count);
  });
}

Functions FunctionsForCpu(FieldType type, int64_t count) {
#ifdef __x86_64__
  switch (CurrentSimdLevel()) {
    case SimdLevel::kAvx512:
      return FunctionsOfType<Avx512Narrow>(type, count);
    case SimdLevel::kAvx2:
      return FunctionsOfType<Avx2Narrow>(type, count);
    case SimdLevel::kScalar:
      break;
  }
#endif
  return FunctionsOfType<ScalarNarrow>(type, count);
}

}  // namespace

uint64_t RoundingStream(uint64_t seed, const std::string& table_name) {
  return Mix64(Mix64(seed ^ kSalt) ^ Fingerprint64(table_name));
}

NarrowRows::NarrowRows(uint64_t stream, bool copies_weights, bool copies_slots)
    : stream_(stream),
      copies_weights_(copies_weights),
      copies_slots_(copies_slots) {}

std::vector<uint16_t> PositionMultipliers(int64_t first, int64_t n) {
  std::vector<uint16_t> multipliers(n);
  for (int64_t i = 0; i < n; ++i) {
    multipliers[i] = static_cast<uint16_t>(Mix64(first + i + 1));
  }
  return multipliers;
}

void NarrowRows::Add(FieldType type, int64_t count, int64_t stored) {
  const bool copied = values_ == 0 ? copies_weights_ : copies_slots_;
  if (copied) {
    const Functions functions = FunctionsForCpu(type, count);
    fields_.push_back({type, count, stored, computed_bytes_,
                       PositionMultipliers(values_, count), functions.widen,
                       functions.narrow});
    computed_bytes_ += count * static_cast<int64_t>(sizeof(float));
    stride_ = (computed_bytes_ + ComputedRows::kLineBytes - 1) /
              ComputedRows::kLineBytes * ComputedRows::kLineBytes;
    capacity_ = static_cast<int>(std::clamp<int64_t>(
        ComputedRows::kBytes / stride_, 1, ComputedRows::kMostRows));
  }
  values_ += count;
}

std::vector<FieldOffset> NarrowRows::ComputedOffsets(
    const std::vector<FieldOffset>& stored) const {
  std::vector<FieldOffset> offsets = stored;
  for (FieldOffset& each : offsets) {
    for (const NarrowedField& field : fields_) {
      if (field.stored != each.second) continue;
      each.second = field.computed;
      break;
    }
  }
  return offsets;
}

ComputedRows::ComputedRows(const NarrowRows& narrow) : narrow_(narrow) {
  if (narrow.stride() > kBytes) {
    large_.reset(new uint8_t[narrow.stride() + kLineBytes]);
  }
  uint8_t* const start = large_ ? large_.get() : small_;
  first_ = start + -reinterpret_cast<uintptr_t>(start) % kLineBytes;
}

void ComputedRows::Widen(uint8_t* const* rows, int count) {
  const int64_t stride = narrow_.stride();
  for (int i = 0; i < count; ++i) copies_[i] = first_ + i * stride;
  rows_ = rows;
  count_ = count;
  weights_ = narrow_.copies_weights() ? copies_ : rows;
  slots_ = narrow_.copies_slots() ? copies_ : rows;
  for (const NarrowedField& field : narrow_.fields()) {
    field.widen(field, rows, count, stride, first_);
  }
}

int64_t ComputedRows::Narrow(uint64_t rounding_key) const {
  uint64_t keys[kMostRows];
  for (int i = 0; i < count_; ++i) {
    int64_t sign;  // with which a row begins
    std::memcpy(&sign, rows_[i], sizeof(sign));
    keys[i] = RowRoundingKey(rounding_key, sign);
  }
  int64_t saturated = 0;
  for (const NarrowedField& field : narrow_.fields()) {
    saturated +=
        field.narrow(field, first_, narrow_.stride(), keys, count_, rows_);
  }
  return saturated;
}

void WidenTo(FieldType type, const void* from, int64_t n, float* to) {
  WithFieldType(type, [=](auto constant) {
    WidenValues<constant()>(static_cast<const uint8_t*>(from), n, to);
  });
}

int64_t NarrowToNearest(FieldType type, const float* from, int64_t n,
                        void* to) {
  return WithFieldType(type, [=](auto constant) -> int64_t {
    if constexpr (IsNarrow(constant())) {
      return Nearest<NarrowType<constant()>>(from, n, to);
    }
    std::memcpy(to, from, n * sizeof(float));
    return 0;
  });
}

int64_t NarrowTo(FieldType type, const float* from, int64_t n, uint64_t row_key,
                 const uint16_t* multipliers, void* to) {
  return WithFieldType(type, [=, &row_key](auto constant) {
    return NarrowValues<constant()>(from, n, &row_key, multipliers,
                                    static_cast<uint8_t*>(to));
  });
}

WidenRowsFn WidenRowsOf(FieldType type, int64_t dim) {
  if (!IsNarrow(type)) return nullptr;
  return FunctionsForCpu(type, dim).widen_rows;
}

}  // namespace tf_ext
