// A batch of signs dealt out to the stripes, in batch order within each.
#ifndef TF_EXT_CC_CORE_STRIPE_BATCH_H_
#define TF_EXT_CC_CORE_STRIPE_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/mix.h"
#include "cc/core/parallel.h"
#include "cc/core/stripe.h"

namespace tf_ext {

// Memory that batches use one after another. Shared by all tables: as many
// buffers exist as batches ran at the same time, and large ones are not kept.
class BatchBuffers {
 public:
  struct Buffer {
    std::unique_ptr<BatchItem[]> items;
    std::unique_ptr<uint8_t[]> stripes;
    int64_t capacity = 0;
  };

  // Throws std::bad_alloc.
  static Buffer Take(int64_t n) {
    Buffer buffer;
    {
      Pool& pool = GetPool();
      const std::lock_guard<std::mutex> lock(pool.mutex);
      if (!pool.buffers.empty()) {
        buffer = std::move(pool.buffers.back());
        pool.buffers.pop_back();
      }
    }
    if (buffer.capacity >= n) return buffer;
    // new T[n] without parentheses: the memory is not cleared first.
    buffer.capacity = 0;
    buffer.items.reset(new BatchItem[n]);
    buffer.stripes.reset(new uint8_t[n]);
    buffer.capacity = n;
    return buffer;
  }

  static void GiveBack(Buffer buffer) noexcept {
    if (buffer.capacity == 0 || buffer.capacity > kMaxKeptItems) return;
    Pool& pool = GetPool();
    const std::lock_guard<std::mutex> lock(pool.mutex);
    // Within capacity: no allocation, so nothing to throw.
    if (pool.buffers.size() < kMaxKeptBuffers) {
      pool.buffers.push_back(std::move(buffer));
    }
  }

 private:
  static constexpr size_t kMaxKeptBuffers = 16;
  static constexpr int64_t kMaxKeptItems = 512 << 10;  // 8.5 MiB

  struct Pool {
    Pool() { buffers.reserve(kMaxKeptBuffers); }
    std::mutex mutex;
    std::vector<Buffer> buffers;
  };
  static Pool& GetPool() {
    // Never destroyed: batches may still run while the process exits.
    static Pool* const pool = new Pool;
    return *pool;
  }
};

// Some of the signs of a batch: the position of sign i is `position + i *
// step`.
struct SignPart {
  const int64_t* signs;
  int64_t n;
  int64_t position;
  int64_t step;
};

class StripeBatch {
 public:
  // Throws std::bad_alloc.
  StripeBatch(const std::vector<SignPart>& parts, int64_t n,
              const ParallelFor& parallel_for)
      : buffer_(BatchBuffers::Take(n)) {
    const std::vector<Chunk> chunks = MakeChunks(parts);
    std::vector<Counts> counts(chunks.size());
    const auto count_chunk = [&](int64_t c) {
      const Chunk& chunk = chunks[c];
      for (int64_t i = 0; i < chunk.signs.n; ++i) {
        const int stripe = StripeOf(TableHash(chunk.signs.signs[i]));
        buffer_.stripes[chunk.first + i] = static_cast<uint8_t>(stripe);
        ++counts[c].of[stripe];
      }
    };
    const auto deal_chunk = [&](int64_t c) {
      const Chunk& chunk = chunks[c];
      int64_t position = chunk.signs.position;
      for (int64_t i = 0; i < chunk.signs.n; ++i) {
        const int64_t to = counts[c].of[buffer_.stripes[chunk.first + i]]++;
        buffer_.items[to] = {chunk.signs.signs[i], position};
        position += chunk.signs.step;
      }
    };
    RunChunks(chunks, n, parallel_for, count_chunk);
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
    RunChunks(chunks, n, parallel_for, deal_chunk);
  }
  ~StripeBatch() { BatchBuffers::GiveBack(std::move(buffer_)); }
  StripeBatch(const StripeBatch&) = delete;
  StripeBatch& operator=(const StripeBatch&) = delete;

  BatchItem* items(int stripe) const {
    return buffer_.items.get() + starts_[stripe];
  }
  int64_t size(int stripe) const {
    return starts_[stripe + 1] - starts_[stripe];
  }

 private:
  static constexpr int64_t kChunk = 16 << 10;  // signs; some 50 microseconds

  struct Chunk {
    SignPart signs;
    int64_t first;  // which sign of the batch is the first
  };
  struct Counts {
    int64_t of[kStripes] = {};
  };

  static std::vector<Chunk> MakeChunks(const std::vector<SignPart>& parts) {
    std::vector<Chunk> chunks;
    int64_t first = 0;
    for (const SignPart& part : parts) {
      const int64_t count = std::max<int64_t>(1, part.n / kChunk);
      for (int64_t c = 0; c < count; ++c) {
        const int64_t begin = part.n * c / count;
        const int64_t end = part.n * (c + 1) / count;
        chunks.push_back({{part.signs + begin, end - begin,
                           part.position + begin * part.step, part.step},
                          first + begin});
      }
      first += part.n;
    }
    return chunks;
  }

  template <typename Fn>
  static void RunChunks(const std::vector<Chunk>& chunks, int64_t n,
                        const ParallelFor& parallel_for, const Fn& fn) {
    const int64_t count = static_cast<int64_t>(chunks.size());
    const int64_t blocks = std::min(count, std::max<int64_t>(1, n / kChunk));
    RunBlocks(blocks, parallel_for, [&](int64_t block) {
      for (int64_t c = count * block / blocks; c < count * (block + 1) / blocks;
           ++c) {
        fn(c);
      }
    });
  }

  BatchBuffers::Buffer buffer_;
  int64_t starts_[kStripes + 1];
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_STRIPE_BATCH_H_
