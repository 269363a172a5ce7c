// SPDX-License-Identifier: Apache-2.0
// The decay of the statistics of rows, `show` and `click`.
#include <atomic>
#include <cstdint>
#include <string>

#include "cc/core/support/message.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_sweep.h"

namespace tf_ext {

Status Table::DecayStatistics(double factor, const ParallelFor& parallel_for,
                              int64_t* decayed) {
  *decayed = 0;
  if (statistics_.width() == 0) {
    return Invalid(
        "table \"", config_.name,
        "\" has no statistics that could decay; make it with statistics=show "
        "or statistics=show,click.");
  }
  if (!(factor > 0 && factor <= 1)) {
    return Invalid("factor is ", factor, "; it must be above 0 and at most 1.");
  }
  const float by = static_cast<float>(factor);
  std::atomic<int64_t> rows{0};
  const ExclusiveLock lock(sweep_mutex_);
  const Status status = SweepStripes(parallel_for, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      ForEachSpan(*stripes_[s], [&](uint32_t first) {
        int64_t mine = 0;
        const auto visit = [&](uint8_t* row, int64_t) {
          statistics_.Scale(row, by);
          ++mine;
          return Stripe::Swept::kChanged;
        };
        const uint32_t next = stripes_[s]->Sweep(first, kSweptAtOnce, visit);
        rows += mine;
        return next;
      });
    }
  });
  ++changes_;
  *decayed = rows;
  return status;
}

}  // namespace tf_ext
