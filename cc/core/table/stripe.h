// SPDX-License-Identifier: Apache-2.0
// A stripe: one of the 64 parts of a table, each with its own lock, index and
// rows. Stripes grow independently.
//
//   Table
//     stripes[64]            // by the high bits of TableHash(sign)
//       StripeMutex
//       BucketIndex          // hash -> row number; bucket_index.h
//       RowSlabs             // row number -> row; row_slabs.h
//       ChangeMarks          // row number -> changed?; change_marks.h
//       AdmissionCounters    // of signs without a row; admission/
//
// All operations are batched. Present rows are read in the order of the batch,
// with all stripes locked for reading (table_pull.cc). For everything else, a
// batch is first partitioned by stripe; each stripe then processes its part
// under a single lock hold. A push of few signs locks adjacent stripes
// together, in their order. lookup.h describes how signs are looked up.
//
// There are 64 stripes: enough that threads rarely contend, few enough that a
// batch of a few thousand signs has a block of work for every stripe.
//
// Growth: when 2/3 of the slots are used, the index is rebuilt with more
// buckets; the rows do not move. All stripes of a table have nearly the same
// number of rows, so with powers of two all would double within one batch.
// Instead, stripe s has 4 * 2^(level + s / 64) buckets. This spreads the
// rebuilds over a whole doubling of the table, so a batch pays for about one of
// them, and the memory of all indexes together grows smoothly. From 2^12 * 4
// buckets on, in tables of 8 million rows and more, each level has 1.25 times
// as many as the one before, not twice: a row then has 9 bytes of index on
// average instead of 11.5. An insertion pays for four rebuilt entries instead
// of one, which are written in the order of the rows.
//
// Rows are numbered in the order in which they first occur in a batch, so the
// contents and order of a stripe do not depend on the number of threads.
//
// Compaction (stripe_compact.cc) returns the memory of free rows to the system.
// It moves the highest live rows to the lowest free numbers, releases the last
// chunks, and builds a smaller index next to the current one. Each of these
// steps takes many short lock holds, and the stripe is consistent after each,
// so other threads can look up, insert and erase in between. As a result, a row
// number is only valid while the lock is held. Walks over all rows, which take
// several lock holds, work in one of two ways:
//
// - Export copies a whole stripe by row number, which is fast, and discards the
//   copy if a row was erased or moved meanwhile. In that case, and if a stripe
//   takes several calls, it walks in the order of hashes, which never changes.
//   This needs no state between calls, however many rows are moved in between,
//   and sees each row once.
// - Walks by row number (snapshots, evictions and the end of an update) hold a
//   RowWalk, during which no rows are moved. Change marks move with their rows.
#ifndef TF_EXT_CC_CORE_TABLE_STRIPE_H_
#define TF_EXT_CC_CORE_TABLE_STRIPE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cc/core/rules/update_rule.h"
#include "cc/core/snapshot/counter_chunks.h"
#include "cc/core/table/admission/admission_counters.h"
#include "cc/core/table/admission/policy.h"
#include "cc/core/table/batch_parts.h"
#include "cc/core/table/change_marks.h"
#include "cc/core/table/lookup.h"
#include "cc/core/table/row_format.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_statistics.h"
#include "cc/core/table/row_time.h"
#include "cc/core/table/slab_memory.h"
#include "cc/core/table/stripe_mutex.h"
#include "cc/core/table/unknown_rows.h"

namespace tf_ext {

struct PullOutput;  // in read_rows.h

// A range of bytes in a row, and the values for the rows of a batch, `stride`
// bytes apart.
struct BoundField {
  int64_t offset;
  int64_t bytes;
  const uint8_t* data;
  int64_t stride;
};

// Receives exported rows: [rows, field->count] values for each field, as bytes.
struct ExportSink {
  void Append(const uint8_t* const* rows, size_t n) const;
  // Removes all rows but the first n.
  void Truncate(size_t n) const;

  const std::vector<const Field*>& fields;
  const Shrinkage* shrinkage;  // of weights; nullptr: they are copied
  // With a view, fields that change while rows are absent are those as of it.
  const AbsentRows* absent;
  const AbsentView* view;
  std::vector<int64_t>* signs;
  std::vector<std::vector<uint8_t>>* values;
};

// What a push writes into a row besides the update, if rows have the fields.
struct PushRecord {
  RowTime last_seen;
  int32_t now;  // the value for last_seen
  RowStatistics statistics;
  const float* values;  // of the statistics, [batch, width]; may be nullptr
  bool packed;          // whether the items are those of a CountedPart

  // The counts of an item, and its position, which is unpacked.
  Counts CountsOf(int64_t* position) const {
    const int64_t width = statistics.width();
    if (packed) return CountedPart::Unpack(values, width, position);
    if (values == nullptr || width == 0) return {};
    return Counts::Load(values + *position * width, width);
  }
  // `counts`: those of the rows.
  void Write(uint8_t* const* to, const Counts* counts, int n) const {
    if (values == nullptr) counts = nullptr;
    // In one loop, and with copies that no store to a row can change.
    const auto see = [time = last_seen, at = now](uint8_t* row) {
      time.See(row, at);
    };
    if (!last_seen.there()) {
      statistics.Add(to, n, counts, [](uint8_t*) {});
    } else if (statistics.width() > 0) {
      statistics.Add(to, n, counts, see);
    } else {
      std::for_each(to, to + n, see);
    }
  }
};

// A push to a table with shared rows. Gradients went to the rows that were
// read: so new rows start from the shared ones, and are not updated.
struct SharedPush {
  // Whether it is a shared row that no sign of the batch has read.
  bool IsUnused(int64_t sign, int64_t position) const {
    return unknown.IsShared(sign) && statistics != nullptr &&
           statistics[position * width] == 0;
  }
  // The weights that a new row of the sign starts from; nullptr: its own.
  const float* StartOf(int64_t sign) const {
    if (unknown.IsShared(sign)) return nullptr;
    return starts.Find(unknown.SharedSignOf(sign));
  }

  const UnknownRows& unknown;
  StartRows starts;
  // [batch, width], of which the first column is how often a sign has read the
  // row; nullptr: once.
  const float* statistics;
  int64_t width;
  const Shrinkage* shrinkage;  // nullptr: rows are not shrunk
  int64_t now;                 // up to when they have been shrunk
};

class Stripe;

// Adjacent stripes of a table.
struct StripeRange {
  const std::unique_ptr<Stripe>* stripes;  // all of the table
  int begin;
  int end;
};

// Thrown when a stripe has no free row number.
class StripeFullError : public std::length_error {
 public:
  using std::length_error::length_error;
};

// Aligned to cache lines, because other threads lock adjacent stripes. All
// methods except rows() acquire the lock. Methods that add rows may throw
// std::bad_alloc or StripeFullError; every row is complete then.
class alignas(64) Stripe {
 public:
  // The buckets of the index of a stripe at a level of its growth, from 0.
  static size_t BucketsOf(int stripe, int level);

  // `number`: the index of the stripe in its table. `format` and `memory`,
  // which all stripes of a table share, must outlive the stripe.
  Stripe(int number, const RowFormat* format, SlabMemory* memory);

  // Absent signs are inserted if `insert`; otherwise, they are read as unknown.
  // `items` are used as scratch space.
  void Pull(BatchItem* items, int64_t n, bool insert, const PullOutput& output);
  // The same with `insert`, for signs most of which are absent.
  void PullInserting(const BatchItem* items, int64_t n,
                     const PullOutput& output);
  // Updates rows of the stripes in the range, all of which are locked at once;
  // `items` are in the order of the stripes. gradients: [batch, dim].
  // admission: which absent signs are inserted; nullptr: all. The gradients of
  // others are dropped. shared: of a table with shared rows, or nullptr.
  // Returns the number of updates.
  static int64_t Push(const StripeRange& range, const BatchItem* items,
                      int64_t n, const UpdateRule::Push& push,
                      const float* gradients, const PushRecord& record,
                      const PushAdmission* admission, const SharedPush* shared);
  // view: rows are moved up to it first; nullptr: they are not. restart: fields
  // that are not given get the values of a new row in existing rows, too.
  void Import(const BatchItem* items, int64_t n,
              const std::vector<BoundField>& fields, const AbsentView* view,
              bool restart);
  // Returns the number of rows that were present.
  int64_t Erase(const BatchItem* items, int64_t n);
  // Removes all rows and counters and frees their memory; returns how many rows
  // there were. Throws std::bad_alloc, in which case nothing changes.
  int64_t Clear();

  // Rows that an export copies per lock hold.
  static constexpr int64_t kExportedAtOnce = 4096;
  // Appends all rows, in the order of their numbers, over several lock holds.
  // Appends none, and returns false, if there are more than `limit`, or if a
  // row is erased or moved meanwhile.
  bool ExportAll(int64_t limit, const ExportSink& sink) const;

  // Appends up to `limit` rows, in the order of a key that is computed from the
  // hash, starting at `key` (0: the beginning). Returns the key to continue
  // with, or kNoKey at the end. There are 2^57 keys, so two signs can have the
  // same key; the second one is then appended with the first, even if this
  // exceeds the limit.
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  static constexpr int kKeyBits = 63 - kStripeBits;
  uint64_t Export(uint64_t key, int64_t limit, const ExportSink& sink) const;

  // Copies `row_bytes` of each of up to `limit` live rows to `out`, starting at
  // number `row`; if `changed`, only those whose change was taken. Returns the
  // number to continue with, or kNoRow at the end. Requires a RowWalk.
  uint32_t CopyRows(uint32_t row, int64_t limit, bool changed,
                    int64_t row_bytes, uint8_t* out, int64_t* copied) const;

  // Change marks; see change_marks.h. Changes are recorded after TrackChanges.
  void TrackChanges();
  void StopTracking();
  // Erases those of the rows `row` ... `row` + `limit` - 1 that were not
  // touched since TrackChanges; both arguments are multiples of 64. Returns the
  // number to continue with, or kNoRow at the end or if changes are not
  // tracked. Requires a RowWalk.
  uint32_t EraseUntouched(uint32_t row, uint32_t limit);

  // Calls visit(row, sign) for the live rows among `row` ... `row` + `limit` -
  // 1, under a single lock hold; both arguments are multiples of 64. Returns
  // the number to continue with, or kNoRow at the end. Requires a RowWalk.
  // Defined in stripe_sweep.h.
  template <typename Visit>
  uint32_t Walk(uint32_t row, uint32_t limit, const Visit& visit) const;
  // The same under an exclusive lock: visit may change the row, and returns
  // whether it has done so or whether the row is to be erased.
  enum class Swept { kKeep, kChanged, kErase };
  template <typename Visit>
  uint32_t Sweep(uint32_t row, uint32_t limit, const Visit& visit);

  void TakeChanges();
  void CommitChanges();
  void PutChangesBack();
  // The signs that were erased: in the changes that were taken if `taken`,
  // otherwise in the changes since.
  std::vector<int64_t> ErasedSigns(bool taken) const;

  // Counters of signs, in stripe_counters.cc. Appends counters that are not
  // forgotten in `period`, in ascending order of CounterKey, starting at `key`
  // (0: the beginning); a few thousand per call, under one lock hold. Returns
  // the key to continue with, or AdmissionCounters::kNoKey at the end.
  uint64_t CopyCounters(uint64_t key, int64_t period,
                        std::vector<StoredCounter>* counters) const;
  // Sets the counters of signs without a row; the period of a count is `period`
  // or, if it is negative, the one before. Counts above `most` are set to it.
  void ImportCounters(const BatchItem* items, int64_t n, const int32_t* counts,
                      int most, int64_t period);
  void ClearCounters();

  // Returns the memory of free rows to the system, and returns the number of
  // bytes. Only one thread at a time may compact a stripe. Sets `*walked` if
  // rows could not be moved because of a RowWalk.
  int64_t Compact(bool* walked);
  // Moves chunks to earlier pieces of the memory.
  void Pack();
  // Whether the last erasure left so many rows free that compaction is
  // worthwhile.
  bool sparse() const { return sparse_.load(std::memory_order_relaxed); }

  struct Stats {
    int64_t rows = 0;
    int64_t free_rows = 0;
    int64_t slab_bytes = 0;
    int64_t index_bytes = 0;
    int64_t max_probe_length = 0;
    int64_t waiting = 0;
    int64_t counter_bytes = 0;
    int64_t admitted = 0;
    int64_t saturated = 0;
  };
  // `period`: of the last push, for counters. `with_probes`: whether to walk
  // the index for max_probe_length, which is 0 otherwise.
  Stats GetStats(int64_t period, bool with_probes) const;
  int64_t Size() const;

  // Fetches the stripe itself into the cache. In a step of many tables, that of
  // a small batch is cold.
  void Prefetch() const {
    const auto* const at = reinterpret_cast<const uint8_t*>(this);
    for (size_t i = 0; i < sizeof(Stripe); i += 64) __builtin_prefetch(at + i);
  }

  StripeMutex& mutex() const TF_EXT_RETURNS_MUTEX(mutex_) { return mutex_; }
  const SignRows& rows() const TF_EXT_REQUIRES_SHARED(mutex_) { return rows_; }

 private:
  friend class RowWalk;
  class ExclusiveLocks;

  // Prefetches what a visit touches beside the row: the change mark of the
  // candidate if `touch`, and the counter of a sign without one.
  void PrefetchBeside(uint64_t hash, uint32_t candidate, bool touch) const
      TF_EXT_REQUIRES_SHARED(mutex_);
  // LookUp of items, which also prefetches their change marks if `touch`.
  template <typename Visit>
  void ForEachBlock(const BatchItem* items, int64_t n, int64_t row_bytes,
                    bool touch, const Visit& visit) const
      TF_EXT_REQUIRES_SHARED(mutex_);

  void EraseRow(uint32_t row) TF_EXT_REQUIRES(mutex_);
  uint32_t FindOrInsert(int64_t sign, uint64_t hash, uint32_t candidate,
                        bool with_weights) TF_EXT_REQUIRES(mutex_);
  // These two: the sign must be absent.
  uint32_t Insert(int64_t sign, uint64_t hash, bool with_weights)
      TF_EXT_REQUIRES(mutex_);
  // kNoRow if it is not admitted.
  uint32_t InsertIfAdmitted(const BatchItem& item, uint64_t hash,
                            bool with_weights, const PushAdmission& admission)
      TF_EXT_REQUIRES(mutex_);
  // Removes the row from the index, and from the smaller one.
  void EraseFromIndex(uint64_t hash, uint32_t row) TF_EXT_REQUIRES(mutex_);
  void Grow() TF_EXT_REQUIRES(mutex_);
  size_t BucketsAt(int level) const { return BucketsOf(number_, level); }
  // Inserts up to `limit` live rows into the index, starting at number `row`,
  // in whole blocks. Returns the number to continue with, or kNoRow at the end.
  uint32_t InsertRows(uint32_t row, int64_t limit, BucketIndex* index) const
      TF_EXT_REQUIRES_SHARED(mutex_);
  bool MoveSomeRows(bool* walked);
  void GiveChunksBack();
  void ShrinkIndex();
  int64_t Bytes() const;
  void NoteFreeRows() TF_EXT_REQUIRES(mutex_);

  const int number_;
  const RowFormat* const format_;
  SlabMemory* const memory_;
  mutable StripeMutex mutex_;
  SignRows rows_ TF_EXT_GUARDED_BY(mutex_);
  // nullptr: not tracked.
  std::unique_ptr<ChangeMarks> marks_ TF_EXT_GUARDED_BY(mutex_);
  AdmissionCounters counters_ TF_EXT_GUARDED_BY(mutex_);
  int64_t admitted_ TF_EXT_GUARDED_BY(mutex_) = 0;   // rows
  int64_t saturated_ TF_EXT_GUARDED_BY(mutex_) = 0;  // values
  // Of growth; -1: no index.
  int level_ TF_EXT_GUARDED_BY(mutex_) = -1;

  // The smaller index that compaction builds next to the current one. It has
  // the rows below `next`; insertions and erasures of these update both.
  struct SmallerIndex {
    BucketIndex index;
    int level;
    uint32_t next = 0;
  };
  // nullptr: none is being built.
  std::unique_ptr<SmallerIndex> smaller_ TF_EXT_GUARDED_BY(mutex_);
  mutable std::atomic<int> walks_{0};  // the number of RowWalks
  std::atomic<bool> sparse_{false};
};

// While a RowWalk exists, live rows of the stripe keep their numbers.
class RowWalk {
 public:
  explicit RowWalk(const Stripe& stripe);
  ~RowWalk() { --stripe_.walks_; }
  RowWalk(const RowWalk&) = delete;
  RowWalk& operator=(const RowWalk&) = delete;

 private:
  const Stripe& stripe_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_STRIPE_H_
