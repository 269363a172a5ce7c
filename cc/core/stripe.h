// A stripe: one of the 64 parts of a table, each with its own lock, index and
// rows. It grows alone.
//
//   Table
//     stripes[64]            // by the high bits of TableHash(sign)
//       StripeMutex
//       BucketIndex          // hash -> row number; bucket_index.h
//       RowSlabs             // row number -> row; row_slabs.h
//       ChangeMarks          // row number -> changed?; change_marks.h
//
// Batched work only. Rows that are there are read in the order of the batch,
// with all stripes locked for reading: table_pull.cc. For all else a batch is
// dealt out to the stripes first, then each stripe does its share under one
// lock hold, which costs one lock a stripe and batch. How signs are looked up
// is in lookup.h.
//
// Why 64: enough that threads seldom meet, few enough that a batch of some
// thousand signs gives every stripe a block to work on.
//
// Growth: when 2/3 of the slots are used the index is built anew with twice
// the buckets; the rows stay where they are. All stripes of a table have
// nearly the same number of rows, so with powers of two all would double
// within one batch. Instead stripe s has 4 * 2^(level + s / 64) buckets: the
// growths spread over a whole doubling of the table, a batch pays for about
// one of them, and the memory of the indexes together grows smoothly.
//
// Rows are numbered in the order in which a batch asks for them, so contents
// and order of a stripe do not depend on the number of threads.
#ifndef TF_EXT_CC_CORE_STRIPE_H_
#define TF_EXT_CC_CORE_STRIPE_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cc/core/batch_parts.h"
#include "cc/core/change_marks.h"
#include "cc/core/initializer.h"
#include "cc/core/lookup.h"
#include "cc/core/row_layout.h"
#include "cc/core/slab_memory.h"
#include "cc/core/stripe_mutex.h"
#include "cc/core/update_rule.h"

namespace tf_ext {

// How the rows of a table look and start.
struct RowFormat {
  RowFormat(const RowLayout& layout, const Initializer* row_initializer);

  // A new row of the sign; its weights are left alone unless `with_weights`.
  void Start(uint8_t* row, int64_t sign, bool with_weights) const;

  int64_t stride;
  int64_t dim;
  const Initializer* initializer;
  // What follows the weights in a new row.
  std::vector<uint8_t> slots;
};

// Bytes of a row, and where those of the batch's rows are: `stride` apart.
struct BoundField {
  int64_t offset;
  int64_t bytes;
  const uint8_t* data;
  int64_t stride;
};

// Rows as Export hands them out: [rows, field->count] bytes for each field.
struct ExportSink {
  const std::vector<const Field*>& fields;
  std::vector<int64_t>* signs;
  std::vector<std::vector<uint8_t>>* values;
};

// Thrown when a stripe has no row number left.
class StripeFullError : public std::length_error {
 public:
  using std::length_error::length_error;
};

// On cache lines of its own: neighbours are locked by other threads.
// All methods but rows() lock; those that add rows throw std::bad_alloc or
// StripeFullError and leave every row whole then.
class alignas(64) Stripe {
 public:
  // `number`: which of the table's stripes. `format` and `memory`, which all
  // stripes of a table share, outlive the stripe.
  Stripe(int number, const RowFormat* format, SlabMemory* memory);

  // out: where positions count from. Absent signs are created if `insert`, or
  // read as they would start. Items are used as scratch.
  void Pull(BatchItem* items, int64_t n, bool insert, float* out);
  // The same of signs most of which are absent.
  void PullInserting(const BatchItem* items, int64_t n, float* out);
  // gradients: [batch, dim].
  void Push(const BatchItem* items, int64_t n, const UpdateRule::Push& push,
            const float* gradients);
  void Import(const BatchItem* items, int64_t n,
              const std::vector<BoundField>& fields);
  // Returns how many were there.
  int64_t Erase(const BatchItem* items, int64_t n);
  // Gives all memory back; returns how many rows there were.
  int64_t Clear();

  // Appends up to `limit` live rows from number `row` on. Returns the number
  // to go on with, or kNoRow if there are no more.
  uint32_t Export(uint32_t row, int64_t limit, const ExportSink& sink) const;

  // Copies up to `limit` live rows, `row_bytes` of each, from number `row` on
  // to `out`; only those whose change was taken if `changed`. Returns the
  // number to go on with, or kNoRow if there are no more.
  uint32_t CopyRows(uint32_t row, int64_t limit, bool changed,
                    int64_t row_bytes, uint8_t* out, int64_t* copied) const;

  // Marks of changes, see change_marks.h. None is kept until TrackChanges.
  void TrackChanges();
  void StopTracking();
  void TakeChanges();
  void CommitChanges();
  void PutChangesBack();
  // Signs erased in the changes that were taken, and in those since.
  std::vector<int64_t> ErasedSigns(bool taken) const;

  struct Stats {
    int64_t rows = 0;
    int64_t free_rows = 0;
    int64_t slab_bytes = 0;
    int64_t index_bytes = 0;
    int64_t max_probe_length = 0;
  };
  Stats GetStats() const;
  int64_t Size() const;

  StripeMutex& mutex() const { return mutex_; }
  // For those who have locked the mutex.
  const SignRows& rows() const { return rows_; }

 private:
  // LookUp of items, with their marks prefetched too if `touch`.
  template <typename Visit>
  void ForEachBlock(const BatchItem* items, int64_t n, int64_t row_bytes,
                    bool touch, const Visit& visit) const;

  uint32_t FindOrInsert(int64_t sign, uint64_t hash, uint32_t candidate,
                        bool with_weights);
  uint32_t Insert(int64_t sign, uint64_t hash, bool with_weights);
  void Grow();
  size_t BucketsAt(int level) const;

  const int number_;
  const RowFormat* const format_;
  SlabMemory* const memory_;
  mutable StripeMutex mutex_;
  SignRows rows_;
  std::unique_ptr<ChangeMarks> marks_;  // nullptr: not tracked
  int level_ = -1;                      // of growth; -1: no index yet
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_STRIPE_H_
