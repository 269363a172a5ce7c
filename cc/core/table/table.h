// SPDX-License-Identifier: Apache-2.0
// A concurrent hash table from signs (any int64) to rows.
//
// This file defines the contract; stripe.h, bucket_index.h and row_slabs.h
// describe the design.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/absent_rows.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/rules/update_rule.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/support/mutex.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
#include "cc/core/table/applied_steps.h"
#include "cc/core/table/config.h"
#include "cc/core/table/eviction/policy.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_statistics.h"
#include "cc/core/table/row_time.h"
#include "cc/core/table/slab_memory.h"

namespace tf_ext {

class SignSet;
class Stripe;
struct BoundField;
struct ConvertedValues;
struct PullOutput;
struct RowFormat;
struct SignPart;
struct SignRows;
struct StoredCopy;

struct TableStats {
  int64_t rows = 0;
  int64_t free_rows = 0;  // erased rows, to be reused
  int64_t stripes = 0;
  int64_t row_bytes = 0;    // stride of a row
  int64_t slab_bytes = 0;   // memory of rows, including free ones
  int64_t index_bytes = 0;  // memory of the indexes
  int64_t max_stripe_rows = 0;
  int64_t min_stripe_rows = 0;
  int64_t max_probe_length = 0;  // most buckets read to find a present sign
  int64_t waiting = 0;           // signs that are counted for admission
  int64_t counter_bytes = 0;     // memory of their counters
  int64_t admitted = 0;          // rows admitted since the table was created
  int64_t evicted = 0;           // rows evicted since the table was created
  // Values limited to the largest finite one of a narrow field since then.
  int64_t saturated = 0;
  int64_t updated = 0;  // rows updated since then, once per push of a row
};

// A field to export or import: `name` is in layout(), `data` points at
// [n, count] values of the field's type.
struct ConstFieldData {
  std::string name;
  const void* data;
};

struct ExportedRows {
  std::vector<int64_t> signs;
  // For each requested field, [signs.size(), count] values, as raw bytes.
  std::vector<std::vector<uint8_t>> fields;
  int64_t next_cursor = 0;  // -1: there are no more rows
};

// A field in the rows of a snapshot, `offset` bytes from the start of the row.
struct StoredField {
  std::string name;
  FieldType type;
  int64_t count;
  int64_t offset;
};

// The format of a snapshot's rows, and which of them to load: those of shard
// `shard` of `shards`. Fields of the table that are not among `fields` get the
// values of a new row.
struct StoredRows {
  std::vector<StoredField> fields;
  int64_t row_bytes;
  int64_t shard = 0;
  int64_t shards = 1;
  // If set, floats of another type than the table's are rounded to the nearest
  // value, and counted here; otherwise types must be equal.
  ConvertedValues* converted = nullptr;
};

// Receives the chunks of a file, in order.
using ChunkSink = std::function<Status(const ChunkEncoder::Chunk& chunk)>;

struct EvictedRows {
  int64_t examined = 0;
  int64_t evicted = 0;
};

struct WrittenRows {
  int64_t rows = 0;
  int64_t erased = 0;
};

class Table {
 public:
  static Status Create(const TableConfig& config,
                       std::unique_ptr<Table>* table);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }

  // All methods are thread-safe, and none throws; running out of memory is
  // kResourceExhausted. Signs may be repeated in a batch.

  // out: [n, dim]; [n, dim + config().statistics] if `with_statistics`, which
  // follow the weights of each row. Absent signs are inserted if `insert` and
  // the table has neither admission nor shared rows; otherwise, what the
  // config says is read (unknown_rows.h), and statistics of 0, and nothing
  // changes.
  Status Pull(const int64_t* signs, int64_t n, bool insert, float* out,
              const ParallelFor& parallel_for, bool with_statistics = false) {
    return Pull({{signs, n, out}}, insert, parallel_for, with_statistics);
  }
  // The same for parts that are written to different places in one buffer.
  struct PullPart {
    const int64_t* signs;
    int64_t n;
    float* out;
  };
  Status Pull(const std::vector<PullPart>& parts, bool insert,
              const ParallelFor& parallel_for, bool with_statistics = false);

  // Absent signs are inserted first if they are admitted; the gradients of
  // others are dropped. A sign that occurs twice is updated twice, in order.
  struct PushBatch {
    const int64_t* signs;
    const float* gradients;  // [n, dim]
    int64_t n;
    const double* hyperparameters;
    int64_t hyperparameter_count;
    int64_t step;
    // In seconds since 1970, for tables whose last_seen is in seconds.
    int64_t time = 0;
    // [n, statistics_width], what is counted for admission and added to show
    // and click of the signs, finite and at least 0; nullptr: each counts as
    // one occurrence, with a click of 0. Ignored if the config's
    // statistics_width() is 0.
    const float* statistics = nullptr;
    int64_t statistics_width = 0;
    // Of a table with shared rows, the weights [start_count, dim] before the
    // push of those that the signs share: new rows start from them, and their
    // gradients are dropped. Other new rows have initial weights.
    const int64_t* start_signs = nullptr;
    const float* start_rows = nullptr;
    int64_t start_count = 0;
  };
  // Fails if a gradient is not finite, or a hyperparameter or statistic is out
  // of its range: the whole batch is refused.
  Status CheckPush(const PushBatch& batch,
                   const ParallelFor& parallel_for) const;
  // For a batch that CheckPush accepted. `*updated`: the number of updates.
  Status PushChecked(const PushBatch& batch, const ParallelFor& parallel_for,
                     int64_t* updated);
  // The pushes of steps that may run again: the caller claims each before it.
  AppliedSteps& applied_steps() { return applied_steps_; }
  // Both; the table is unchanged if the batch is refused.
  Status Push(const int64_t* signs, const float* gradients, int64_t n,
              const double* hyperparameters, int64_t hyperparameter_count,
              int64_t step, const ParallelFor& parallel_for, int64_t* updated,
              int64_t time = 0, const float* statistics = nullptr,
              int64_t statistics_width = 0);

  // Fields are shrunk, and moved while their rows were absent, as when they are
  // read, unless `fields` have kShrunkField or kCaughtUpField: then they are
  // those that belong to its values.
  //
  // Copies up to `limit` rows (-1: all), starting at `cursor` (0, or the
  // next_cursor of the previous call; any other number is a position in the
  // order of hashes, which is where a random sample can begin). Rows that are
  // present throughout a walk are seen exactly once, whatever is inserted,
  // erased or compacted meanwhile. All fields of a row are copied under one
  // lock hold. Stripes with at most `limit` rows are copied as a whole, which
  // is faster: fewer rows than `limit` are copied if the next stripe does not
  // fit. If the hashes of two signs differ only in one specific bit, cursors
  // cannot distinguish them, and `limit` is exceeded by one rather than losing
  // a row.
  Status Export(int64_t cursor, int64_t limit,
                const std::vector<std::string>& fields,
                ExportedRows* rows) const;

  // Sets the given fields of the signs' rows. Absent rows are inserted, with
  // the initial values of a new row in all other fields. If a sign occurs
  // twice, the last one wins. Weights without kShrunkField, and fields of a
  // table that moves absent rows without kCaughtUpField, are those of now.
  Status Import(const int64_t* signs, int64_t n,
                const std::vector<ConstFieldData>& fields,
                const ParallelFor& parallel_for);

  // Adds to the statistic values that were limited to the largest finite one of
  // a narrow field before they were imported.
  void CountSaturated(int64_t values) { saturated_ += values; }

  // Removes rows, or the counters of signs without one. `*erased`: the number
  // of rows that were present.
  Status Erase(const int64_t* signs, int64_t n, const ParallelFor& parallel_for,
               int64_t* erased);
  // Removes all rows and frees their memory; `*cleared`: how many there were,
  // valid after an error, too, which only a table with a chain can have. The
  // counters of signs are removed, too, and periods begin anew.
  Status Clear(int64_t* cleared);
  // Removes rows as Erase does, based on the time of their last push or on
  // their statistics; in table_evict.cc. `now`: a step, or seconds since 1970;
  // without effect if rows have no last_seen. Rows of unknown age
  // (row_time.h) get the later of `now` and the last push as their time, which
  // counts as a change of the row. At most kSweptAtOnce rows are examined per
  // lock hold; rows that other threads insert meanwhile may be left out.
  // `*evicted` is valid after an error, too.
  Status Evict(const EvictionArgs& args, int64_t now,
               const ParallelFor& parallel_for, EvictedRows* evicted);

  // Multiplies the statistics of all rows by `factor`, above 0 and at most 1;
  // in table_statistics.cc. This changes every row, also for the next delta. At
  // most kSweptAtOnce rows are changed per lock hold. `*decayed`: the number of
  // rows, which is valid after an error, too.
  Status DecayStatistics(double factor, const ParallelFor& parallel_for,
                         int64_t* decayed);

  // Compaction, in table_compact.cc: returns the memory of erased rows to the
  // system, while other threads read and write. `*bytes`: the number of bytes
  // returned, as counted by Stats. No row changes. Erase, Evict, ApplyChunk and
  // EndUpdate end by compacting stripes that are at least half empty. Unlike
  // that, Compact has no threshold, and it waits for stripes that are being
  // walked by row number (snapshots, evictions, updates) instead of skipping
  // them.
  Status Compact(const ParallelFor& parallel_for, int64_t* bytes);

  // Snapshots, in table_snapshot.cc; docs/snapshots.md describes the format.
  //
  // A chain is a full snapshot and the deltas that continue it, each identified
  // by its id. A table has at most one chain, and marks the changes since the
  // last committed snapshot of it.

  // Begins to save `id` as the first snapshot of a chain, or as the delta that
  // follows `base` if that is not empty. The caller then calls WriteRows for
  // all stripes, and finally EndChainSave, which restores the previous state of
  // the chain unless `committed`. EndChainSave can be repeated. Of a save that
  // has not begun, it keeps it from beginning.
  Status BeginChainSave(const std::string& id, const std::string& base);
  Status EndChainSave(const std::string& id, bool committed);
  // Declares that the table holds the rows of the snapshot `id` of a chain, and
  // starts to mark changes; "" ends the chain.
  Status SetChain(const std::string& id);
  // The id of the last snapshot of the chain; "" if there is no chain.
  std::string Chain() const;

  // Writes the rows of stripes [first_stripe, end_stripe) as one file: those
  // that are present at the beginning and are not erased meanwhile. If
  // `changed`, only the rows and erased signs of the delta that BeginChainSave
  // began. A stripe is locked only while the rows of one chunk are copied.
  Status WriteRows(int first_stripe, int end_stripe, bool changed,
                   const ChunkFormat& format, const ChunkSink& sink,
                   WrittenRows* written) const;

  // Returns an error if the fields of the rows differ from those of the table.
  Status CheckStoredRows(const StoredRows& stored) const;
  // Erases and sets the rows of a chunk that belong to the shard.
  Status ApplyChunk(const StoredRows& stored, const ChunkView& chunk,
                    int64_t* rows);

  // In-place updates, in table_update.cc: from the rows of one snapshot to
  // those of another one, while other threads read. Readers see either the old
  // or the new row, and never find a row absent that exists before and after.
  //
  // The order of calls is BeginUpdate, GatherErased for the chunks of all
  // deltas, UpdateRows for those of all snapshots (each in the order of the
  // chain), and EndUpdate. An update is abandoned when the next one, or a
  // chain, begins.

  // The id of the snapshot whose rows the table holds, as passed to EndUpdate;
  // "" if there is none, or if rows have since been changed in any other way.
  std::string Held() const;
  // `base`: the required value of Held(); "": any. `whole`: whether rows that
  // the update does not set are erased at its end, which is not allowed for a
  // table with a chain.
  Status BeginUpdate(const std::string& base, bool whole, int64_t* number);
  Status GatherErased(const StoredRows& stored, const ChunkView& chunk);
  // Sets the rows of a chunk, except those that a later chunk erases.
  Status UpdateRows(const StoredRows& stored, const ChunkView& chunk,
                    int64_t* rows);
  // Erases the rows that are not in the new snapshot. `number`: from
  // BeginUpdate. `completed`: else the update is abandoned, and nothing is
  // erased. `id`: the snapshot whose rows the table now holds; "": it holds
  // those of none, as some fields were left out. `*held`: whether Held()
  // returns `id`, which it does not if rows were changed in any other way
  // meanwhile.
  Status EndUpdate(int64_t number, bool completed, const std::string& id,
                   bool* held);

  // Counters of signs without a row, for admission by count; in
  // table_counters.cc. They are exported as a count of 1 to n - 1, negative if
  // it is of the period before the current one.

  // The latest period of a push; 0 without counters that are forgotten.
  int64_t CounterPeriod() const { return admission_period_; }
  // Appends counters as of `period`, which should not be before CounterPeriod
  // (counters of later periods count as of this one), starting at `*cursor` (0:
  // the beginning), of whole stripes until there are at least `limit` (-1:
  // all). Sets `*cursor` to where to continue; -1: the end. Counters that are
  // there throughout a walk are seen exactly once.
  Status ExportCounters(int64_t* cursor, int64_t limit, int64_t period,
                        std::vector<int64_t>* signs,
                        std::vector<int32_t>* counts) const;
  // Sets counters that were exported as of `period`, also by a table with
  // another n or without `forget`; not those of signs that have a row. If a
  // sign occurs twice, the last one wins. Counters in the order of an export
  // are imported fast if those of a stripe are in one call, because tables that
  // grow meanwhile would put most of them far from their home lines. Tables
  // with another `forget` have other periods. `clear`: whether all counters are
  // removed first, so that `period` is the current one.
  Status ImportCounters(const int64_t* signs, const int32_t* counts, int64_t n,
                        int64_t period, bool clear,
                        const ParallelFor& parallel_for);
  // Writes the counters as a file, as of `period`. `*written`: their number.
  Status WriteCounters(uint64_t tag, int64_t period, const ChunkSink& sink,
                       int64_t* written) const;

  int64_t Size() const;
  // `with_probes`: as of Stripe::GetStats. Without, it takes microseconds.
  TableStats Stats(bool with_probes = true) const;
  // Where a sign is looked up, for counting accesses to memory. Not during
  // calls that add, erase or move rows.
  const SignRows& RowsOf(int64_t sign) const;
  // The number of rows in each stripe.
  std::vector<int64_t> StripeSizes() const;

  // How far rows that were read now would be shrunk, and what it is set to when
  // rows are loaded, from 0 to Shrinkage::kLast; see rules/shrinkage.h. 0 if
  // rows are not shrunk.
  int64_t ShrinkageClock() const {
    return shrinkage_ == nullptr ? 0 : shrinkage_->now();
  }
  Status SetShrinkageClock(int64_t clock);

  // What has moved absent rows, to be saved with them; "" if they stay where
  // they are. What SetAbsentState was given is ignored then.
  Status AbsentState(std::string* state) const;
  Status SetAbsentState(const std::string& state);

 private:
  explicit Table(const TableConfig& config);

  // Partitions the signs by stripe and runs share(range, items, count) for
  // ranges of stripes that together have all signs, in parallel. A range has
  // `at_least` signs, or as many stripes as may be locked at once.
  template <typename Part, typename Share>
  Status ForEachRange(const std::vector<Part>& parts, int64_t at_least,
                      const ParallelFor& parallel_for, const Share& share);
  // Runs share(stripe number, items, count) for each stripe that has signs.
  template <typename Part, typename Share>
  Status ForEachStripe(const std::vector<Part>& parts,
                       const ParallelFor& parallel_for, const Share& share);
  // The same for a single part whose positions start at 0.
  template <typename Share>
  Status ForEachStripe(const int64_t* signs, int64_t n,
                       const ParallelFor& parallel_for, const Share& share);
  // May throw std::bad_alloc.
  Status PullParts(const std::vector<SignPart>& parts, bool insert,
                   const PullOutput& output, const ParallelFor& parallel_for);
  Status OutOfMemory() const;
  // Runs sweep(first stripe, end stripe) for ranges that together cover all
  // stripes, in parallel; in table_sweep.h.
  template <typename Sweep>
  Status SweepStripes(const ParallelFor& parallel_for,
                      const Sweep& sweep) const;
  // Returns an error if they are of a wrong shape or not all valid.
  Status CheckStatistics(const int64_t* signs, int64_t n,
                         const float* statistics, int64_t width) const;
  // The period, or that of an earlier push if that is later.
  int64_t AdvancePeriod(int64_t period);
  Status CheckCounts() const;
  Status CheckEviction(const EvictionPolicy& policy, int64_t now) const;
  // A row as an eviction at `now` sees it.
  EvictionRow EvictionRowAt(const uint8_t* row, int32_t now) const;
  // The order in which rows are evicted for a capacity.
  using Rank = unsigned __int128;
  using DigitCounts = std::vector<int64_t>;
  // Finds the rank that all but `policy.capacity()` rows are below. May throw
  // std::bad_alloc.
  Status FindCutoff(const EvictionPolicy& policy, int32_t now,
                    const ParallelFor& parallel_for, Rank* cutoff) const;
  // Counts the digits at bit `shift` of the ranks that begin with `prefix`.
  Status CountRanks(const EvictionPolicy& policy, Rank prefix, int shift,
                    int32_t now, const ParallelFor& parallel_for,
                    DigitCounts* counts) const;
  // Sets how far rows have been shrunk to `now`, which must outlive the result,
  // if weights are among the fields, and this is not.
  void BindShrunk(const int64_t* now, std::vector<BoundField>* fields) const;
  // nullptr if rows stay where they are.
  std::shared_ptr<const AbsentView> AbsentNow() const {
    return absent_ == nullptr ? nullptr : absent_->history().view();
  }
  // The same if fields, which are bound, are those of now.
  std::shared_ptr<const AbsentView> AbsentNowFor(
      const std::vector<BoundField>& fields) const;
  Status ResolveStoredRows(const StoredRows& stored,
                           std::vector<StoredCopy>* copies) const;
  // Sets the rows of a chunk that belong to the shard, except those of signs in
  // `skipped`. May throw std::bad_alloc.
  Status ImportStored(const StoredRows& stored, const ChunkView& chunk,
                      const SignSet* skipped, int64_t* rows);
  Status EraseStored(const StoredRows& stored, const uint8_t* signs, int64_t n);
  // Like Erase, but does not count as a change, and does not compact.
  Status EraseSigns(const int64_t* signs, int64_t n,
                    const ParallelFor& parallel_for, int64_t* erased);
  struct Update;
  // Finds the update in progress; nullptr and an error if there is none.
  Status FindUpdate(std::shared_ptr<Update>* update) const;
  Status EraseGone(const Update& update);
  void StopTracking();
  // Compacts stripes of which many rows are free, at the end of an erasure. The
  // caller must not hold a lock of the table.
  void CompactIfSparse(const ParallelFor& parallel_for);
  // Returns the number of bytes that were returned. `walked`: receives the
  // stripes that have rows which could not be moved. May throw std::bad_alloc.
  int64_t CompactStripes(const std::vector<Stripe*>& stripes,
                         const ParallelFor& parallel_for,
                         std::vector<Stripe*>* walked);
  // If there is no field of that name, nullptr and an error that lists the
  // fields.
  Status FindField(const std::string& name, const Field** field) const;

  const TableConfig config_;
  const RowLayout layout_;
  const Initializer initializer_;
  const UpdateRule rule_;
  const RowTime last_seen_;
  const RowStatistics statistics_;
  // nullptr: rows are not shrunk.
  const std::unique_ptr<Shrinkage> shrinkage_;
  // nullptr: rows stay where they are while they are absent from pushes.
  const std::unique_ptr<AbsentRows> absent_;
  // The time of the last push, which is not always the latest time.
  std::atomic<int32_t> last_push_{0};
  // The latest period of a push, for admission.
  std::atomic<int64_t> admission_period_{0};
  const std::unique_ptr<const RowFormat> format_;
  SlabMemory memory_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
  Mutex compact_mutex_;  // held by a compaction
  // Held by evictions and decays: if statistics decayed after an eviction has
  // determined its cutoff, too many rows would be below it.
  Mutex sweep_mutex_;

  mutable Mutex chain_mutex_;
  // The id of its last snapshot; "": no chain.
  std::string chain_ TF_EXT_GUARDED_BY(chain_mutex_);
  // The id of the snapshot that is being written.
  std::string saving_ TF_EXT_GUARDED_BY(chain_mutex_);
  // The last save that was ended before it began.
  std::string ended_save_ TF_EXT_GUARDED_BY(chain_mutex_);
  std::shared_ptr<Update> update_ TF_EXT_GUARDED_BY(chain_mutex_);
  std::string held_ TF_EXT_GUARDED_BY(chain_mutex_);
  // changes_ when held_ became valid.
  int64_t held_changes_ TF_EXT_GUARDED_BY(chain_mutex_) = 0;

  // The number of batches that may have changed rows, other than those of
  // snapshots. Incremented at the end of a batch.
  std::atomic<int64_t> changes_{0};
  std::atomic<int64_t> evicted_{0};  // rows
  std::atomic<int64_t> updated_{0};  // rows, by pushes
  AppliedSteps applied_steps_;
  // Values that were limited before they were passed to the table's stripes.
  std::atomic<int64_t> saturated_{0};
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_H_
