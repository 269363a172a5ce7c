// SPDX-License-Identifier: Apache-2.0
// How the rows of a table are stored, and how they begin.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_
#define TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_

#include <cstdint>
#include <vector>

#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/absent_rows.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/unknown_rows.h"

namespace tf_ext {

// The layout and initial values of a table's rows.
struct RowFormat {
  // unknown_rows: must outlive this. shrinks: nullptr if rows are not shrunk.
  // moves: nullptr if they stay where they are while they are absent.
  RowFormat(const RowLayout& layout, const Initializer* row_initializer,
            uint64_t rounding_stream, const UnknownRows* unknown_rows,
            const Shrinkage* shrinks, const AbsentRows* moves);

  // Initializes a new row of the sign; its weights only if `with_weights`.
  void Start(uint8_t* row, int64_t sign, bool with_weights) const;
  // The weights that a new row of the sign stores, from position `first` on,
  // or from the one before it. May be unaligned.
  void StartWeights(int64_t sign, int64_t first, uint8_t* weights) const;
  // Sets the weights of a row.
  void SetWeights(uint8_t* row, const float* weights) const;
  // The weights that are read for a sign without a row; NaN if they are those
  // of a shared row.
  void FillUnknown(int64_t sign, float* weights) const;
  // The weights that a new row of the sign has.
  void FillInitial(int64_t sign, float* weights) const;

  int64_t stride;
  int64_t dim;
  const Initializer* initializer;
  FieldType dtype;                    // of weights
  int64_t read_bytes;                 // of a row, for its weights
  WidenRowsFn widen_rows;             // nullptr: weights are stored as float32
  const Shrinkage* shrinkage;         // nullptr: rows are not shrunk
  const AbsentRows* absent;           // nullptr: rows do not move
  bool copies_bytes;                  // whether weights are read as they are
  uint64_t rounding_key;              // of initial weights
  std::vector<uint16_t> multipliers;  // of the positions of weights
  const UnknownRows* unknown;
  // The initial bytes after the weights.
  std::vector<uint8_t> slots;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_FORMAT_H_
