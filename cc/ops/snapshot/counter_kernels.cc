// SPDX-License-Identifier: Apache-2.0
// Kernels that save and restore the counters of signs.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/counter_chunks.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/support/parallel.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "cc/ops/snapshot/snapshot_inputs.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

absl::Status RunSparseTableExportCounters(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  int64_t cursor, limit, period;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "cursor", 1, &cursor));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "limit", 2, &limit));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "period", 3, &period));
  std::vector<int64_t> signs;
  std::vector<int32_t> counts;
  TF_RETURN_IF_ERROR(ToTf(table->ExportCounters(
      &cursor, std::max<int64_t>(-1, limit), period, &signs, &counts)));
  const int64_t n = static_cast<int64_t>(signs.size());
  int64_t* signs_out = nullptr;
  int32_t* counts_out = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({n}), &signs_out));
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, TensorShape({n, 1}), &counts_out));
  std::copy(signs.begin(), signs.end(), signs_out);
  std::copy(counts.begin(), counts.end(), counts_out);
  TF_RETURN_IF_ERROR(SetScalarOutput(ctx, 2, cursor));
  return SetScalarOutput<int64_t>(ctx, 3, table->CounterPeriod());
}

absl::Status RunSparseTableImportCounters(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  int64_t period;
  bool clear;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  const Tensor& signs = ctx->input(1);
  const Tensor& counts = ctx->input(2);
  TF_RETURN_IF_ERROR(CheckVector("signs", signs));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "period", 3, &period));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "clear", 4, &clear));
  const int64_t n = signs.dim_size(0);
  if (counts.shape() != TensorShape({n, 1})) {
    return InvalidArgument("counts must be of shape [", n,
                           ",1] (one for each of the signs), but its shape is ",
                           counts.shape().DebugString(), ".");
  }
  TF_RETURN_IF_ERROR(ToTf(table->ImportCounters(
      signs.flat<int64_t>().data(), counts.flat<int32_t>().data(), n, period,
      clear, MakeParallelFor(ctx))));
  return SetScalarOutput(ctx, 0, n);
}

class SparseTableRestoreCountersOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    InBackground(ctx, std::move(done), [ctx] { return Restore(ctx); });
  }

 private:
  enum Inputs {
    kHandle,
    kPaths,
    kFiles,
    kFileShards,
    kStoredShards,
    kShard,
    kShards,
    kN,
    kPeriod,
    kLoad
  };

  static absl::Status Restore(OpKernelContext* ctx) {
    std::shared_ptr<Table> table;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &table));
    int64_t shard, shards, n, period;
    bool load;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "shard", kShard, &shard));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "shards", kShards, &shards));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "n", kN, &n));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "period", kPeriod, &period));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "load", kLoad, &load));
    if (n < 1 || n > kMostCount || period < 0) {
      return InvalidArgument("n must be from 1 to ", kMostCount,
                             " and period at least 0, but they are ", n,
                             " and ", period, ".");
    }
    TF_RETURN_IF_ERROR(CheckShardNumber("shard", shard, "shards", shards));
    std::vector<SnapshotFile> files;
    TF_RETURN_IF_ERROR(GetSnapshotFiles(
        ctx, {kPaths, kFiles, kFileShards, kStoredShards}, &files));
    std::atomic<int64_t> total{0};
    TF_RETURN_IF_ERROR(OnFileThreads(
        static_cast<int64_t>(files.size()), NumFileThreads(ctx),
        [&](int64_t i) {
          CounterCheck check(static_cast<int>(n), /*older=*/period > 0);
          Importer importer(load ? table.get() : nullptr, period);
          TF_RETURN_IF_ERROR(ReadSnapshotFile(
              files[i], ChunkBytesFor(kStoredCounterBytes), kStoredCounterBytes,
              [&](const ChunkView& chunk) {
                const Status status = check.Check(chunk);
                if (!status.ok()) {
                  return absl::DataLossError(
                      absl::StrCat(files[i].path, " ", status.message()));
                }
                return importer.Add(chunk, shard, shards);
              }));
          total += importer.total();
          return importer.Flush();
        }));
    return SetScalarOutput<int64_t>(ctx, 0, total);
  }

  // Sets the counters of a file, a stripe at a time: see ImportCounters.
  class Importer {
   public:
    // `table`: nullptr if counters are only counted.
    Importer(Table* table, int64_t period) : table_(table), period_(period) {}

    // Adds those of the shard.
    absl::Status Add(const ChunkView& chunk, int64_t shard, int64_t shards) {
      for (int64_t i = 0; i < chunk.rows; ++i) {
        const StoredCounter counter =
            LoadCounter(chunk.row_data + i * kStoredCounterBytes);
        if (ShardOf(counter.sign, shards) != shard) continue;
        ++total_;
        if (table_ == nullptr) continue;
        const int stripe = StripeOf(TableHash(counter.sign));
        if (stripe != stripe_) TF_RETURN_IF_ERROR(Flush());
        stripe_ = stripe;
        signs_.push_back(counter.sign);
        counts_.push_back(counter.count);
      }
      return absl::OkStatus();
    }

    absl::Status Flush() {
      if (table_ == nullptr) return absl::OkStatus();
      const Status status = table_->ImportCounters(
          signs_.data(), counts_.data(), static_cast<int64_t>(signs_.size()),
          period_, /*clear=*/false, SerialFor);
      signs_.clear();
      counts_.clear();
      return ToTf(status);
    }

    int64_t total() const { return total_; }

   private:
    Table* const table_;
    const int64_t period_;
    int stripe_ = -1;
    int64_t total_ = 0;
    std::vector<int64_t> signs_;
    std::vector<int32_t> counts_;
  };
};

TF_EXT_REGISTER_FUNCTION(SparseTableExportCounters);
TF_EXT_REGISTER_FUNCTION(SparseTableImportCounters);
TF_EXT_REGISTER_KERNEL(SparseTableRestoreCounters,
                       SparseTableRestoreCountersOp);

}  // namespace
}  // namespace tf_ext
