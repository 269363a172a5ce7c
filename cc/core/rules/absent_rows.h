// SPDX-License-Identifier: Apache-2.0
// Rows that move while they are absent from pushes: see absent_history.h. They
// are moved when they are read, pushed, saved or exported.
#ifndef TF_EXT_CC_CORE_RULES_ABSENT_ROWS_H_
#define TF_EXT_CC_CORE_RULES_ABSENT_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "cc/core/rules/absent_history.h"
#include "cc/core/rules/adam_powers.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/rule_spec.h"
#include "cc/core/rules/shrinkage.h"

namespace tf_ext {

// The fields of a row of which `type` says how they are stored.
struct AbsentFields {
  struct Moved {
    FieldType type;
    int64_t offset;  // in bytes from the start of the row
  };
  Moved weights;
  Moved m;
  Moved v;
  // Where rows hold when they were last pushed.
  int64_t caught_up;
};

// Where a row's fields are written as of a step, as they are stored; nullptr:
// nowhere. May be the row's own, and unaligned.
struct StoredMoved {
  uint8_t* weights;
  uint8_t* m;
  uint8_t* v;
};

class AbsentRows {
 public:
  // narrow: as of the table's UpdateRule.
  AbsentRows(const AdamMoments& moments, int64_t dim,
             const AbsentFields& fields, std::optional<NarrowRows> narrow);

  AbsentHistory& history() { return history_; }
  const AbsentHistory& history() const { return history_; }

  // Writes the weights that rows have as of `view` to out + positions[i].
  void Read(const AbsentView& view, const uint8_t* const* rows,
            const int64_t* positions, int64_t count, float* out) const;
  // Moves rows to `view`. weights, slots: what the rule sees of them.
  void CatchUp(const AbsentView& view, const uint8_t* const* rows,
               uint8_t* const* weights, uint8_t* const* slots,
               int64_t count) const;
  // Records that rows have been moved up to `now`, or further.
  void Record(uint8_t* const* rows, int64_t now, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t step = static_cast<int32_t>(std::max(Get(rows[i]), now));
      std::memcpy(rows[i] + fields_.caught_up, &step, sizeof(step));
    }
  }
  // Writes a row as of `view`, each value rounded to the nearest. shrinkage:
  // up to `shrunk`; nullptr: rows are not shrunk. May throw std::bad_alloc.
  void Store(const AbsentView& view, const Shrinkage* shrinkage, int64_t shrunk,
             const uint8_t* row, const StoredMoved& to) const;
  // Moves a stored row to `view`, and records it. As Store.
  void Settle(const AbsentView& view, const Shrinkage* shrinkage,
              int64_t shrunk, uint8_t* row) const;

  const AbsentFields& fields() const { return fields_; }

 private:
  friend struct AbsentLoops;

  // What moves a row.
  struct Move {
    float sums[AbsentWeights::kMostTerms];
    float power_1;  // of the betas
    float power_2;
  };
  // Rows that are moved together.
  static constexpr int kMostRows = ComputedRows::kMostRows;
  struct Batch {
    Move moves[kMostRows];
    const float* weights[kMostRows];
    const float* m[kMostRows];
    const float* v[kMostRows];
    float* to[kMostRows];
    float* m_to[kMostRows];
    float* v_to[kMostRows];
  };
  using MoveFn = void (*)(const AbsentRows& rows, const Batch& batch,
                          int count);

  int64_t Get(const uint8_t* row) const {
    int32_t step;
    std::memcpy(&step, row + fields_.caught_up, sizeof(step));
    return step;
  }
  void FindMove(const AbsentView& view, const uint8_t* row, bool with_powers,
                Move* move) const;

  const int64_t dim_;
  const AbsentFields fields_;
  const std::optional<NarrowRows> narrow_;
  // As the rule sees them.
  const int64_t weights_;
  const int64_t m_;
  const int64_t v_;
  AbsentHistory history_;
  const AdamPowers powers_;
  const float epsilon_;  // e of absent_history.h
  // Picked for this CPU once: weights alone, and with moments.
  const MoveFn move_weights_;
  const MoveFn move_all_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RULES_ABSENT_ROWS_H_
