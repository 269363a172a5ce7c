// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/stripe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/read_rows.h"

namespace tf_ext {
namespace {

constexpr int kFirstBuckets = 4;
// Up to this level an index doubles, to 1 MiB; see stripe.h.
constexpr int kDoublings = 12;
constexpr double kGrowth = 1.25;

// A filter that avoids comparisons with all other rows of a block.
class SeenHashes {
 public:
  // Adds the hash. Returns false if it was definitely not added before.
  bool MaybeSeen(uint64_t hash) {
    uint64_t& word = words_[(hash >> 6) % kWords];
    const uint64_t bit = uint64_t{1} << (hash % 64);
    const bool seen = (word & bit) != 0;
    word |= bit;
    return seen;
  }

 private:
  static constexpr int kWords = 64;
  uint64_t words_[kWords] = {};
};

}  // namespace

// All stripes of a range, locked in their order.
class Stripe::ExclusiveLocks {
 public:
  explicit ExclusiveLocks(const StripeRange& range) TF_EXT_UNCHECKED
      : range_(range) {
    for (int s = range.begin; s < range.end; ++s) {
      range.stripes[s]->mutex_.lock();
      range.stripes[s]->rows_.slabs.PrefetchChunks();
    }
  }
  ~ExclusiveLocks() TF_EXT_UNCHECKED {
    for (int s = range_.begin; s < range_.end; ++s) {
      range_.stripes[s]->mutex_.unlock();
    }
  }
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;

 private:
  const StripeRange& range_;
};

Stripe::Stripe(int number, const RowFormat* format, SlabMemory* memory)
    : number_(number),
      format_(format),
      memory_(memory),
      rows_{{}, {format->stride, memory}},
      counters_(static_cast<double>(number) / kStripes) {}

inline void Stripe::PrefetchBeside(uint64_t hash, uint32_t candidate,
                                   bool touch) const {
  if (touch && marks_ != nullptr) marks_->PrefetchToTouch(&candidate, 1);
  if (candidate == kNoRow && !counters_.empty()) counters_.Prefetch(hash);
}

template <typename Visit>
void Stripe::ForEachBlock(const BatchItem* items, int64_t n, int64_t row_bytes,
                          bool touch, const Visit& visit) const {
  LookUp(
      n, row_bytes, [items](int64_t i) { return items[i].sign; },
      [&rows = rows()](uint64_t) -> const SignRows& { return rows; },
      [this, touch](const uint64_t* hashes, const uint32_t* candidates,
                    int count) {
        mutex_.AssertReadable();
        for (int i = 0; i < count; ++i) {
          PrefetchBeside(hashes[i], candidates[i], touch);
        }
      },
      visit);
}

inline uint32_t Stripe::FindOrInsert(int64_t sign, uint64_t hash,
                                     uint32_t candidate, bool with_weights) {
  const uint32_t row = rows_.Find(sign, hash, candidate);
  return row != kNoRow ? row : Insert(sign, hash, with_weights);
}

uint32_t Stripe::Insert(int64_t sign, uint64_t hash, bool with_weights) {
  if (rows_.slabs.full()) throw StripeFullError("no row number left");
  if (rows_.index.Crowded(static_cast<size_t>(rows_.slabs.live()))) Grow();
  if (marks_ != nullptr) marks_->Reserve(rows_.slabs.used() + 1);
  const uint32_t row = rows_.slabs.Allocate();
  format_->Start(rows_.slabs.At(row), sign, with_weights);
  rows_.index.Insert(hash, row);
  if (smaller_ != nullptr && row < smaller_->next) {
    if (smaller_->index.Crowded(static_cast<size_t>(rows_.slabs.live()))) {
      smaller_ = nullptr;  // too many rows have been inserted meanwhile
    } else {
      smaller_->index.Insert(hash, row);
    }
  }
  if (marks_ != nullptr) marks_->Touch(&row, 1);
  if (!counters_.empty()) counters_.Remove(hash);
  return row;
}

uint32_t Stripe::InsertIfAdmitted(const BatchItem& item, uint64_t hash,
                                  bool with_weights,
                                  const PushAdmission& admission) {
  if (!admission.Admits(item.sign, hash, item.position, &counters_)) {
    return kNoRow;
  }
  const uint32_t row = Insert(item.sign, hash, with_weights);
  ++admitted_;
  return row;
}

size_t Stripe::BucketsOf(int stripe, int level) {
  const double growth = level + static_cast<double>(stripe) / kStripes;
  const double doublings = std::min<double>(growth, kDoublings);
  return static_cast<size_t>(std::ceil(kFirstBuckets * std::exp2(doublings) *
                                       std::pow(kGrowth, growth - doublings)));
}

uint32_t Stripe::InsertRows(uint32_t row, int64_t limit,
                            BucketIndex* index) const {
  // In the order of row numbers, so that the rows, which are the larger part of
  // the memory, are read sequentially. In blocks, so that the cache misses in
  // the index overlap.
  uint32_t numbers[kBlock];
  uint64_t hashes[kBlock];
  row = rows_.slabs.NextLive(row);
  for (int64_t inserted = 0; row != kNoRow && inserted < limit;) {
    int count = 0;
    for (; count < kBlock && row != kNoRow; ++count) {
      numbers[count] = row;
      hashes[count] = TableHash(rows_.slabs.SignAt(row));
      index->Prefetch(hashes[count]);
      row = rows_.slabs.NextLive(row + 1);
    }
    for (int i = 0; i < count; ++i) index->Insert(hashes[i], numbers[i]);
    inserted += count;
  }
  return row;
}

void Stripe::Grow() {
  BucketIndex grown(BucketsAt(level_ + 1));
  InsertRows(0, rows_.slabs.live(), &grown);
  rows_.index = std::move(grown);
  ++level_;
  smaller_ = nullptr;
}

void Stripe::Pull(BatchItem* items, int64_t n, bool insert,
                  const PullOutput& output) {
  int64_t absent;
  {
    const SharedLock lock(mutex_);
    absent = ReadRows(
        ItemPart{items, n}, *format_,
        [&rows = rows()](uint64_t) -> const SignRows& { return rows; }, output,
        insert ? items : nullptr);
  }
  if (absent > 0) PullInserting(items, absent, output);
}

void Stripe::PullInserting(const BatchItem* items, int64_t n,
                           const PullOutput& output) {
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    mutex_.AssertHeld();
    const uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      rows[i] = rows_.slabs.At(
          FindOrInsert(item.sign, hashes[i], candidates[i], true));
      positions[i] = item.position;
    }
    output.Copy(*format_, rows, positions, count);
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, false, visit);
}

int64_t Stripe::Push(const StripeRange& range, const BatchItem* items,
                     int64_t n, const UpdateRule::Push& push,
                     const float* gradients, const PushRecord& record,
                     const PushAdmission* admission, const SharedPush* shared) {
  const auto stripe_of = [&range](uint64_t hash) -> Stripe& {
    return *range.stripes[StripeOf(hash)];
  };
  const auto prefetch = [&](const uint64_t* hashes, const uint32_t* candidates,
                            int count) {
    for (int i = 0; i < count; ++i) {
      const Stripe& stripe = stripe_of(hashes[i]);
      stripe.mutex_.AssertReadable();
      stripe.PrefetchBeside(hashes[i], candidates[i], true);
    }
  };
  int64_t updated = 0;
  int64_t saturated = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    uint8_t* rows[kBlock];
    int64_t positions[kBlock];
    Counts counts[kBlock];
    SeenHashes seen;
    int ready = 0;
    const auto update = [&] {
      saturated += push.Update(rows, gradients, positions, ready);
      record.Write(rows, counts, ready);
      updated += ready;
      ready = 0;
    };
    for (int i = 0; i < count; ++i) {
      BatchItem item = items[start + i];
      const Counts added = record.CountsOf(&item.position);
      Stripe& stripe = stripe_of(hashes[i]);
      stripe.mutex_.AssertHeld();
      if (shared != nullptr && shared->IsUnused(item.sign, item.position)) {
        continue;
      }
      uint32_t number = stripe.rows_.Find(item.sign, hashes[i], candidates[i]);
      if (number == kNoRow) {
        const bool is_shared =
            shared != nullptr && shared->unknown.IsShared(item.sign);
        const float* const start =
            shared == nullptr ? nullptr : shared->StartOf(item.sign);
        number = admission == nullptr || is_shared
                     ? stripe.Insert(item.sign, hashes[i], start == nullptr)
                     : stripe.InsertIfAdmitted(item, hashes[i],
                                               start == nullptr, *admission);
        if (number == kNoRow) continue;
        if (start != nullptr) {
          uint8_t* const row = stripe.rows_.slabs.At(number);
          stripe.format_->SetWeights(row, start);
          if (shared->shrinkage != nullptr) {
            shared->shrinkage->Record(&row, shared->now, 1);
          }
          record.Write(&row, &added, 1);
          ++updated;
          continue;
        }
      }
      if (stripe.marks_ != nullptr) stripe.marks_->Touch(&number, 1);
      uint8_t* const row = stripe.rows_.slabs.At(number);
      // The rows of one Update must be distinct.
      if (seen.MaybeSeen(hashes[i]) &&
          std::find(rows, rows + ready, row) != rows + ready) {
        update();
      }
      rows[ready] = row;
      counts[ready] = added;
      positions[ready++] = item.position;
    }
    update();
  };
  // Destroyed after unlocking, because unmapping takes time.
  std::vector<CounterLines> dropped;
  if (admission != nullptr) dropped.resize(2 * (range.end - range.begin));
  const ExclusiveLocks locks(range);
  if (admission != nullptr) {
    for (int s = range.begin; s < range.end; ++s) {
      CounterLines* const its = &dropped[2 * (s - range.begin)];
      Stripe& stripe = *range.stripes[s];
      stripe.mutex_.AssertHeld();
      stripe.counters_.Advance(admission->period(), &its[0], &its[1]);
    }
  }
  Stripe& first = *range.stripes[range.begin];
  first.mutex_.AssertHeld();
  LookUp(
      n, first.format_->stride, [items](int64_t i) { return items[i].sign; },
      [&](uint64_t hash) -> const SignRows& {
        const Stripe& stripe = stripe_of(hash);
        stripe.mutex_.AssertReadable();
        return stripe.rows_;
      },
      prefetch, visit);
  // Only the sum of all stripes is of interest.
  first.saturated_ += saturated;
  return updated;
}

void Stripe::Import(const BatchItem* items, int64_t n,
                    const std::vector<BoundField>& fields,
                    const AbsentView* view, bool restart) {
  const Shrinkage* const shrinkage = format_->shrinkage;
  const int64_t shrunk = shrinkage == nullptr ? 0 : shrinkage->now();
  bool with_weights = true;
  for (const BoundField& bound : fields) {
    if (bound.offset == RowLayout::kWeightsOffset) with_weights = false;
  }
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t* candidates) {
    mutex_.AssertHeld();
    for (int i = 0; i < count; ++i) {
      const BatchItem& item = items[start + i];
      const uint32_t number =
          FindOrInsert(item.sign, hashes[i], candidates[i], with_weights);
      // Immediately, because the next insertion may throw.
      if (marks_ != nullptr) marks_->Touch(&number, 1);
      uint8_t* const row = rows_.slabs.At(number);
      if (restart) format_->Start(row, item.sign, with_weights);
      if (view != nullptr) {
        format_->absent->Settle(*view, shrinkage, shrunk, row);
      }
      for (const BoundField& bound : fields) {
        std::memcpy(row + bound.offset,
                    bound.data + item.position * bound.stride, bound.bytes);
      }
    }
  };
  const ExclusiveLock lock(mutex_);
  ForEachBlock(items, n, format_->stride, true, visit);
}

int64_t Stripe::Erase(const BatchItem* items, int64_t n) {
  int64_t erased = 0;
  const auto visit = [&](int64_t start, int count, const uint64_t* hashes,
                         const uint32_t*) {
    mutex_.AssertHeld();
    for (int i = 0; i < count; ++i) {
      // The candidate cannot be used: an earlier item may have erased it, and
      // the sign in a free row is arbitrary.
      const int64_t sign = items[start + i].sign;
      const uint32_t row = rows_.Find(sign, hashes[i]);
      if (row == kNoRow) {
        if (!counters_.empty()) counters_.Remove(hashes[i]);
        continue;
      }
      EraseFromIndex(hashes[i], row);
      if (marks_ != nullptr) marks_->Erase(row, sign);
      rows_.slabs.Free(row);
      ++erased;
    }
  };
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->ReserveErased(n);
  ForEachBlock(items, n, RowLayout::kWeightsOffset, false, visit);
  if (erased > 0) NoteFreeRows();
  return erased;
}

void Stripe::EraseFromIndex(uint64_t hash, uint32_t row) {
  const auto is_row = [row](uint32_t at) { return at == row; };
  rows_.index.Erase(hash, is_row);
  if (smaller_ != nullptr && row < smaller_->next) {
    smaller_->index.Erase(hash, is_row);
  }
}

int64_t Stripe::Clear() {
  // Destroyed after unlocking, because unmapping takes time.
  BucketIndex index;
  RowSlabs rows(format_->stride, memory_);
  AdmissionCounters counters(static_cast<double>(number_) / kStripes);
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) {
    marks_->ReserveErased(rows_.slabs.live());
    for (uint32_t row = rows_.slabs.NextLive(0); row != kNoRow;
         row = rows_.slabs.NextLive(row + 1)) {
      marks_->Erase(row, rows_.slabs.SignAt(row));
    }
    marks_->ForgetRows();
  }
  rows_.index.swap(index);
  rows_.slabs.swap(rows);
  std::swap(counters_, counters);
  smaller_ = nullptr;
  level_ = -1;
  return rows.live();
}

uint32_t Stripe::CopyRows(uint32_t row, int64_t limit, bool changed,
                          int64_t row_bytes, uint8_t* out,
                          int64_t* copied) const {
  const SharedLock lock(mutex_);
  *copied = 0;
  if (row >= rows_.slabs.used() || (changed && marks_ == nullptr))
    return kNoRow;
  uint64_t mask = ~uint64_t{0} << (row % 64);
  const size_t words = (size_t{rows_.slabs.used()} + 63) / 64;
  for (size_t word = row / 64; word < words; ++word) {
    uint64_t bits = rows_.slabs.LiveBits(word) & mask;
    if (changed) bits &= marks_->Taken(word);
    mask = ~uint64_t{0};
    for (; bits != 0; bits &= bits - 1) {
      row = static_cast<uint32_t>(word * 64 + __builtin_ctzll(bits));
      if (*copied == limit) return row;
      std::memcpy(out, rows_.slabs.At(row), row_bytes);
      out += row_bytes;
      ++*copied;
    }
  }
  return kNoRow;
}

void Stripe::TrackChanges() {
  auto marks = std::make_unique<ChangeMarks>();
  const ExclusiveLock lock(mutex_);
  marks->Reserve(rows_.slabs.used());
  marks_ = std::move(marks);
}

void Stripe::StopTracking() {
  const ExclusiveLock lock(mutex_);
  marks_ = nullptr;
}

void Stripe::EraseRow(uint32_t row) {
  EraseFromIndex(TableHash(rows_.slabs.SignAt(row)), row);
  rows_.slabs.Free(row);
}

uint32_t Stripe::EraseUntouched(uint32_t row, uint32_t limit) {
  const ExclusiveLock lock(mutex_);
  if (marks_ == nullptr) return kNoRow;
  const uint64_t end = uint64_t{row} + limit;
  for (uint64_t first = row; first < end && first < rows_.slabs.used();
       first += 64) {
    const size_t word = first / 64;
    uint64_t bits = rows_.slabs.LiveBits(word) & ~marks_->Touched(word);
    for (; bits != 0; bits &= bits - 1) {
      EraseRow(static_cast<uint32_t>(first + __builtin_ctzll(bits)));
    }
  }
  NoteFreeRows();
  return end < rows_.slabs.used() ? static_cast<uint32_t>(end) : kNoRow;
}

void Stripe::TakeChanges() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->Take();
}

void Stripe::CommitChanges() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->Commit();
}

void Stripe::PutChangesBack() {
  const ExclusiveLock lock(mutex_);
  if (marks_ != nullptr) marks_->PutBack();
}

std::vector<int64_t> Stripe::ErasedSigns(bool taken) const {
  const SharedLock lock(mutex_);
  if (marks_ == nullptr) return {};
  return taken ? marks_->taken_erased() : marks_->current_erased();
}

Stripe::Stats Stripe::GetStats(int64_t period, bool with_probes) const {
  const SharedLock lock(mutex_);
  Stats stats;
  stats.rows = rows_.slabs.live();
  stats.free_rows = rows_.slabs.free();
  stats.slab_bytes = rows_.slabs.bytes();
  if (marks_ != nullptr) stats.slab_bytes += marks_->bytes();
  stats.index_bytes = static_cast<int64_t>(rows_.index.bytes());
  if (with_probes) {
    stats.max_probe_length = rows_.index.MaxProbeLength([this](uint32_t row) {
      mutex_.AssertReadable();
      return TableHash(rows_.slabs.SignAt(row));
    });
  }
  stats.waiting = counters_.Size(period);
  stats.counter_bytes = counters_.bytes();
  stats.admitted = admitted_;
  stats.saturated = saturated_;
  return stats;
}

int64_t Stripe::Size() const {
  const SharedLock lock(mutex_);
  return rows_.slabs.live();
}

}  // namespace tf_ext
