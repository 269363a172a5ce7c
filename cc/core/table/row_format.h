// SPDX-License-Identifier: Apache-2.0
// How the rows of a table are stored, and how they begin.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_
#define TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

// The layout and initial values of a table's rows.
struct RowFormat {
  // shrinks: nullptr if rows are not shrunk.
  RowFormat(const RowLayout& layout, const Initializer* row_initializer,
            uint64_t rounding_stream, bool unknown_as_zeros,
            const Shrinkage* shrinks);

  // Initializes a new row of the sign; its weights only if `with_weights`.
  void Start(uint8_t* row, int64_t sign, bool with_weights) const;
  // The weights that a new row of the sign stores, from position `first` on,
  // or from the one before it. May be unaligned.
  void StartWeights(int64_t sign, int64_t first, uint8_t* weights) const;
  // The weights that are read for a sign without a row.
  void FillUnknown(int64_t sign, float* weights) const {
    if (unknown_zeros) {
      std::fill_n(weights, dim, 0.0f);
    } else {
      FillInitial(sign, weights);
    }
  }
  // The weights that a new row of the sign has.
  void FillInitial(int64_t sign, float* weights) const;

  int64_t stride;
  int64_t dim;
  const Initializer* initializer;
  FieldType dtype;                    // of weights
  int64_t read_bytes;                 // of a row, for its weights
  WidenRowsFn widen_rows;             // nullptr: weights are stored as float32
  const Shrinkage* shrinkage;         // nullptr: rows are not shrunk
  bool copies_bytes;                  // whether weights are read as they are
  uint64_t rounding_key;              // of initial weights
  std::vector<uint16_t> multipliers;  // of the positions of weights
  bool unknown_zeros;
  // The initial bytes after the weights.
  std::vector<uint8_t> slots;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_
