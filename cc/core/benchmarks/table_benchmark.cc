// SPDX-License-Identifier: Apache-2.0
// Measures the core without TensorFlow, on one thread:
//
//   table_benchmark [--rows=N] [--batch=N] [--dim=N] [--repeats=N] [name ...]
//
// `name` is one of those in kBenchmarks below; none: all of them. CPU times
// are medians over the repetitions. benchmarks/README.md says how to build it.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/bags/unique.h"
#include "cc/core/benchmarks/benchmark_util.h"
#include "cc/core/benchmarks/line_benchmark.h"
#include "cc/core/benchmarks/memory_benchmark.h"
#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/hash_strings.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
#include "cc/core/table/bucket_index.h"
#include "cc/core/table/pages.h"
#include "cc/core/table/table.h"

namespace tf_ext {
namespace {

constexpr double kL2 = 0.01;

std::vector<int64_t> Sizes(const Options& options) {
  std::vector<int64_t> sizes;
  for (const int64_t size : {100'000, 1'000'000}) {
    if (size < options.rows) sizes.push_back(size);
  }
  sizes.push_back(options.rows);
  return sizes;
}

// `recorded`: whether rows have last_seen, show and click.
std::unique_ptr<Table> MakeTable(const Options& options, bool recorded = false,
                                 double l2 = 0) {
  TableConfig config;
  config.name = "benchmark";
  config.dim = options.dim;
  config.initializer = {InitializerKind::kNormal, 0, 0.05};
  config.rule = RuleConfig(*FindRule("adagrad"));
  config.l2 = l2;
  if (recorded) {
    config.last_seen = LastSeen::kStep;
    config.statistics = kMostStatistics;
  }
  std::unique_ptr<Table> table;
  Require(Table::Create(config, &table));
  return table;
}

// Signs 0 to rows - 1 in batches, as training meets new ones.
// `between(count)`: called after each.
template <typename Between>
void Fill(Table* table, int64_t rows, const Between& between) {
  constexpr int64_t kBatch = 65'536;
  std::vector<int64_t> signs;
  std::vector<float> out(kBatch * table->config().dim);
  for (int64_t begin = 0; begin < rows; begin += kBatch) {
    signs.resize(std::min(kBatch, rows - begin));
    for (size_t i = 0; i < signs.size(); ++i) signs[i] = begin + i;
    Require(
        table->Pull(signs.data(), signs.size(), true, out.data(), SerialFor));
    between(signs.size());
  }
}

void Fill(Table* table, int64_t rows) {
  Fill(table, rows, [](size_t) {});
}

// How full the index is, 0 to 1.
double Load(const Table& table) {
  const TableStats stats = table.Stats();
  return static_cast<double>(stats.rows) * kLine /
         (static_cast<double>(stats.index_bytes) * BucketIndex::kSlots);
}

void BenchmarkPull(const Options& options) {
  PrintTitle("pull of existing signs");
  for (const int64_t rows : Sizes(options)) {
    for (const double l2 : {0.0, kL2}) {
      const std::unique_ptr<Table> table = MakeTable(options, false, l2);
      Fill(table.get(), rows);
      InTurn<std::vector<int64_t>> batches([&](uint64_t seed) {
        return UniformSigns(options.batch, rows, seed);
      });
      std::vector<float> out(options.batch * options.dim);
      char name[64];
      std::snprintf(name, sizeof(name), "%s, load %.2f",
                    Of(l2 > 0 ? "pull with l2" : "pull", rows).c_str(),
                    Load(*table));
      Measure(name, options.batch, options.repeats, [&] {
        Require(table->Pull(batches.Next().data(), options.batch, false,
                            out.data(), SerialFor));
      });
    }
  }
}

// A push, and the table that it is of.
struct PushOf {
  const char* name;
  bool recorded;
  double l2;
};
constexpr PushOf kPushes[] = {{"push", false, 0},
                              {"push with last_seen, show, click", true, 0},
                              {"push with l2", false, kL2}};

void BenchmarkPush(const Options& options) {
  PrintTitle("push of existing signs, Adagrad");
  for (const int64_t rows : Sizes(options)) {
    for (const PushOf& push : kPushes) {
      const std::unique_ptr<Table> table =
          MakeTable(options, push.recorded, push.l2);
      Fill(table.get(), rows);
      InTurn<std::vector<int64_t>> batches([&](uint64_t seed) {
        return DistinctSigns(options.batch, rows, seed);
      });
      const std::vector<float> gradients(options.batch * options.dim, 0.01f);
      const std::vector<float> statistics(2 * options.batch, 1.0f);
      const std::vector<double> hyperparameters = {0.01, 0, 1e-7};
      Measure(Of(push.name, rows), batches.MeanSize(), options.repeats, [&] {
        const std::vector<int64_t>& signs = batches.Next();
        int64_t updated = 0;
        Require(table->Push(signs.data(), gradients.data(), signs.size(),
                            hyperparameters.data(), hyperparameters.size(), 1,
                            SerialFor, &updated, 0, statistics.data(),
                            kMostStatistics));
      });
    }
  }
}

void BenchmarkLines(const Options& options) {
  for (const int64_t rows : Sizes(options)) {
    const std::unique_ptr<Table> table = MakeTable(options);
    Fill(table.get(), rows);
    ReportLines(options, rows, table.get());
  }
}

void BenchmarkInsert(const Options& options) {
  PrintTitle("insert, normal initialisation, batches of 65536");
  const int64_t repeats = std::min<int64_t>(options.repeats, 3);
  for (const int64_t rows : Sizes(options)) {
    const std::unique_ptr<Table> table = MakeTable(options);
    Measure(Of("insert", rows), rows, repeats, [&] {
      int64_t cleared;
      if (!table->Clear(&cleared).ok()) std::abort();
      Fill(table.get(), rows);
    });
  }
}

// Inserting takes turns with what it cannot do without, the first touch of as
// much memory, and with work that needs no memory, which shows what the machine
// does to any work. In wall time, which is what a batch waits.
void BenchmarkStalls(const Options& options) {
  std::printf("\n%-52s %9s %9s\n",
              Of("stalls, batches of 65536", options.rows).c_str(), "worst ms",
              "median ms");
  const std::unique_ptr<Table> table = MakeTable(options);
  const size_t stride = table->layout().stride();
  std::vector<Pages> touched;
  std::vector<double> seconds[3];
  double start = WallSeconds();
  const auto lap = [&](int what) {
    const double now = WallSeconds();
    seconds[what].push_back(now - start);
    start = now;
  };
  Random random(1);
  // Written each time, or the computing would be left out.
  volatile uint64_t computed = 0;
  Fill(table.get(), options.rows, [&](size_t count) {
    lap(0);
    touched.emplace_back(count * stride, PageSize::kHuge);
    std::memset(touched.back().data(), 1, count * stride);
    lap(1);
    for (size_t i = 0; i < 50 * count; ++i) computed = random.Next();
    lap(2);
  });
  const char* const names[] = {"insert", "first touch of the raw bytes",
                               "computing without memory"};
  for (int what = 0; what < 3; ++what) {
    std::sort(seconds[what].begin(), seconds[what].end());
    std::printf("%-52s %9.1f %9.1f\n", names[what], 1e3 * seconds[what].back(),
                1e3 * seconds[what][seconds[what].size() / 2]);
  }
}

void BenchmarkUnique(const Options& options) {
  PrintTitle("unique");
  std::vector<int32_t> inverse(options.batch);
  UniqueSigns unique;
  for (const int64_t distinct :
       {options.batch / 16, options.batch / 2, options.batch * 16}) {
    const std::vector<int64_t> signs = UniformSigns(options.batch, distinct);
    Measure("unique, of " + std::to_string(distinct) + " signs", options.batch,
            options.repeats, [&] {
              Require(UniqueByShard(signs.data(), options.batch, 1, &unique,
                                    inverse.data()));
            });
  }
}

void BenchmarkHash(const Options& options) {
  PrintTitle("hash, 26 columns of 4096 values");
  constexpr int64_t kColumns = 26;
  constexpr int64_t kBatch = 4096;
  Random random(3);
  for (const int64_t size : {4, 10, 40}) {
    std::vector<std::vector<std::string>> texts(kColumns);
    std::vector<HashColumn> columns(kColumns);
    std::vector<HashInput> inputs(kColumns);
    for (int64_t c = 0; c < kColumns; ++c) {
      for (int64_t i = 0; i < kBatch; ++i) {
        std::string text;
        while (static_cast<int64_t>(text.size()) < size) {
          text += std::to_string(random.Next());
        }
        texts[c].push_back(text.substr(0, size));
      }
      columns[c].ns = "C" + std::to_string(c);
      columns[c].parts.resize(1);
      columns[c].parts[0].input = c;
      SetStrings(texts[c].data(), &inputs[c]);
      inputs[c].n = inputs[c].batch = kBatch;
    }
    std::unique_ptr<ColumnHasher> hasher;
    Require(ColumnHasher::Create(
        columns, std::vector<ValueType>(kColumns, ValueType::kString),
        &hasher));
    std::vector<int64_t> splits(kColumns * kBatch + 1);
    std::vector<int64_t> signs(kColumns * kBatch);
    Measure(
        "hash, strings of " + std::to_string(size) + " bytes",
        kColumns * kBatch, options.repeats, [&] {
          Require(hasher->CountSigns(inputs, kBatch, SerialFor, splits.data()));
          hasher->Hash(inputs, kBatch, splits.data(), SerialFor, signs.data(),
                       nullptr);
        });
    Measure("Fingerprint64 alone, without a namespace", kColumns * kBatch,
            options.repeats, [&] {
              int64_t* sign = signs.data();
              for (const std::vector<std::string>& column : texts) {
                for (const std::string& text : column) {
                  *sign++ = static_cast<int64_t>(Fingerprint64(text));
                }
              }
            });
  }
}

// How many buckets a search looks at, in an index of one stripe.
void BenchmarkProbes(const Options&) {
  constexpr int64_t kBuckets = 20'000;
  constexpr int64_t kAbsent = 1'000'000;
  std::printf("\n%-40s %20s %20s\n", "probe lengths", "present: mean p99 max",
              "absent: mean p99 max");
  const auto print = [](std::vector<int64_t> lengths) {
    std::sort(lengths.begin(), lengths.end());
    double sum = 0;
    for (const int64_t length : lengths) sum += length;
    std::printf("   %10.3f %3lld %3lld", sum / lengths.size(),
                static_cast<long long>(lengths[lengths.size() * 99 / 100]),
                static_cast<long long>(lengths.back()));
  };
  for (const int percent : {33, 50, 66, 80}) {
    BucketIndex index(kBuckets);
    const int64_t entries = kBuckets * BucketIndex::kSlots * percent / 100;
    for (int64_t row = 0; row < entries; ++row) {
      index.Insert(TableHash(row), static_cast<uint32_t>(row));
    }
    std::vector<int64_t> present, absent;
    for (int64_t sign = 0; sign < entries + kAbsent; ++sign) {
      const auto is_row = [sign](uint32_t row) { return row == sign; };
      (sign < entries ? present : absent)
          .push_back(index.ProbeLength(TableHash(sign), is_row));
    }
    std::printf("%d%% of the slots used%18s", percent,
                percent == 33   ? " (just grown)"
                : percent == 66 ? " (about to grow)"
                                : "");
    print(present);
    print(absent);
    std::printf("\n");
  }
}

struct Benchmark {
  const char* name;
  void (*run)(const Options& options);
};

constexpr Benchmark kBenchmarks[] = {
    {"memory", BenchmarkMemory}, {"pull", BenchmarkPull},
    {"push", BenchmarkPush},     {"lines", BenchmarkLines},
    {"insert", BenchmarkInsert}, {"stalls", BenchmarkStalls},
    {"unique", BenchmarkUnique}, {"hash", BenchmarkHash},
    {"probes", BenchmarkProbes},
};

[[noreturn]] void Refuse(const std::string& argument, const char* allowed) {
  std::fprintf(stderr, "%s: allowed are %s\n", argument.c_str(), allowed);
  std::exit(2);
}

Options ParseOptions(int argc, char** argv, std::vector<std::string>* names) {
  Options options;
  const std::pair<const char*, int64_t*> numbers[] = {
      {"--rows=", &options.rows},
      {"--batch=", &options.batch},
      {"--dim=", &options.dim},
      {"--repeats=", &options.repeats},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    bool known = false;
    for (const auto& [prefix, number] : numbers) {
      const size_t size = std::strlen(prefix);
      if (argument.compare(0, size, prefix) != 0) continue;
      char* end = nullptr;
      *number = std::strtoll(argv[i] + size, &end, 10);
      if (*end != '\0' || *number < 1 || *number > INT32_MAX) {
        Refuse(argument, "whole numbers from 1 to 2^31 - 1");
      }
      known = true;
    }
    for (const Benchmark& benchmark : kBenchmarks) {
      if (argument != benchmark.name) continue;
      names->push_back(argument);
      known = true;
    }
    if (!known) {
      Refuse(argument,
             "--rows=, --batch=, --dim=, --repeats= with a number, memory, "
             "pull, push, lines, insert, stalls, unique, hash, probes");
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  std::vector<std::string> names;
  const Options options = ParseOptions(argc, argv, &names);
  for (const Benchmark& benchmark : kBenchmarks) {
    const bool wanted =
        std::find(names.begin(), names.end(), benchmark.name) != names.end();
    if (names.empty() || wanted) benchmark.run(options);
  }
  return 0;
}

}  // namespace
}  // namespace tf_ext

int main(int argc, char** argv) { return tf_ext::Main(argc, argv); }
