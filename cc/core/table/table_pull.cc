// SPDX-License-Identifier: Apache-2.0
// Reading rows.
//
// Signs that are there are read in the order of the batch, with all stripes
// locked for reading: cache misses dominate the cost of a pull, and in this way
// the output is written in sequence and the batch need not be distributed.
// Absent signs are then inserted stripe by stripe, as are read the signs of a
// chunk that met a writer: reader and writer would wait for each other at all
// stripes then.
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "cc/core/table/batch_parts.h"
#include "cc/core/table/read_rows.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/stripe_batch.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_stripes.h"

namespace tf_ext {
namespace {

// Signs under one hold of the locks; some 100 to 200 microseconds.
constexpr int64_t kPullChunk = 4096;

// All stripes locked for reading, or none.
class ReadLocks {
 public:
  explicit ReadLocks(const std::vector<std::unique_ptr<Stripe>>& stripes)
      TF_EXT_UNCHECKED : stripes_(stripes) {
    for (const auto& stripe : stripes) stripe->Prefetch();
    while (held_ < stripes.size() &&
           stripes[held_]->mutex().try_lock_shared()) {
      stripes[held_++]->rows().slabs.PrefetchChunks();
    }
    if (held_ < stripes.size()) Release();
  }
  ~ReadLocks() { Release(); }
  ReadLocks(const ReadLocks&) = delete;
  ReadLocks& operator=(const ReadLocks&) = delete;

  bool held() const { return held_ > 0; }

 private:
  void Release() TF_EXT_UNCHECKED {
    while (held_ > 0) stripes_[--held_]->mutex().unlock_shared();
  }

  const std::vector<std::unique_ptr<Stripe>>& stripes_;
  size_t held_ = 0;
};

}  // namespace

Status Table::Pull(const std::vector<PullPart>& parts, bool insert,
                   const ParallelFor& parallel_for, bool with_statistics) {
  const RowStatistics* const statistics =
      with_statistics && statistics_.width() > 0 ? &statistics_ : nullptr;
  const int64_t width =
      config_.dim + (statistics == nullptr ? 0 : statistics->width());
  try {
    std::vector<SignPart> sign_parts;
    float* out = nullptr;
    for (const PullPart& part : parts) {
      TF_EXT_RETURN_IF_ERROR(CheckCount(part.n));
      if (part.n == 0) continue;
      if (out == nullptr) out = part.out;
      // Positions are places of weights.
      sign_parts.push_back({part.signs, part.n, part.out - out, width});
    }
    if (sign_parts.empty()) return Status::Ok();
    const auto view = AbsentNow();
    // With admission, pushes decide which signs get a row; and with shared
    // rows, what these start from.
    const bool inserts =
        config_.admission == nullptr && !config_.unknown.is_shared();
    return PullParts(sign_parts, insert && inserts,
                     {out, statistics, view.get()}, parallel_for);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

Status Table::PullParts(const std::vector<SignPart>& parts, bool insert,
                        const PullOutput& output,
                        const ParallelFor& parallel_for) {
  const std::vector<Chunk<SignPart>> chunks = MakeChunks(parts, kPullChunk);
  const BatchBuffer buffer(CountSigns(parts));
  std::vector<ItemPart> left(chunks.size());
  std::atomic<bool> met_writer{false};
  const auto rows_of = [this](uint64_t hash) -> const SignRows& {
    const Stripe& stripe = *stripes_[StripeOf(hash)];
    stripe.mutex().AssertReadable();
    return stripe.rows();
  };
  RunChunks(chunks, kPullChunk, parallel_for, [&](int64_t c) {
    const SignPart& part = chunks[c].part;
    BatchItem* const items = buffer.items() + chunks[c].first;
    const ReadLocks locks(stripes_);
    if (locks.held()) {
      left[c] = {items, ReadRows(part, *format_, rows_of, output,
                                 insert ? items : nullptr)};
      return;
    }
    met_writer = true;
    for (int64_t i = 0; i < part.n; ++i) items[i] = part.item(i);
    left[c] = {items, part.n};
  });
  const Status status = ForEachStripe(
      left, parallel_for, [&](int s, BatchItem* items, int64_t count) {
        if (met_writer) {
          stripes_[s]->Pull(items, count, insert, output);
        } else {
          stripes_[s]->PullInserting(items, count, output);
        }
      });
  if (insert && CountSigns(left) > 0) ++changes_;
  return status;
}

}  // namespace tf_ext
