// SPDX-License-Identifier: Apache-2.0
#include "cc/core/benchmarks/memory_benchmark.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cc/core/benchmarks/benchmark_util.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/table/lookup.h"
#include "cc/core/table/pages.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {
namespace {

// Zeroed resident memory in pages of 4 KiB, or in huge ones if the system has
// them: what it says of transparent_hugepage is overruled by advice.
class Memory {
 public:
  Memory(size_t bytes, bool huge)
      : pages_(bytes, huge ? PageSize::kHuge : PageSize::kSmall) {
    std::memset(pages_.data(), 0, bytes);
  }
  uint8_t* data() const { return pages_.data(); }

 private:
  Pages pages_;
};

// Bytes of this process that are in huge pages; 0 if the system does not say.
int64_t HugePageBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == "AnonHugePages:" && file >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// `bytes` bytes from `offset` on of random rows of `stride` bytes are copied to
// the output; with an index, a random line of it is read before, on which the
// place of the row depends. By stripe: as push does, rows come stripe by
// stripe, each of which has a part of index and rows, and go where the batch
// has them.
struct Access {
  const char* name;
  int64_t stride;
  int64_t offset;
  int64_t index_bytes_a_row;  // 0: no index
  bool by_stripe;
};

struct AccessItem {
  int64_t line, row, place;
};

// Rows of a batch, and the lines of an index of `lines` lines, if any.
std::vector<AccessItem> AccessItems(const Options& options, int64_t lines,
                                    bool by_stripe, uint64_t seed) {
  const int64_t rows = options.rows;
  const auto stripe_of = [rows](int64_t row) { return row * kStripes / rows; };
  const int64_t part = std::max<int64_t>(1, lines / kStripes);
  std::vector<AccessItem> items;
  for (const int64_t row : UniformSigns(options.batch, rows, seed)) {
    const int64_t line = std::min(
        stripe_of(row) * part + static_cast<int64_t>(Mix64(row) % part), lines);
    items.push_back({line, row, static_cast<int64_t>(items.size())});
  }
  if (by_stripe) {
    std::stable_sort(items.begin(), items.end(),
                     [&](const AccessItem& a, const AccessItem& b) {
                       return stripe_of(a.row) < stripe_of(b.row);
                     });
  }
  return items;
}

void BenchmarkAccess(const Options& options, const Access& access, bool huge) {
  // Items from the prefetch of a line to its use.
  constexpr int64_t kAhead = 32;
  const int64_t bytes = options.dim * sizeof(float);
  const int64_t lines = access.index_bytes_a_row * options.rows / kLine;
  const int64_t slab_bytes = options.rows * access.stride;
  const int64_t index_bytes = (lines + 1) * kLine;
  const int64_t huge_before = HugePageBytes();
  const Memory slab(slab_bytes, huge);
  const Memory index(index_bytes, huge);
  const int64_t percent_huge =
      100 * (HugePageBytes() - huge_before) / (slab_bytes + index_bytes);

  // Read in sequence, as the signs of a batch are.
  InTurn<std::vector<AccessItem>> batches([&](uint64_t seed) {
    return AccessItems(options, lines, access.by_stripe, seed);
  });
  std::vector<float> out(options.batch * options.dim);
  const int64_t n = options.batch;
  const std::string name = std::string(access.name) + ", " +
                           std::to_string(percent_huge) + "% in huge pages";
  Measure(name, n, options.repeats, [&] {
    const std::vector<AccessItem>& items = batches.Next();
    const auto line_of = [&](int64_t i) {
      return index.data() + kLine * items[i].line;
    };
    const uint8_t* from[kAhead];
    const auto find = [&](int64_t i) {
      int64_t row = items[i].row;
      if (lines > 0) row += *line_of(i);  // zero
      from[i % kAhead] = slab.data() + row * access.stride;
      PrefetchRow(from[i % kAhead], access.offset + bytes);
    };
    for (int64_t i = -2 * kAhead; i < n; ++i) {
      if (lines > 0 && i + 2 * kAhead < n) {
        __builtin_prefetch(line_of(i + 2 * kAhead));
      }
      if (i >= 0) {
        std::memcpy(out.data() + items[i].place * options.dim,
                    from[i % kAhead] + access.offset, bytes);
      }
      if (i + kAhead >= 0 && i + kAhead < n) find(i + kAhead);
    }
  });
}

}  // namespace

void BenchmarkMemory(const Options& options) {
  PrintTitle(Of("memory alone", options.rows));
  constexpr int64_t kIndexBytesARow = 10;
  constexpr int64_t kSlotsOfRule = 1;  // Adagrad
  const int64_t weights = options.dim * sizeof(float);
  const int64_t offset = RowLayout::kWeightsOffset;
  const int64_t stride = offset + (1 + kSlotsOfRule) * weights;
  const Access accesses[] = {
      {"dense matrix", weights, 0, 0, false},
      {"table's rows", stride, offset, 0, false},
      {"index and rows", stride, offset, kIndexBytesARow, false},
      {"index and rows by stripe", stride, offset, kIndexBytesARow, true},
  };
  for (const Access& access : accesses) {
    for (const bool huge : {false, true}) {
      BenchmarkAccess(options, access, huge);
    }
  }
}

}  // namespace tf_ext
