// SPDX-License-Identifier: Apache-2.0
// Eviction: removes rows based on the time of their last push, or on their
// statistics.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/message.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_sweep.h"

namespace tf_ext {
namespace {

// The order in which rows are evicted for a capacity: by time or by show, with
// ties broken by a hash. It is a different hash than the table's, of which each
// stripe has only one range.
constexpr int kRankBits = 96;

unsigned __int128 RankOf(uint32_t key, int64_t sign) {
  const uint64_t hash =
      Mix64(static_cast<uint64_t>(sign) ^ 0x2545f4914f6cdd1du);
  return static_cast<unsigned __int128>(key) << 64 | hash;
}

// The cutoff is found by radix selection, one digit of the ranks at a time: the
// table is walked several times, and nothing is stored per row.
constexpr int kDigitBits = 12;
constexpr size_t kDigits = size_t{1} << kDigitBits;

}  // namespace

Status Table::CheckEviction(const EvictionPolicy& policy, int64_t now) const {
  const EvictionPolicy::Fields fields = policy.fields();
  if (fields.last_seen && !last_seen_.there()) {
    return Invalid(
        "table \"", config_.name,
        "\" does not hold when its rows were last seen, so it cannot evict "
        "by that; make it with last_seen=step or last_seen=second.");
  }
  if (statistics_.width() < fields.statistics) {
    return Invalid(
        "table \"", config_.name, "\" does not hold the ",
        kStatisticsFields[fields.statistics - 1],
        " of its rows, so it cannot evict by that; make it with statistics=",
        StatisticsToText(fields.statistics), ".");
  }
  if (now >= 0) return Status::Ok();
  return Invalid("now is ", now, "; it must be at least 0.");
}

inline EvictionRow Table::EvictionRowAt(const uint8_t* row, int32_t now) const {
  EvictionRow seen = {now, 0, 0, 0};
  if (last_seen_.there()) {
    seen.last_seen = last_seen_.At(row, std::max(now, last_push_.load()));
    seen.age = int64_t{now} - seen.last_seen;
  }
  if (statistics_.width() > 0) seen.show = statistics_.Get(row, 0);
  if (statistics_.width() > 1) seen.click = statistics_.Get(row, 1);
  return seen;
}

Status Table::CountRanks(const EvictionPolicy& policy, Rank prefix, int shift,
                         int32_t now, const ParallelFor& parallel_for,
                         DigitCounts* counts) const {
  Mutex mutex;  // guards counts
  return SweepStripes(parallel_for, [&](int64_t s, int64_t end) {
    DigitCounts mine(kDigits);
    const auto visit = [&](const uint8_t* row, int64_t sign) {
      if (config_.unknown.IsShared(sign)) return;
      const Rank rank = RankOf(policy.Rank(EvictionRowAt(row, now)), sign);
      if (rank >> (shift + kDigitBits) != prefix) return;
      ++mine[static_cast<size_t>(rank >> shift) % kDigits];
    };
    for (; s < end; ++s) {
      ForEachSpan(*stripes_[s], [&](uint32_t row) {
        return stripes_[s]->Walk(row, kSweptAtOnce, visit);
      });
    }
    const ExclusiveLock lock(mutex);
    for (size_t i = 0; i < kDigits; ++i) (*counts)[i] += mine[i];
  });
}

Status Table::FindCutoff(const EvictionPolicy& policy, int32_t now,
                         const ParallelFor& parallel_for, Rank* cutoff) const {
  *cutoff = 0;
  int64_t left = 0;  // rows to evict that are not below `cutoff`
  for (int shift = kRankBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    DigitCounts counts(kDigits);
    // The digits that were already determined.
    const Rank prefix = *cutoff >> shift >> kDigitBits;
    TF_EXT_RETURN_IF_ERROR(
        CountRanks(policy, prefix, shift, now, parallel_for, &counts));
    if (shift == kRankBits - kDigitBits) {
      left = std::accumulate(counts.begin(), counts.end(), -policy.capacity());
      if (left <= 0) return Status::Ok();
    }
    size_t digit = 0;
    // Rows may have been erased since the previous digit was counted.
    while (digit < kDigits - 1 && left >= counts[digit]) {
      left -= counts[digit++];
    }
    *cutoff |= Rank{digit} << shift;
    if (left == 0) break;
  }
  return Status::Ok();
}

Status Table::Evict(const EvictionArgs& args, int64_t now,
                    const ParallelFor& parallel_for, EvictedRows* evicted) {
  *evicted = EvictedRows();
  std::unique_ptr<const EvictionPolicy> policy;
  Status status = MakeEviction(args, &policy);
  if (status.ok()) status = CheckEviction(*policy, now);
  if (!status.ok()) return status;
  const ExclusiveLock lock(sweep_mutex_);
  const int32_t time = ToRowTime(config_.last_seen, now);
  Rank cutoff = 0;
  if (policy->capacity() >= 0) {
    try {
      status = FindCutoff(*policy, time, parallel_for, &cutoff);
    } catch (const std::bad_alloc&) {
      status = OutOfMemory();
    }
    if (!status.ok()) return status;
  }
  std::atomic<int64_t> examined{0};
  std::atomic<int64_t> erased{0};
  status = SweepStripes(parallel_for, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      ForEachSpan(*stripes_[s], [&](uint32_t first) {
        EvictedRows mine;
        const auto visit = [&](uint8_t* row, int64_t sign) {
          if (config_.unknown.IsShared(sign)) return Stripe::Swept::kKeep;
          const EvictionRow seen = EvictionRowAt(row, time);
          const bool known =
              !last_seen_.there() || seen.last_seen == last_seen_.Get(row);
          if (!known) last_seen_.Set(row, seen.last_seen);
          const bool evict =
              policy->Evicts(seen) ||
              (cutoff > 0 && RankOf(policy->Rank(seen), sign) < cutoff);
          ++mine.examined;
          mine.evicted += evict;
          return evict   ? Stripe::Swept::kErase
                 : known ? Stripe::Swept::kKeep
                         : Stripe::Swept::kChanged;
        };
        const uint32_t next = stripes_[s]->Sweep(first, kSweptAtOnce, visit);
        examined += mine.examined;
        erased += mine.evicted;
        return next;
      });
    }
  });
  ++changes_;
  *evicted = {examined, erased};
  evicted_ += erased;
  CompactIfSparse(parallel_for);
  return status;
}

}  // namespace tf_ext
