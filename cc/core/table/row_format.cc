// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/row_format.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cc/core/table/row_slabs.h"

namespace tf_ext {

namespace {

// Initial weights are rounded like those of a push at step 0, so many at once.
constexpr int64_t kRoundedAtOnce = 256;

template <typename Store>
void RoundInitial(const RowFormat& format, int64_t sign, int64_t begin,
                  const Store& store) {
  const uint64_t key = RowRoundingKey(format.rounding_key, sign);
  float computed[kRoundedAtOnce];
  for (int64_t first = begin; first < format.dim; first += kRoundedAtOnce) {
    const int64_t n = std::min(kRoundedAtOnce, format.dim - first);
    format.initializer->Fill(sign, first, n, computed);
    store(first, n, computed, key);
  }
}

}  // namespace

RowFormat::RowFormat(const RowLayout& layout,
                     const Initializer* row_initializer,
                     uint64_t rounding_stream, const UnknownRows* unknown_rows,
                     const Shrinkage* shrinks, const AbsentRows* moves)
    : stride(layout.stride()),
      dim(layout.fields()[0].count),
      initializer(row_initializer),
      dtype(layout.fields()[0].type),
      read_bytes(RowLayout::kWeightsOffset + layout.fields()[0].bytes()),
      widen_rows(WidenRowsOf(dtype, dim)),
      shrinkage(shrinks),
      absent(moves),
      copies_bytes(widen_rows == nullptr && shrinkage == nullptr &&
                   absent == nullptr),
      rounding_key(RoundingKey(rounding_stream, 0)),
      multipliers(widen_rows == nullptr ? std::vector<uint16_t>()
                                        : PositionMultipliers(0, dim)),
      unknown(unknown_rows) {
  const int64_t slots_offset = read_bytes;
  if (shrinkage != nullptr) read_bytes += sizeof(int64_t);
  if (absent != nullptr) read_bytes = stride;
  slots.resize(stride - slots_offset);
  for (size_t f = 1; f < layout.fields().size(); ++f) {
    const Field& field = layout.fields()[f];
    uint8_t* at = slots.data() + (field.offset - slots_offset);
    const int64_t bytes = FieldTypeBytes(field.type);
    for (int64_t i = 0; i < field.count; ++i, at += bytes) {
      if (field.type == FieldType::kInt32) {
        const int32_t start = static_cast<int32_t>(field.start);
        std::memcpy(at, &start, sizeof(start));
      } else {
        const float start = static_cast<float>(field.start);
        NarrowToNearest(field.type, &start, 1, at);
      }
    }
  }
}

void RowFormat::FillInitial(int64_t sign, float* weights) const {
  if (widen_rows == nullptr) return initializer->Fill(sign, weights);
  RoundInitial(*this, sign, 0,
               [&](int64_t first, int64_t n, const float* from, uint64_t key) {
                 uint16_t stored[kRoundedAtOnce];
                 NarrowTo(dtype, from, n, key, multipliers.data() + first,
                          stored);
                 WidenTo(dtype, stored, n, weights + first);
               });
}

void RowFormat::StartWeights(int64_t sign, int64_t first,
                             uint8_t* weights) const {
  // An even position and the next one share random bits.
  RoundInitial(*this, sign, first - first % 2,
               [&](int64_t begin, int64_t n, const float* from, uint64_t key) {
                 uint8_t* const to = weights + begin * FieldTypeBytes(dtype);
                 if (widen_rows == nullptr) {
                   std::memcpy(to, from, n * sizeof(float));
                 } else {
                   NarrowTo(dtype, from, n, key, multipliers.data() + begin,
                            to);
                 }
               });
}

void RowFormat::FillUnknown(int64_t sign, float* weights) const {
  switch (unknown->kind) {
    case UnknownRows::Kind::kInitial:
      return FillInitial(sign, weights);
    case UnknownRows::Kind::kZeros:
      std::fill_n(weights, dim, 0.0f);
      return;
    case UnknownRows::Kind::kVector:
      std::copy_n(unknown->vector.data(), dim, weights);
      return;
    case UnknownRows::Kind::kShared:
      if (unknown->IsShared(sign)) return FillInitial(sign, weights);
      std::fill_n(weights, dim, std::numeric_limits<float>::quiet_NaN());
      return;
  }
}

void RowFormat::SetWeights(uint8_t* row, const float* weights) const {
  NarrowToNearest(dtype, weights, dim, row + RowLayout::kWeightsOffset);
}

void RowFormat::Start(uint8_t* row, int64_t sign, bool with_weights) const {
  RowSlabs::StoreSign(row, sign);
  uint8_t* const weights = row + RowLayout::kWeightsOffset;
  if (with_weights && widen_rows == nullptr) {
    initializer->Fill(sign, reinterpret_cast<float*>(weights));
  } else if (with_weights) {
    StartWeights(sign, 0, weights);
  }
  // data() of an empty vector may be null, which must not be passed to memcpy.
  if (!slots.empty()) {
    std::memcpy(row + stride - slots.size(), slots.data(), slots.size());
  }
}

}  // namespace tf_ext
