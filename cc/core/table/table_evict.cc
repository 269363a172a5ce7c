// SPDX-License-Identifier: Apache-2.0
// Eviction: removes rows based on the time of their last push, or on their
// statistics.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "cc/core/hashing/mix.h"
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

Status CheckPolicy(const EvictPolicy& policy) {
  const bool by_capacity = policy.capacity != -1;
  const bool by_score = policy.score.has_value();
  if ((policy.unseen != 0 || by_score) == by_capacity || policy.unseen < 0 ||
      policy.capacity < -1) {
    return Status::InvalidArgument(
        "unseen is " + std::to_string(policy.unseen) + " and capacity is " +
        std::to_string(policy.capacity) +
        (by_score ? ", and there is a score" : "") +
        "; either unseen must be at least 1 and capacity -1, or unseen 0 and "
        "capacity at least 0; a score goes with capacity -1, and with unseen "
        "0 or more.");
  }
  if (!by_score) return Status::Ok();
  const EvictPolicy::Score& score = *policy.score;
  for (const double value :
       {score.threshold, score.show_weight, score.click_weight}) {
    if (std::isfinite(value)) continue;
    return Status::InvalidArgument(
        "score has the value " + std::to_string(value) +
        "; threshold, show_weight and click_weight must be finite.");
  }
  return Status::Ok();
}

}  // namespace

Status Table::CheckEviction(const EvictPolicy& policy, int64_t now) const {
  const Status status = CheckPolicy(policy);
  if (!status.ok()) return status;
  const bool by_capacity = policy.capacity != -1;
  const bool by_time = policy.unseen != 0 || (by_capacity && !policy.by_show);
  if (by_time && !last_seen_.there()) {
    return Status::InvalidArgument(
        "table \"" + config_.name +
        "\" does not hold when its rows were last seen, so it cannot evict "
        "by that; make it with last_seen=step or last_seen=second.");
  }
  int wanted = policy.by_show || policy.score.has_value() ? 1 : 0;
  if (policy.score.has_value() && policy.score->click_weight != 0) wanted = 2;
  if (statistics_.width() < wanted) {
    return Status::InvalidArgument(
        "table \"" + config_.name + "\" does not hold the " +
        kStatisticsFields[wanted - 1] +
        " of its rows, so it cannot evict by that; make it with statistics=" +
        StatisticsToText(wanted) + ".");
  }
  if (now >= 0) return Status::Ok();
  return Status::InvalidArgument("now is " + std::to_string(now) +
                                 "; it must be at least 0.");
}

bool Table::IsEvicted(const EvictPolicy& policy, const uint8_t* row,
                      int64_t age) const {
  const bool old = policy.unseen != 0 && age >= policy.unseen;
  if (!policy.score.has_value()) return old;
  double score = policy.score->show_weight * statistics_.Get(row, 0);
  if (policy.score->click_weight != 0) {
    score += policy.score->click_weight * statistics_.Get(row, 1);
  }
  // Also if the score is NaN, which only imported rows can have.
  const bool low = !(score >= policy.score->threshold);
  if (policy.unseen == 0) return low;
  return policy.require_all ? old && low : old || low;
}

uint32_t Table::CapacityKey(const EvictPolicy& policy, const uint8_t* row,
                            int32_t now) const {
  if (policy.by_show) return statistics_.ShowKey(row);
  return last_seen_.At(row, std::max(now, last_push_.load()));
}

Status Table::CountRanks(const EvictPolicy& policy, Rank prefix, int shift,
                         int32_t now, const ParallelFor& parallel_for,
                         DigitCounts* counts) const {
  std::mutex mutex;  // guards counts
  return SweepStripes(parallel_for, [&](int64_t s, int64_t end) {
    DigitCounts mine(kDigits);
    const auto visit = [&](const uint8_t* row, int64_t sign) {
      const Rank rank = RankOf(CapacityKey(policy, row, now), sign);
      if (rank >> (shift + kDigitBits) != prefix) return;
      ++mine[static_cast<size_t>(rank >> shift) % kDigits];
    };
    for (; s < end; ++s) {
      ForEachSpan(*stripes_[s], [&](uint32_t row) {
        return stripes_[s]->Walk(row, kSweptAtOnce, visit);
      });
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < kDigits; ++i) (*counts)[i] += mine[i];
  });
}

Status Table::FindCutoff(const EvictPolicy& policy, int32_t now,
                         const ParallelFor& parallel_for, Rank* cutoff) const {
  *cutoff = 0;
  int64_t left = 0;  // rows to evict that are not below `cutoff`
  for (int shift = kRankBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    DigitCounts counts(kDigits);
    // The digits that were already determined.
    const Rank prefix = *cutoff >> shift >> kDigitBits;
    const Status status =
        CountRanks(policy, prefix, shift, now, parallel_for, &counts);
    if (!status.ok()) return status;
    if (shift == kRankBits - kDigitBits) {
      left = std::accumulate(counts.begin(), counts.end(), -policy.capacity);
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

Status Table::Evict(const EvictPolicy& policy, int64_t now,
                    const ParallelFor& parallel_for, EvictedRows* evicted) {
  *evicted = EvictedRows();
  Status status = CheckEviction(policy, now);
  if (!status.ok()) return status;
  const std::lock_guard<std::mutex> lock(sweep_mutex_);
  const int32_t time = ToRowTime(config_.last_seen, now);
  Rank cutoff = 0;
  if (policy.capacity >= 0) {
    try {
      status = FindCutoff(policy, time, parallel_for, &cutoff);
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
          const int32_t seen =
              last_seen_.there()
                  ? last_seen_.At(row, std::max(time, last_push_.load()))
                  : time;
          const bool known = !last_seen_.there() || seen == last_seen_.Get(row);
          if (!known) last_seen_.Set(row, seen);
          const bool evict =
              policy.capacity >= 0
                  ? RankOf(CapacityKey(policy, row, time), sign) < cutoff
                  : IsEvicted(policy, row, int64_t{time} - seen);
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
