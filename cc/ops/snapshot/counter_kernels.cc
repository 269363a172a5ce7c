// SPDX-License-Identifier: Apache-2.0
// Kernels that save and restore the counters of signs.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class SparseTableExportCountersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, CheckScalar("cursor", ctx->input(kCursor)));
    OP_REQUIRES_OK(ctx, CheckScalar("limit", ctx->input(kLimit)));
    OP_REQUIRES_OK(ctx, CheckScalar("period", ctx->input(kPeriod)));
    int64_t cursor = IntInput(ctx, kCursor);
    std::vector<int64_t> signs;
    std::vector<int32_t> counts;
    OP_REQUIRES_OK(ctx,
                   ToTf(table->ExportCounters(
                       &cursor, std::max<int64_t>(-1, IntInput(ctx, kLimit)),
                       IntInput(ctx, kPeriod), &signs, &counts)));
    const int64_t n = static_cast<int64_t>(signs.size());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(kSigns, TensorShape({n}), &output));
    std::copy(signs.begin(), signs.end(), output->flat<int64_t>().data());
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(kCounts, TensorShape({n, 1}), &output));
    std::copy(counts.begin(), counts.end(), output->flat<int32_t>().data());
    OP_REQUIRES_OK(ctx, SetScalarOutput<int64_t>(ctx, kNextCursor, cursor));
    OP_REQUIRES_OK(
        ctx, SetScalarOutput<int64_t>(ctx, kItsPeriod, table->CounterPeriod()));
  }

 private:
  enum Inputs { kHandle, kCursor, kLimit, kPeriod };
  enum Outputs { kSigns, kCounts, kNextCursor, kItsPeriod };
};

class SparseTableImportCountersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    const Tensor& signs = ctx->input(kSigns);
    const Tensor& counts = ctx->input(kCounts);
    OP_REQUIRES_OK(ctx, CheckVector("signs", signs));
    OP_REQUIRES_OK(ctx, CheckScalar("period", ctx->input(kPeriod)));
    OP_REQUIRES_OK(ctx, CheckScalar("clear", ctx->input(kClear)));
    const int64_t n = signs.dim_size(0);
    OP_REQUIRES(ctx, counts.shape() == TensorShape({n, 1}),
                absl::InvalidArgumentError(absl::StrCat(
                    "counts must be of shape [", n,
                    ",1] (one for each of the signs), but its shape is ",
                    counts.shape().DebugString(), ".")));
    OP_REQUIRES_OK(
        ctx, ToTf(table->ImportCounters(
                 signs.flat<int64_t>().data(), counts.flat<int32_t>().data(), n,
                 IntInput(ctx, kPeriod), ctx->input(kClear).scalar<bool>()(),
                 MakeParallelFor(ctx))));
    OP_REQUIRES_OK(ctx, SetScalarOutput<int64_t>(ctx, 0, n));
  }

 private:
  enum Inputs { kHandle, kSigns, kCounts, kPeriod, kClear };
};

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
    for (const auto& [name, input] : {std::pair("shard", kShard),
                                      {"shards", kShards},
                                      {"n", kN},
                                      {"period", kPeriod},
                                      {"load", kLoad}}) {
      TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(input)));
    }
    const int64_t n = IntInput(ctx, kN);
    const int64_t shard = IntInput(ctx, kShard);
    const int64_t shards = IntInput(ctx, kShards);
    const int64_t period = IntInput(ctx, kPeriod);
    const bool load = ctx->input(kLoad).scalar<bool>()();
    if (n < 1 || n > kMostCount || period < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "n must be from 1 to ", kMostCount,
          " and period at least 0, but they are ", n, " and ", period, "."));
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

#define REGISTER_COUNTER_KERNEL(name)                                          \
  REGISTER_KERNEL_BUILDER(Name("TfExt>" #name).Device(tensorflow::DEVICE_CPU), \
                          name##Op)

REGISTER_COUNTER_KERNEL(SparseTableExportCounters);
REGISTER_COUNTER_KERNEL(SparseTableImportCounters);
REGISTER_COUNTER_KERNEL(SparseTableRestoreCounters);

#undef REGISTER_COUNTER_KERNEL

}  // namespace
}  // namespace tf_ext
