// SPDX-License-Identifier: Apache-2.0
// Compaction of a stripe: moves its rows together and returns the memory that
// is no longer needed to the system.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/stripe.h"

namespace tf_ext {
namespace {

// Rows that are moved, or inserted into the smaller index, per lock hold: tens
// to hundreds of microseconds.
constexpr int kRowsAtOnce = 1024;

// Automatic compaction ignores stripes with fewer free bytes: not worth the
// time. Over all stripes of a table this is 32 MiB.
constexpr int64_t kMinSparseBytes = 512 << 10;

}  // namespace

RowWalk::RowWalk(const Stripe& stripe) : stripe_(stripe) {
  // Rows are moved only under the exclusive lock, so none is being moved now.
  const SharedLock lock(stripe.mutex_);
  ++stripe.walks_;
}

void Stripe::NoteFreeRows() {
  const int64_t free = rows_.slabs.free();
  sparse_.store(
      free >= rows_.slabs.live() && free * format_->stride >= kMinSparseBytes,
      std::memory_order_relaxed);
}

int64_t Stripe::Bytes() const {
  const SharedLock lock(mutex_);
  return rows_.slabs.bytes() + static_cast<int64_t>(rows_.index.bytes()) +
         counters_.bytes() + (marks_ == nullptr ? 0 : marks_->bytes());
}

int64_t Stripe::Compact(bool* walked) {
  const int64_t before = Bytes();
  while (MoveSomeRows(walked)) {
  }
  GiveChunksBack();
  ShrinkIndex();
  {
    const ExclusiveLock lock(mutex_);
    counters_.Shrink();
  }
  return before - Bytes();
}

// Returns whether there are more rows to move.
bool Stripe::MoveSomeRows(bool* walked) {
  const ExclusiveLock lock(mutex_);
  RowSlabs& slabs = rows_.slabs;
  slabs.Trim();
  if (slabs.free() == 0) return false;
  if (walks_ > 0) {
    *walked = true;
    return false;
  }
  for (int moved = 0; moved < kRowsAtOnce; moved += kBlock) {
    uint32_t from[kBlock];
    uint32_t to[kBlock];
    uint64_t hashes[kBlock];
    int count = 0;
    while (count < kBlock && slabs.MoveDown(&from[count], &to[count])) {
      __builtin_prefetch(slabs.At(from[count]));
      __builtin_prefetch(slabs.At(to[count]), 1);
      ++count;
    }
    for (int i = 0; i < count; ++i) {
      hashes[i] = TableHash(slabs.SignAt(from[i]));
      rows_.index.Prefetch(hashes[i]);
    }
    for (int i = 0; i < count; ++i) {
      std::memcpy(slabs.At(to[i]), slabs.At(from[i]), format_->stride);
      rows_.index.Renumber(hashes[i], from[i], to[i]);
      if (marks_ != nullptr) marks_->Move(from[i], to[i]);
    }
    if (count < kBlock) return false;
  }
  return true;
}

void Stripe::GiveChunksBack() {
  std::vector<SlabMemory::Piece> unused;
  {
    const ExclusiveLock lock(mutex_);
    unused = rows_.slabs.TakeUnusedChunks();
    rows_.slabs.DiscardEnd();
    if (marks_ != nullptr) marks_->Shrink(rows_.slabs.used());
    sparse_.store(false, std::memory_order_relaxed);
  }
  // Without the lock, because system calls take time.
  for (const SlabMemory::Piece& piece : unused) memory_->Release(piece);
}

// Builds a smaller index next to the current one, some rows at a time and with
// the lock in shared mode: readers never wait for it, and writers only for a
// few rows. Insert and EraseFromIndex keep the smaller index up to date. It is
// discarded if rows are inserted until it is too small.
void Stripe::ShrinkIndex() {
  const auto fits = [this](const BucketIndex& index) {
    mutex_.AssertReadable();
    const size_t live = static_cast<size_t>(rows_.slabs.live());
    return live == 0 || !index.Crowded(live);
  };
  auto smaller = std::make_unique<SmallerIndex>();
  {
    const SharedLock lock(mutex_);
    const size_t live = static_cast<size_t>(rows_.slabs.live());
    int level = live == 0 ? -1 : 0;
    while (level < level_ && live > 0 &&
           BucketIndex::Capacity(BucketsAt(level)) <= live) {
      ++level;
    }
    if (level >= level_) return;
    smaller->level = level;
  }
  if (smaller->level >= 0) {
    smaller->index = BucketIndex(BucketsAt(smaller->level));
  }
  {
    const ExclusiveLock lock(mutex_);
    smaller_ = std::move(smaller);
  }
  bool more = true;
  while (more) {
    const SharedLock lock(mutex_);
    if (smaller_ == nullptr) return;
    if (!fits(smaller_->index)) break;
    smaller_->next = InsertRows(smaller_->next, kRowsAtOnce, &smaller_->index);
    more = smaller_->next != kNoRow;
  }
  std::unique_ptr<SmallerIndex> done;  // unmapped after unlocking
  const ExclusiveLock lock(mutex_);
  done = std::move(smaller_);
  if (done == nullptr || more) return;
  rows_.index.swap(done->index);
  level_ = done->level;
}

void Stripe::Pack() {
  for (size_t c = 0;; ++c) {
    SlabMemory::Piece piece;
    {
      const SharedLock lock(mutex_);
      if (c >= rows_.slabs.chunks()) return;
      piece = memory_->TakeBefore(rows_.slabs.Chunk(c));
    }
    if (piece.data == nullptr) continue;
    {
      const ExclusiveLock lock(mutex_);
      if (c < rows_.slabs.chunks()) piece = rows_.slabs.Relocate(c, piece);
    }
    memory_->Release(piece);
  }
}

}  // namespace tf_ext
