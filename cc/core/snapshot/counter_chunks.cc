// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/counter_chunks.h"

#include <string>

namespace tf_ext {

Status CounterCheck::Check(const ChunkView& chunk) {
  if (chunk.erased_before != 0 || chunk.erased_after != 0) {
    return Status::DataLoss("has erased signs, but is a file of counters.");
  }
  const int64_t most = n_ - 1;
  const int64_t least = older_ ? -most : 1;
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const StoredCounter counter =
        LoadCounter(chunk.row_data + i * kStoredCounterBytes);
    const std::string of = " of the sign " + std::to_string(counter.sign);
    if (counter.count == 0 || counter.count < least || counter.count > most) {
      return Status::DataLoss("has a count of " +
                              std::to_string(counter.count) + of +
                              "; counts must be from " + std::to_string(least) +
                              " to " + std::to_string(most) + " and not 0.");
    }
    const uint64_t key = CounterKey(counter.sign);
    if (last_.has_value() && key <= *last_) {
      return Status::DataLoss("has a counter" + of +
                              " that is out of order, or appears twice.");
    }
    last_ = key;
  }
  return Status::Ok();
}

}  // namespace tf_ext
