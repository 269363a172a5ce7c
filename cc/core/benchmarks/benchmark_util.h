// SPDX-License-Identifier: Apache-2.0
// What the parts of the core's benchmark share.
#ifndef TF_EXT_CC_CORE_BENCHMARKS_BENCHMARK_UTIL_H_
#define TF_EXT_CC_CORE_BENCHMARKS_BENCHMARK_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/support/status.h"

namespace tf_ext {

constexpr int64_t kLine = 64;  // bytes of a cache line

struct Options {
  int64_t rows = 10'000'000;  // of the largest table
  int64_t batch = 262'144;
  int64_t dim = 16;
  int64_t repeats = 21;
};

inline double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
}
inline double CpuSeconds() { return Seconds(CLOCK_PROCESS_CPUTIME_ID); }
inline double WallSeconds() { return Seconds(CLOCK_MONOTONIC); }

// Returns the median.
inline double Report(const std::string& what, int64_t items,
                     const std::vector<double>& seconds) {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  const double spread =
      (sorted[sorted.size() * 3 / 4] - sorted[sorted.size() / 4]) / 2;
  std::printf("%-52s %9.3f +-%-7.3f %8.1f %8.1f\n", what.c_str(), 1e3 * median,
              1e3 * spread, 1e9 * median / items, 1e-6 * items / median);
  std::fflush(stdout);
  return median;
}

inline void PrintTitle(const std::string& name) {
  std::printf("\n%-52s %18s %8s %8s\n", name.c_str(), "CPU ms", "ns/item",
              "M/CPU s");
}

// `run` once more than `repeats` times; the first is not counted.
inline void Measure(const std::string& what, int64_t items, int64_t repeats,
                    const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int64_t i = 0; i <= repeats; ++i) {
    const double start = CpuSeconds();
    run();
    if (i > 0) seconds.push_back(CpuSeconds() - start);
  }
  Report(what, items, seconds);
}

inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Numbers below `below`, the same in each run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix64(state_ += 0x9e3779b97f4a7c15u); }
  int64_t Below(int64_t below) {
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(Next()) * below) >> 64);
  }

 private:
  uint64_t state_;
};

inline std::vector<int64_t> UniformSigns(int64_t n, int64_t below,
                                         uint64_t seed = 1) {
  Random random(seed);
  std::vector<int64_t> signs(n);
  for (int64_t& sign : signs) sign = random.Below(below);
  return signs;
}

// Those of `n` uniform signs, in random order.
inline std::vector<int64_t> DistinctSigns(int64_t n, int64_t below,
                                          uint64_t seed) {
  std::vector<int64_t> signs = UniformSigns(n, below, seed);
  std::sort(signs.begin(), signs.end());
  signs.erase(std::unique(signs.begin(), signs.end()), signs.end());
  Random random(seed);
  for (size_t i = signs.size(); i > 1; --i) {
    std::swap(signs[i - 1], signs[random.Below(i)]);
  }
  return signs;
}

// Batches that take turns, so that none finds its rows in the processor's
// caches because it has just read them.
template <typename Batch>
class InTurn {
 public:
  // make(seed): a batch.
  template <typename Make>
  explicit InTurn(const Make& make) {
    for (uint64_t seed = 1; seed <= kBatches; ++seed) {
      batches_.push_back(make(seed));
    }
  }
  const Batch& Next() { return batches_[next_++ % kBatches]; }
  int64_t MeanSize() const {
    size_t sum = 0;
    for (const Batch& batch : batches_) sum += batch.size();
    return static_cast<int64_t>(sum / kBatches);
  }

 private:
  static constexpr size_t kBatches = 8;

  std::vector<Batch> batches_;
  size_t next_ = 0;
};

inline std::string Of(const char* what, int64_t rows) {
  return std::string(what) + ", " + std::to_string(rows) + " rows";
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_BENCHMARKS_BENCHMARK_UTIL_H_
