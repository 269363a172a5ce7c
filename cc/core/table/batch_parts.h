// SPDX-License-Identifier: Apache-2.0
// The signs of a batch, whatever their containers.
//
// A part has `n` signs and, for each, a BatchItem: item(i). Parts are cut into
// chunks, which threads work on.
#ifndef TF_EXT_CC_CORE_TABLE_BATCH_PARTS_H_
#define TF_EXT_CC_CORE_TABLE_BATCH_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/support/parallel.h"

namespace tf_ext {

// A sign of a batch, and where in the batch it is; for a pull, which float of
// the output its weights begin at.
struct BatchItem {
  int64_t sign;
  int64_t position;
};

// The position of sign i is `position + i * step`.
struct SignPart {
  int64_t sign(int64_t i) const { return signs[i]; }
  BatchItem item(int64_t i) const { return {signs[i], position + i * step}; }
  SignPart Slice(int64_t begin, int64_t end) const {
    return {signs + begin, end - begin, position + begin * step, step};
  }

  const int64_t* signs;
  int64_t n;
  int64_t position;
  int64_t step;
};

struct ItemPart {
  int64_t sign(int64_t i) const { return items[i].sign; }
  BatchItem item(int64_t i) const { return items[i]; }
  ItemPart Slice(int64_t begin, int64_t end) const {
    return {items + begin, end - begin};
  }

  const BatchItem* items;
  int64_t n;
};

template <typename Part>
int64_t CountSigns(const std::vector<Part>& parts) {
  int64_t n = 0;
  for (const Part& part : parts) n += part.n;
  return n;
}

template <typename Part>
struct Chunk {
  Part part;
  int64_t first;  // which sign of the batch is the first
};

// Chunks of `size` signs to twice as many; of less if a part has less.
template <typename Part>
std::vector<Chunk<Part>> MakeChunks(const std::vector<Part>& parts,
                                    int64_t size) {
  std::vector<Chunk<Part>> chunks;
  int64_t first = 0;
  for (const Part& part : parts) {
    const int64_t count = std::max<int64_t>(1, part.n / size);
    for (int64_t c = 0; c < count; ++c) {
      const int64_t begin = part.n * c / count;
      const int64_t end = part.n * (c + 1) / count;
      chunks.push_back({part.Slice(begin, end), first + begin});
    }
    first += part.n;
  }
  return chunks;
}

// Calls fn(c) for each of the chunks that MakeChunks made with this size; small
// ones one after another on a thread.
template <typename Part, typename Fn>
void RunChunks(const std::vector<Chunk<Part>>& chunks, int64_t size,
               const ParallelFor& parallel_for, const Fn& fn) {
  if (chunks.empty()) return;
  const int64_t count = static_cast<int64_t>(chunks.size());
  const int64_t n = chunks.back().first + chunks.back().part.n;
  const int64_t blocks = std::min(count, std::max<int64_t>(1, n / size));
  RunBlocks(blocks, parallel_for, [&](int64_t block) {
    for (int64_t c = count * block / blocks; c < count * (block + 1) / blocks;
         ++c) {
      fn(c);
    }
  });
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_BATCH_PARTS_H_
