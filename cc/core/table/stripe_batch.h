// SPDX-License-Identifier: Apache-2.0
// A batch of signs distributed to the stripes, in batch order within each.
#ifndef TF_EXT_CC_CORE_TABLE_STRIPE_BATCH_H_
#define TF_EXT_CC_CORE_TABLE_STRIPE_BATCH_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/mutex.h"
#include "cc/core/support/parallel.h"
#include "cc/core/table/batch_parts.h"

namespace tf_ext {

// Memory for the signs of a batch, which batches use one after another. Shared
// by all tables: as many are kept as were in use at the same time, but no
// large ones.
class BatchBuffer {
 public:
  // Throws std::bad_alloc.
  explicit BatchBuffer(int64_t n) {
    {
      Pool& pool = GetPool();
      const ExclusiveLock lock(pool.mutex);
      if (!pool.buffers.empty()) {
        memory_ = std::move(pool.buffers.back());
        pool.buffers.pop_back();
      }
    }
    if (memory_.capacity >= n) return;
    // new T[n] without parentheses: the memory is not cleared first.
    memory_.capacity = 0;
    memory_.items.reset(new BatchItem[n]);
    memory_.stripes.reset(new uint8_t[n]);
    memory_.capacity = n;
  }
  ~BatchBuffer() {
    if (memory_.capacity == 0 || memory_.capacity > kMaxKeptItems) return;
    Pool& pool = GetPool();
    const ExclusiveLock lock(pool.mutex);
    // Within capacity: no allocation, so nothing to throw.
    if (pool.buffers.size() < kMaxKeptBuffers) {
      pool.buffers.push_back(std::move(memory_));
    }
  }
  BatchBuffer(const BatchBuffer&) = delete;
  BatchBuffer& operator=(const BatchBuffer&) = delete;

  BatchItem* items() const { return memory_.items.get(); }
  // Which stripe each sign of the batch is of.
  uint8_t* stripes() const { return memory_.stripes.get(); }

 private:
  static constexpr size_t kMaxKeptBuffers = 16;
  static constexpr int64_t kMaxKeptItems = 512 << 10;  // 8.5 MiB

  struct Memory {
    std::unique_ptr<BatchItem[]> items;
    std::unique_ptr<uint8_t[]> stripes;
    int64_t capacity = 0;
  };
  struct Pool {
    Pool() { buffers.reserve(kMaxKeptBuffers); }
    Mutex mutex;
    std::vector<Memory> buffers TF_EXT_GUARDED_BY(mutex);
  };
  static Pool& GetPool() {
    // Never destroyed: batches may still run while the process exits.
    static Pool* const pool = new Pool;
    return *pool;
  }

  Memory memory_;
};

class StripeBatch {
 public:
  // Throws std::bad_alloc.
  template <typename Part>
  StripeBatch(const std::vector<Part>& parts, const ParallelFor& parallel_for)
      : buffer_(CountSigns(parts)) {
    const std::vector<Chunk<Part>> chunks = MakeChunks(parts, kChunk);
    std::vector<Counts> counts(chunks.size());
    const auto count_chunk = [&](int64_t c) {
      const Part& part = chunks[c].part;
      uint8_t* const stripes = buffer_.stripes() + chunks[c].first;
      for (int64_t i = 0; i < part.n; ++i) {
        const int stripe = StripeOf(TableHash(part.sign(i)));
        stripes[i] = static_cast<uint8_t>(stripe);
        ++counts[c].of[stripe];
      }
    };
    const auto deal_chunk = [&](int64_t c) {
      const Part& part = chunks[c].part;
      const uint8_t* const stripes = buffer_.stripes() + chunks[c].first;
      for (int64_t i = 0; i < part.n; ++i) {
        buffer_.items()[counts[c].of[stripes[i]]++] = part.item(i);
      }
    };
    RunChunks(chunks, kChunk, parallel_for, count_chunk);
    // Counts become places: by stripe, then by chunk, so that the order in a
    // stripe is the batch's whatever the number of chunks.
    int64_t place = 0;
    for (int stripe = 0; stripe < kStripes; ++stripe) {
      starts_[stripe] = place;
      for (Counts& chunk : counts) {
        place += std::exchange(chunk.of[stripe], place);
      }
    }
    starts_[kStripes] = place;
    RunChunks(chunks, kChunk, parallel_for, deal_chunk);
  }

  BatchItem* items(int stripe) const {
    return buffer_.items() + starts_[stripe];
  }
  int64_t size(int stripe) const {
    return starts_[stripe + 1] - starts_[stripe];
  }

 private:
  static constexpr int64_t kChunk = 16 << 10;  // signs; some 50 microseconds

  struct Counts {
    int64_t of[kStripes] = {};
  };

  BatchBuffer buffer_;
  int64_t starts_[kStripes + 1];
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_STRIPE_BATCH_H_
