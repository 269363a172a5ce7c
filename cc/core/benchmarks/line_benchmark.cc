// SPDX-License-Identifier: Apache-2.0
#include "cc/core/benchmarks/line_benchmark.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/benchmarks/benchmark_util.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/support/parallel.h"
#include "cc/core/table/batch_parts.h"
#include "cc/core/table/lookup.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"

namespace tf_ext {
namespace {

// Cache lines a row, by kind.
using LineCounts = std::vector<std::pair<const char*, double>>;

// What is touched for a sign, and where in the batch it is.
struct Touched {
  const uint8_t* bucket;
  uint8_t* row;
  int64_t position;
};

int64_t LinesAt(const void* data, int64_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  return (first + bytes - 1) / kLine - first / kLine + 1;
}

// Of memory that is walked through, with `bytes` for a row.
double LinesInSequence(double bytes) { return bytes / kLine; }

// As TensorFlow aligns its tensors.
class Floats {
 public:
  explicit Floats(int64_t n)
      : values_(static_cast<float*>(std::aligned_alloc(
            kLine, (n * sizeof(float) + kLine - 1) / kLine * kLine))) {
    std::fill_n(data(), n, 0.01f);
  }
  float* data() const { return values_.get(); }

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  std::unique_ptr<float[], Free> values_;
};

uint8_t* RowOf(const Table& table, int64_t sign) {
  const SignRows& rows = table.RowsOf(sign);
  return rows.slabs.At(rows.Find(sign, TableHash(sign)));
}

std::vector<Touched> TouchedBy(const Table& table,
                               const std::vector<int64_t>& signs) {
  std::vector<Touched> touched;
  for (size_t i = 0; i < signs.size(); ++i) {
    const SignRows& rows = table.RowsOf(signs[i]);
    touched.push_back({static_cast<const uint8_t*>(
                           rows.index.HomeBucket(TableHash(signs[i]))),
                       RowOf(table, signs[i]), static_cast<int64_t>(i)});
  }
  return touched;
}

// Those of buckets, of rows, of which `row_bytes` are touched, and of rows that
// are prefetched for the same tag.
LineCounts LookUpLines(const Table& table, const std::vector<int64_t>& signs,
                       int64_t row_bytes) {
  int64_t buckets = 0, own = 0, others = 0;
  for (const int64_t sign : signs) {
    const uint64_t hash = TableHash(sign);
    const SignRows& rows = table.RowsOf(sign);
    buckets += rows.index.ProbeLength(
        hash, [&](uint32_t row) { return rows.slabs.SignAt(row) == sign; });
    own += LinesAt(RowOf(table, sign), row_bytes);
    const auto add_other = [&](uint32_t row) {
      if (rows.slabs.SignAt(row) == sign) return;
      others += LinesAt(rows.slabs.At(row), row_bytes);
    };
    const uint32_t candidate = rows.index.Candidate(hash, add_other);
    if (candidate != kNoRow) add_other(candidate);
  }
  const double n = static_cast<double>(signs.size());
  return {{"bucket", buckets / n},
          {"row", own / n},
          {"rows of the same tag", others / n}};
}

LineCounts PullLines(const Table& table, const std::vector<int64_t>& signs,
                     int64_t row_bytes) {
  const double weights = sizeof(float) * table.config().dim;
  LineCounts counts = LookUpLines(table, signs, row_bytes);
  counts.emplace_back("signs", LinesInSequence(sizeof(int64_t)));
  counts.emplace_back("output", LinesInSequence(weights));
  return counts;
}

// Gradients are read twice: in sequence by the check that they are finite, then
// by stripe. So are signs; and a number of a stripe and an item for each are
// written and read.
LineCounts PushLines(const Table& table, const std::vector<int64_t>& signs,
                     const float* gradients, int64_t row_bytes) {
  const int64_t dim = table.config().dim;
  const int64_t bytes = dim * sizeof(float);
  const int64_t n = static_cast<int64_t>(signs.size());
  double by_stripe = 0;
  for (int64_t i = 0; i < n; ++i) {
    by_stripe += LinesAt(gradients + i * dim, bytes);
  }
  LineCounts counts = LookUpLines(table, signs, row_bytes);
  counts.emplace_back("signs", LinesInSequence(2 * sizeof(int64_t)));
  counts.emplace_back("items", LinesInSequence(2 * (1 + sizeof(BatchItem))));
  counts.emplace_back("gradients, checked", LinesInSequence(bytes));
  counts.emplace_back("gradients", by_stripe / n);
  return counts;
}

void PrintLines(const std::string& what, const LineCounts& counts) {
  double sum = 0;
  std::printf("%s:", what.c_str());
  for (const auto& [kind, lines] : counts) {
    std::printf(" %s %.2f,", kind, lines);
    sum += lines;
  }
  std::printf(" together %.2f\n", sum);
}

// Looks rows up without anything but the accesses: each sign's bucket is
// prefetched two blocks before visit(item, row), and its row, whose address
// depends on the bucket, one.
template <typename Visit>
void Touch(const std::vector<Touched>& items, int64_t row_bytes,
           const Visit& visit) {
  // Unknown to the compiler, which cannot leave the reads out.
  static volatile uint8_t zero_source = 0;
  const uint8_t zero = zero_source;
  const int64_t n = static_cast<int64_t>(items.size());
  uint8_t* rows[kBlock];
  for (int64_t i = -2 * kBlock; i < n; ++i) {
    const int64_t later = i + 2 * kBlock;
    if (later < n) __builtin_prefetch(items[later].bucket);
    if (i >= 0) visit(items[i], rows[i % kBlock], zero);
    const int64_t next = i + kBlock;
    if (next < 0 || next >= n) continue;
    rows[next % kBlock] = items[next].row + (*items[next].bucket & zero);
    PrefetchRow(rows[next % kBlock], row_bytes);
  }
}

void TouchAsPull(const std::vector<Touched>& items, int64_t row_bytes,
                 int64_t dim, float* out) {
  constexpr int64_t kVector = 8;
  Touch(items, row_bytes,
        [&](const Touched& item, const uint8_t* row, uint8_t zero) {
          // All items are present; the sign is in a line of its own at times.
          const uint8_t* const weights = row + RowLayout::kWeightsOffset +
                                         (row[RowLayout::kSignOffset] & zero);
          float* const to = out + item.position * dim;
          int64_t j = 0;
          for (; j + kVector <= dim; j += kVector) {
            std::memcpy(to + j, weights + j * sizeof(float),
                        kVector * sizeof(float));
          }
          for (; j < dim; ++j) {
            std::memcpy(to + j, weights + j * sizeof(float), sizeof(float));
          }
        });
}

// Items by stripe. Returns something of what is read.
float TouchAsPush(const std::vector<Touched>& items, int64_t row_bytes,
                  int64_t dim, const float* gradients) {
  constexpr int64_t kFloats = kLine / sizeof(float);
  float read = 0;
  const int64_t n = static_cast<int64_t>(items.size());
  for (int64_t at = 0; at < n * dim; at += kFloats) read += gradients[at];
  Touch(items, row_bytes, [&](const Touched& item, uint8_t* row, uint8_t zero) {
    const float* const gradient = gradients + item.position * dim;
    for (int64_t j = 0; j < dim; j += kFloats) read += gradient[j];
    for (int64_t at = 0; at < row_bytes; at += kLine) row[at] |= zero;
    row[row_bytes - 1] |= zero;
  });
  return read;
}

// A call and the access to the same lines take turns.
void MeasureBoth(const std::string& name, int64_t n, int64_t repeats,
                 const std::function<void()>& call,
                 const std::function<void()>& touch) {
  std::vector<double> seconds[2];
  for (int64_t i = 0; i <= repeats; ++i) {
    for (const bool touching : {false, true}) {
      const double start = CpuSeconds();
      (touching ? touch : call)();
      if (i > 0) seconds[touching].push_back(CpuSeconds() - start);
    }
  }
  const double whole = Report(name, n, seconds[0]);
  const double lines = Report("its lines alone", n, seconds[1]);
  std::printf("%-52s %18s %8.1f\n", "remainder", "",
              1e9 * (whole - lines) / static_cast<double>(n));
}

void ReportPull(const Options& options, int64_t rows, Table* table) {
  const int64_t dim = options.dim;
  const int64_t row_bytes =
      RowLayout::kWeightsOffset + dim * static_cast<int64_t>(sizeof(float));
  const Floats out(options.batch * dim);
  InTurn<std::vector<int64_t>> batches(
      [&](uint64_t seed) { return UniformSigns(options.batch, rows, seed); });
  InTurn<std::vector<Touched>> touched([&](uint64_t seed) {
    return TouchedBy(*table, UniformSigns(options.batch, rows, seed));
  });
  PrintLines("lines a row, pull", PullLines(*table, batches.Next(), row_bytes));
  MeasureBoth(
      Of("pull", rows), options.batch, options.repeats,
      [&] {
        Require(table->Pull(batches.Next().data(), options.batch, false,
                            out.data(), SerialFor));
      },
      [&] { TouchAsPull(touched.Next(), row_bytes, dim, out.data()); });
}

void ReportPush(const Options& options, int64_t rows, Table* table) {
  const int64_t dim = options.dim;
  const int64_t row_bytes = table->layout().stride();
  const Floats gradients(options.batch * dim);
  InTurn<std::vector<int64_t>> batches(
      [&](uint64_t seed) { return DistinctSigns(options.batch, rows, seed); });
  const auto stripe_of = [](int64_t sign) { return StripeOf(TableHash(sign)); };
  InTurn<std::vector<Touched>> touched([&](uint64_t seed) {
    const std::vector<int64_t> signs = DistinctSigns(options.batch, rows, seed);
    std::vector<Touched> items = TouchedBy(*table, signs);
    std::stable_sort(
        items.begin(), items.end(), [&](const Touched& a, const Touched& b) {
          return stripe_of(signs[a.position]) < stripe_of(signs[b.position]);
        });
    return items;
  });
  PrintLines("lines a row, push",
             PushLines(*table, batches.Next(), gradients.data(), row_bytes));
  const std::vector<double> hyperparameters = {0.01, 0, 1e-7};  // of Adagrad
  volatile float read = 0;
  MeasureBoth(
      Of("push", rows), batches.MeanSize(), options.repeats,
      [&] {
        const std::vector<int64_t>& signs = batches.Next();
        int64_t updated = 0;
        Require(table->Push(signs.data(), gradients.data(), signs.size(),
                            hyperparameters.data(), hyperparameters.size(), 1,
                            SerialFor, &updated));
      },
      [&] {
        read = TouchAsPush(touched.Next(), row_bytes, dim, gradients.data());
      });
}

}  // namespace

void ReportLines(const Options& options, int64_t rows, Table* table) {
  PrintTitle("lines, dim " + std::to_string(options.dim) + ", rows of " +
             std::to_string(table->layout().stride()) + " bytes");
  ReportPull(options, rows, table);
  ReportPush(options, rows, table);
}

}  // namespace tf_ext
