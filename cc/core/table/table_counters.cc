// SPDX-License-Identifier: Apache-2.0
// Counters of signs without a row: export, import and files.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "cc/core/snapshot/counter_chunks.h"
#include "cc/core/support/message.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {

Status Table::CheckCounts() const {
  if (config_.admission != nullptr && config_.admission->most_count() >= 0) {
    return Status::Ok();
  }
  return Invalid("table \"", config_.name,
                 "\" has no counters, because its admission is "
                 "not by count.");
}

Status Table::ExportCounters(int64_t* cursor, int64_t limit, int64_t period,
                             std::vector<int64_t>* signs,
                             std::vector<int32_t>* counts) const {
  TF_EXT_RETURN_IF_ERROR(CheckCounts());
  int64_t stripe = *cursor;
  if (stripe < 0 || stripe >= kStripes || limit < -1) {
    return Invalid(
        "cursor must be 0 or the next_cursor of the export before, and limit "
        "at least -1, but they are ",
        *cursor, " and ", limit, ".");
  }
  try {
    std::vector<StoredCounter> some;
    for (; stripe < kStripes &&
           (limit < 0 || static_cast<int64_t>(signs->size()) < limit);
         ++stripe) {
      for (uint64_t key = 0; key != AdmissionCounters::kNoKey;) {
        some.clear();
        key = stripes_[stripe]->CopyCounters(key, period, &some);
        for (const StoredCounter& counter : some) {
          signs->push_back(counter.sign);
          counts->push_back(counter.count);
        }
      }
    }
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted(
        "out of memory while exporting counters of table \"" + config_.name +
        "\"; use a smaller limit.");
  }
  *cursor = stripe < kStripes ? stripe : -1;
  return Status::Ok();
}

Status Table::ImportCounters(const int64_t* signs, const int32_t* counts,
                             int64_t n, int64_t period, bool clear,
                             const ParallelFor& parallel_for) {
  TF_EXT_RETURN_IF_ERROR(CheckCounts());
  TF_EXT_RETURN_IF_ERROR(CheckCount(n));
  const AdmissionPolicy& admission = *config_.admission;
  const int64_t last_period =
      admission.PeriodOf(std::numeric_limits<int64_t>::max());
  // If nothing is forgotten there is one period, whatever those of the counters
  // are.
  if (last_period == 0 && period >= 0) period = 0;
  if (period < 0 || period > last_period) {
    return Invalid("the period of counters of table \"", config_.name,
                   "\" must be from 0 to ", last_period, ", but it is ", period,
                   ".");
  }
  for (int64_t i = 0; i < n; ++i) {
    if (counts[i] != 0 && counts[i] >= -kMostCount && counts[i] <= kMostCount) {
      continue;
    }
    return Invalid("counts[", i, "] of sign ", signs[i], " is ", counts[i],
                   "; counts must be from -255 to 255 and not 0.");
  }
  if (clear) {
    admission_period_ = 0;
    for (const auto& stripe : stripes_) stripe->ClearCounters();
  }
  AdvancePeriod(period);
  const int most = admission.most_count();
  if (most == 0) return Status::Ok();
  return ForEachStripe(
      signs, n, parallel_for, [&](int s, BatchItem* items, int64_t count) {
        stripes_[s]->ImportCounters(items, count, counts, most, period);
      });
}

Status Table::WriteCounters(uint64_t tag, int64_t period, const ChunkSink& sink,
                            int64_t* written) const {
  *written = 0;
  TF_EXT_RETURN_IF_ERROR(CheckCounts());
  try {
    ChunkEncoder encoder(
        {ChunkBytesFor(kStoredCounterBytes), kStoredCounterBytes, tag});
    std::vector<StoredCounter> some;
    for (const auto& stripe : stripes_) {
      for (uint64_t key = 0; key != AdmissionCounters::kNoKey;) {
        some.clear();
        key = stripe->CopyCounters(key, period, &some);
        for (const StoredCounter& counter : some) {
          if (encoder.RoomForRows() == 0) {
            TF_EXT_RETURN_IF_ERROR(sink(encoder.Finish(false)));
          }
          StoreCounter(counter, encoder.rows_end());
          encoder.AddRows(1);
        }
        *written += static_cast<int64_t>(some.size());
      }
    }
    return sink(encoder.Finish(true));
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted("out of memory while saving table \"" +
                                     config_.name + "\".");
  }
}

}  // namespace tf_ext
