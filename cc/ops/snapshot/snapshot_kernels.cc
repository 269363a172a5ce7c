// SPDX-License-Identifier: Apache-2.0
// Kernels that write a table's rows to files and read them back.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cc/core/bags/unique.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/table/row_conversion.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "cc/ops/snapshot/snapshot_inputs.h"
#include "cc/ops/table/field_types.h"
#include "cc/ops/table/table_resource.h"
#include "tensorflow/core/platform/path.h"

namespace tf_ext {
namespace {

using tensorflow::Env;

// Rows are divided into files of at least this size, up to one per thread.
constexpr int64_t kMinFileBytes = 32 << 20;
constexpr int64_t kMaxFiles = 16;

class SparseTableSaveOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    InBackground(ctx, std::move(done), [this, ctx] { return Save(ctx); });
  }

 private:
  enum Inputs {
    kHandle,
    kDirectory,
    kId,
    kBase,
    kTracked,
    kShard,
    kMaxBytesPerSecond,
    kPeriod
  };
  enum Outputs { kNames, kFiles, kChunkBytes };

  struct Job {
    std::string directory;
    std::string id;
    bool changed;
    int64_t shard;
    double max_bytes_per_second;  // per file
    int64_t period;               // of counters; -1: they are not saved
    std::vector<SnapshotFile> files;
    SnapshotFile counters;
  };

  absl::Status Save(OpKernelContext* ctx) {
    std::shared_ptr<Table> held;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &held));
    Table& table = *held;
    Job job;
    std::string base;
    bool tracked;
    int64_t max_bytes_per_second;
    TF_RETURN_IF_ERROR(
        ScalarInput(ctx, "directory", kDirectory, &job.directory));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "id", kId, &job.id));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "base", kBase, &base));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "tracked", kTracked, &tracked));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "shard", kShard, &job.shard));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "max_bytes_per_second",
                                   kMaxBytesPerSecond, &max_bytes_per_second));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "period", kPeriod, &job.period));
    job.changed = !base.empty();
    TF_RETURN_IF_ERROR(CheckSnapshotId("id", job.id));
    if (job.changed) TF_RETURN_IF_ERROR(CheckSnapshotId("base", base));
    if (job.changed && !tracked) {
      return absl::InvalidArgumentError(
          "tracked must be true with a base: a delta is part of a chain.");
    }
    if (max_bytes_per_second < 0 || job.shard < 0) {
      return InvalidArgument(
          "max_bytes_per_second and shard must be at least 0, but they are ",
          max_bytes_per_second, " and ", job.shard, ".");
    }
    const int64_t files = NumFiles(table, NumFileThreads(ctx));
    job.files.resize(files);
    job.max_bytes_per_second =
        static_cast<double>(max_bytes_per_second) / files;
    SetPaths(&job);
    // Counters first: a sign that is admitted meanwhile then has a counter and
    // a row, of which the row counts, rather than none of both.
    absl::Status status;
    if (job.period >= 0) status = WriteCounters(table, &job);
    bool began = false;
    if (status.ok() && tracked) {
      status = ToTf(table.BeginChainSave(job.id, base));
      began = status.ok();
    }
    if (status.ok()) status = WriteFiles(table, &job);
    if (job.period >= 0) job.files.push_back(job.counters);
    if (status.ok()) status = SetOutputs(ctx, table, job);
    if (!status.ok()) {
      for (const SnapshotFile& file : job.files) {
        Env::Default()->DeleteFile(file.path).IgnoreError();
      }
      if (began) status.Update(ToTf(table.EndChainSave(job.id, false)));
    }
    return status;
  }

  static int64_t NumFiles(const Table& table, int64_t threads) {
    const int64_t bytes = table.Size() * table.layout().raw_bytes();
    return std::clamp<int64_t>(bytes / kMinFileBytes, 1,
                               std::min(threads, kMaxFiles));
  }

  static void SetPaths(Job* job) {
    const uint64_t first = std::stoull(job->id.substr(0, 16), nullptr, 16);
    const auto set = [&](const std::string& name, size_t i,
                         SnapshotFile* file) {
      file->path = tensorflow::io::JoinPath(job->directory, name);
      file->tag =
          Mix64(first + Mix64((static_cast<uint64_t>(job->shard) << 32) + i));
    };
    const std::string id = job->id.substr(0, 16);
    const size_t n = job->files.size();
    for (size_t i = 0; i < n; ++i) {
      set(absl::StrFormat("rows-%s-%05d-%03d.chunks", id, job->shard, i), i,
          &job->files[i]);
    }
    set(absl::StrFormat("counters-%s-%05d.chunks", id, job->shard), n,
        &job->counters);
  }

  static absl::Status WriteFiles(const Table& table, Job* job) {
    const int64_t n = static_cast<int64_t>(job->files.size());
    return OnFileThreads(
        n, n, [&](int64_t i) { return WriteFile(table, *job, i, n); });
  }

  static absl::Status WriteFile(const Table& table, Job& job, int64_t i,
                                int64_t n) {
    const int64_t row_bytes = table.layout().raw_bytes();
    const auto write = [&](const ChunkSink& sink, SnapshotFile* file) {
      WrittenRows rows;
      const Status status = table.WriteRows(
          kStripes * i / n, kStripes * (i + 1) / n, job.changed,
          {ChunkBytesFor(row_bytes), row_bytes, file->tag}, sink, &rows);
      file->rows = rows.rows;
      file->erased = rows.erased;
      return status;
    };
    return WriteChunks(job, write, &job.files[i]);
  }

  static absl::Status WriteCounters(const Table& table, Job* job) {
    const auto write = [&](const ChunkSink& sink, SnapshotFile* file) {
      return table.WriteCounters(file->tag, job->period, sink, &file->rows);
    };
    return OnFileThreads(1, 1, [&](int64_t) {
      return WriteChunks(*job, write, &job->counters);
    });
  }

  // Writes a file of what write(sink, file) passes to the sink.
  template <typename Write>
  static absl::Status WriteChunks(const Job& job, const Write& write,
                                  SnapshotFile* file) {
    SnapshotFileWriter writer;
    TF_RETURN_IF_ERROR(writer.Open(file->path, job.max_bytes_per_second));
    absl::Status written;
    const auto sink = [&](const ChunkEncoder::Chunk& chunk) {
      written = writer.Append(
          absl::string_view(reinterpret_cast<const char*>(chunk.data),
                            chunk.bytes),
          chunk.crc32c);
      return written.ok() ? Status::Ok() : Status::FailedPrecondition("");
    };
    const Status status = write(sink, file);
    TF_RETURN_IF_ERROR(written);
    TF_RETURN_IF_ERROR(ToTf(status));
    TF_RETURN_IF_ERROR(writer.Close());
    file->bytes = writer.bytes();
    file->crc32c = writer.crc32c();
    return absl::OkStatus();
  }

  static absl::Status SetOutputs(OpKernelContext* ctx, const Table& table,
                                 const Job& job) {
    const int64_t n = static_cast<int64_t>(job.files.size());
    tstring* names = nullptr;
    Tensor* files = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, kNames, TensorShape({n}), &names));
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        kFiles, TensorShape({n, kSnapshotFileColumns}), &files));
    for (int64_t i = 0; i < n; ++i) {
      const SnapshotFile& file = job.files[i];
      names[i] = std::string(tensorflow::io::Basename(file.path));
      SetSnapshotFile(file, i, files);
    }
    return SetScalarOutput(ctx, kChunkBytes,
                           ChunkBytesFor(table.layout().raw_bytes()));
  }
};

class SyncFilesOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    InBackground(ctx, std::move(done), [ctx] { return Sync(ctx); });
  }

 private:
  enum Inputs { kDirectory, kNames };

  static absl::Status Sync(OpKernelContext* ctx) {
    std::string directory;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "directory", kDirectory, &directory));
    TF_RETURN_IF_ERROR(CheckVector("names", ctx->input(kNames)));
    const auto names = ctx->input(kNames).vec<tstring>();
    TF_RETURN_IF_ERROR(
        OnFileThreads(names.size(), NumFileThreads(ctx), [&](int64_t i) {
          return SyncFile(
              tensorflow::io::JoinPath(directory, std::string(names(i))));
        }));
    return SyncDirectory(directory);
  }
};

class SparseTableRestoreOp : public AsyncOpKernel {
 public:
  explicit SparseTableRestoreOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx) {
    std::vector<std::string> names;
    std::vector<DataType> types;
    std::vector<int64_t> counts, offsets;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_types", &types));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_counts", &counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_offsets", &offsets));
    OP_REQUIRES(ctx,
                types.size() == names.size() && counts.size() == names.size() &&
                    offsets.size() == names.size(),
                InvalidArgument(
                    "field_names, field_types, field_counts and field_offsets "
                    "must have one entry per field, but they have ",
                    names.size(), ", ", types.size(), ", ", counts.size(),
                    " and ", offsets.size(), "."));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("convert", &convert_));
    for (size_t i = 0; i < names.size(); ++i) {
      fields_.push_back(
          {names[i], ToFieldType(types[i]), counts[i], offsets[i]});
    }
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    InBackground(ctx, std::move(done), [this, ctx] { return Restore(ctx); });
  }

 private:
  enum Inputs {
    kHandle,
    kPaths,
    kFiles,
    kChunkBytes,
    kRowBytes,
    kShard,
    kShards,
    kAction,
    kFileShards,
    kStoredShards
  };
  enum Outputs { kRows, kConverted };

  using Apply = Status (*)(Table& table, const StoredRows& stored,
                           const ChunkView& chunk, int64_t* rows);

  // The function that is called with each chunk; null for an unknown action.
  static Apply ApplyOf(absl::string_view action) {
    if (action == "verify") {
      return [](Table&, const StoredRows&, const ChunkView&, int64_t*) {
        return Status::Ok();
      };
    }
    if (action == "load") {
      return
          [](Table& table, const StoredRows& stored, const ChunkView& chunk,
             int64_t* rows) { return table.ApplyChunk(stored, chunk, rows); };
    }
    if (action == "gather") {
      return [](Table& table, const StoredRows& stored, const ChunkView& chunk,
                int64_t*) { return table.GatherErased(stored, chunk); };
    }
    if (action == "update") {
      return
          [](Table& table, const StoredRows& stored, const ChunkView& chunk,
             int64_t* rows) { return table.UpdateRows(stored, chunk, rows); };
    }
    return nullptr;
  }

  absl::Status Restore(OpKernelContext* ctx) {
    std::shared_ptr<Table> held;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &held));
    Table& table = *held;
    std::vector<SnapshotFile> files;
    StoredRows stored;
    ConvertedValues converted;
    if (convert_) stored.converted = &converted;
    int64_t chunk_bytes;
    std::string action;
    TF_RETURN_IF_ERROR(GetInputs(ctx, &files, &stored, &chunk_bytes));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "action", kAction, &action));
    TF_RETURN_IF_ERROR(ToTf(table.CheckStoredRows(stored)));
    const Apply apply = ApplyOf(action);
    if (apply == nullptr) {
      return InvalidArgument(
          "action must be 'verify', 'load', 'gather' or 'update', "
          "but it is '",
          action, "'.");
    }
    std::atomic<int64_t> total{0};
    TF_RETURN_IF_ERROR(OnFileThreads(
        static_cast<int64_t>(files.size()), NumFileThreads(ctx),
        [&](int64_t i) {
          return ReadSnapshotFile(files[i], chunk_bytes, stored.row_bytes,
                                  [&](const ChunkView& chunk) {
                                    int64_t rows = 0;
                                    const Status status =
                                        apply(table, stored, chunk, &rows);
                                    total += rows;
                                    return ToTf(status);
                                  });
        }));
    int64_t* counts = nullptr;
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, kConverted, TensorShape({3}), &counts));
    counts[0] = converted.values;
    counts[1] = converted.rounded;
    counts[2] = converted.saturated;
    return SetScalarOutput<int64_t>(ctx, kRows, total);
  }

  absl::Status GetInputs(OpKernelContext* ctx, std::vector<SnapshotFile>* files,
                         StoredRows* stored, int64_t* chunk_bytes) const {
    stored->fields = fields_;
    TF_RETURN_IF_ERROR(
        ScalarInput(ctx, "chunk_bytes", kChunkBytes, chunk_bytes));
    TF_RETURN_IF_ERROR(
        ScalarInput(ctx, "row_bytes", kRowBytes, &stored->row_bytes));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "shard", kShard, &stored->shard));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "shards", kShards, &stored->shards));
    TF_RETURN_IF_ERROR(
        CheckShardNumber("shard", stored->shard, "shards", stored->shards));
    TF_RETURN_IF_ERROR(
        ToTf(CheckChunkFormat({*chunk_bytes, stored->row_bytes, /*tag=*/0})));
    return GetSnapshotFiles(ctx, {kPaths, kFiles, kFileShards, kStoredShards},
                            files);
  }

  std::vector<StoredField> fields_;
  bool convert_;
};

absl::Status RunWriteFileAtomically(OpKernelContext* ctx) {
  std::string path, contents;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "path", 0, &path));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "contents", 1, &contents));
  return WriteFileAtomically(path, contents);
}

TF_EXT_REGISTER_KERNEL(SparseTableSave, SparseTableSaveOp);
TF_EXT_REGISTER_KERNEL(SparseTableRestore, SparseTableRestoreOp);
TF_EXT_REGISTER_KERNEL(SyncFiles, SyncFilesOp);
TF_EXT_REGISTER_FUNCTION(WriteFileAtomically);

}  // namespace
}  // namespace tf_ext
