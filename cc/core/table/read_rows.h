// SPDX-License-Identifier: Apache-2.0
// Reading rows: weights, and statistics if wanted, under whatever locks the
// caller holds.
#ifndef TF_EXT_CC_CORE_TABLE_READ_ROWS_H_
#define TF_EXT_CC_CORE_TABLE_READ_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/core/table/batch_parts.h"
#include "cc/core/table/lookup.h"
#include "cc/core/table/row_format.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_statistics.h"

namespace tf_ext {

template <int64_t kDim>
void CopyWeightsOfDim(const uint8_t* const* rows, const int64_t* positions,
                      int count, float* out) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(out + positions[i], rows[i] + RowLayout::kWeightsOffset,
                kDim * sizeof(float));
  }
}

// The common dims without a call of memcpy a row.
inline void CopyBytes(int64_t dim, const uint8_t* const* rows,
                      const int64_t* positions, int count, float* out) {
  switch (dim) {
    case 1:
      return CopyWeightsOfDim<1>(rows, positions, count, out);
    case 8:
      return CopyWeightsOfDim<8>(rows, positions, count, out);
    case 16:
      return CopyWeightsOfDim<16>(rows, positions, count, out);
    case 32:
      return CopyWeightsOfDim<32>(rows, positions, count, out);
    case 64:
      return CopyWeightsOfDim<64>(rows, positions, count, out);
    default:
      for (int i = 0; i < count; ++i) {
        std::memcpy(out + positions[i], rows[i] + RowLayout::kWeightsOffset,
                    dim * sizeof(float));
      }
  }
}

// Weights that are not read as they are stored. Apart, so that the loop that
// copies others stays short.
__attribute__((noinline)) inline void ComputeWeights(const RowFormat& format,
                                                     const AbsentView* view,
                                                     const uint8_t* const* rows,
                                                     const int64_t* positions,
                                                     int count, float* out) {
  const bool widens = format.widen_rows != nullptr;
  if (view != nullptr) {
    format.absent->Read(*view, rows, positions, count, out);
  } else if (widens) {
    format.widen_rows(rows, RowLayout::kWeightsOffset, positions, count,
                      format.dim, out);
  }
  if (format.shrinkage == nullptr) return;
  const auto to = [=](int64_t i) { return out + positions[i]; };
  const auto from = [=](int64_t i) {
    const uint8_t* const weights = rows[i] + RowLayout::kWeightsOffset;
    return widens || view != nullptr ? to(i)
                                     : reinterpret_cast<const float*>(weights);
  };
  const Shrinkage& shrinkage = *format.shrinkage;
  shrinkage.Shrink(rows, shrinkage.now(), count, from, to);
}

inline void CopyWeights(const RowFormat& format, const AbsentView* view,
                        const uint8_t* const* rows, const int64_t* positions,
                        int count, float* out) {
  if (format.copies_bytes) {
    CopyBytes(format.dim, rows, positions, count, out);
  } else {
    ComputeWeights(format, view, rows, positions, count, out);
  }
}

// Where a pull copies rows to.
struct PullOutput {
  // The base of the positions of rows.
  float* rows;
  // What follows the weights of each row; nullptr: nothing.
  const RowStatistics* statistics;
  // Up to when rows are moved; nullptr: they stay where they are.
  const AbsentView* view;

  void Copy(const RowFormat& format, const uint8_t* const* from,
            const int64_t* positions, int count) const {
    CopyWeights(format, view, from, positions, count, rows);
    if (statistics != nullptr) {
      statistics->Copy(from, positions, count, rows + format.dim);
    }
  }
  void FillUnknown(const BatchItem& item, const RowFormat& format) const {
    float* const row = rows + item.position;
    format.FillUnknown(item.sign, row);
    if (statistics != nullptr) {
      std::fill_n(row + format.dim, statistics->width(), 0.0f);
    }
  }
};

// Copies the rows of the part's signs to their positions in `output`. Absent
// signs are written to `absent`, in order, which may be where the part has its
// items; or, if that is nullptr, read as unknown, with statistics of 0. Returns
// how many were written. `rows_of` as in LookUp.
template <typename Part, typename RowsOf>
int64_t ReadRows(const Part& part, const RowFormat& format,
                 const RowsOf& rows_of, const PullOutput& output,
                 BatchItem* absent) {
  int64_t absent_count = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    const uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    int present = 0;
    for (int i = 0; i < count; ++i) {
      const BatchItem item = part.item(start + i);
      const SignRows& from = rows_of(hashes[i]);
      const uint32_t row = from.Find(item.sign, hashes[i], candidates[i]);
      if (row != kNoRow) {
        rows[present] = from.slabs.At(row);
        positions[present++] = item.position;
      } else if (absent != nullptr) {
        absent[absent_count++] = item;
      } else {
        output.FillUnknown(item, format);
      }
    }
    output.Copy(format, rows, positions, present);
  };
  // The statistics are the last fields of a row.
  const int64_t row_bytes =
      output.statistics == nullptr ? format.read_bytes : format.stride;
  LookUp(
      part.n, row_bytes, [&part](int64_t i) { return part.sign(i); }, rows_of,
      [](const uint64_t*, const uint32_t*, int) {}, visit);
  return absent_count;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_READ_ROWS_H_
