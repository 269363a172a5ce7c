// Kernels that write a table's rows to files and read them back.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cc/core/bags/unique.h"
#include "cc/core/hashing/mix.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/table/stripe.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot_files.h"
#include "cc/ops/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/path.h"

namespace tf_ext {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::Env;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// Rows are divided into files of at least this size, up to one per thread.
constexpr int64_t kMinFileBytes = 32 << 20;
constexpr int64_t kMaxFiles = 16;

// The columns of the matrix that describes files.
enum FileColumns { kTag, kRows, kErased, kBytes, kCrc, kFileColumns };
static_assert(kFileColumns == kSnapshotFileColumns, "all columns are named");

int64_t NumThreads(OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return workers == nullptr ? 1 : std::max(1, workers->num_threads);
}

std::string StringInput(OpKernelContext* ctx, int input) {
  return std::string(ctx->input(input).scalar<tstring>()());
}

int64_t IntInput(OpKernelContext* ctx, int input) {
  return ctx->input(input).scalar<int64_t>()();
}

// Runs the blocking work of a kernel on a thread of its own.
void InBackground(OpKernelContext* ctx, AsyncOpKernel::DoneCallback done,
                  std::function<absl::Status()> work) {
  Env::Default()->SchedClosure(
      [ctx, done = std::move(done), work = std::move(work)] {
        OP_REQUIRES_OK_ASYNC(ctx, work(), done);
        done();
      });
}

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
    kMaxBytesPerSecond
  };
  enum Outputs { kNames, kFiles, kChunkBytes };

  struct Job {
    std::string directory;
    std::string id;
    bool changed;
    int64_t shard;
    double max_bytes_per_second;  // per file
    std::vector<SnapshotFile> files;
  };

  absl::Status Save(OpKernelContext* ctx) {
    std::shared_ptr<Table> held;
    TF_RETURN_IF_ERROR(LookupTable(ctx, kHandle, &held));
    for (const auto& [name, input] :
         {std::pair("directory", kDirectory),
          {"id", kId},
          {"base", kBase},
          {"tracked", kTracked},
          {"shard", kShard},
          {"max_bytes_per_second", kMaxBytesPerSecond}}) {
      TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(input)));
    }
    Table& table = *held;
    const std::string base = StringInput(ctx, kBase);
    const bool tracked = ctx->input(kTracked).scalar<bool>()();
    Job job;
    job.directory = StringInput(ctx, kDirectory);
    job.id = StringInput(ctx, kId);
    job.changed = !base.empty();
    job.shard = IntInput(ctx, kShard);
    TF_RETURN_IF_ERROR(CheckSnapshotId("id", job.id));
    if (job.changed) TF_RETURN_IF_ERROR(CheckSnapshotId("base", base));
    if (job.changed && !tracked) {
      return absl::InvalidArgumentError(
          "tracked must be true with a base: a delta is part of a chain.");
    }
    if (IntInput(ctx, kMaxBytesPerSecond) < 0 || job.shard < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max_bytes_per_second and shard must be at least 0, but they are ",
          IntInput(ctx, kMaxBytesPerSecond), " and ", job.shard, "."));
    }
    const int64_t files = NumFiles(table, NumThreads(ctx));
    job.files.resize(files);
    job.max_bytes_per_second =
        static_cast<double>(IntInput(ctx, kMaxBytesPerSecond)) / files;
    if (tracked) TF_RETURN_IF_ERROR(ToTf(table.BeginChainSave(job.id, base)));
    absl::Status status = WriteFiles(table, &job);
    if (status.ok()) status = SetOutputs(ctx, table, job);
    if (!status.ok()) {
      for (const SnapshotFile& file : job.files) {
        Env::Default()->DeleteFile(file.path).IgnoreError();
      }
      if (tracked) status.Update(ToTf(table.EndChainSave(job.id, false)));
    }
    return status;
  }

  static int64_t NumFiles(const Table& table, int64_t threads) {
    const int64_t bytes = table.Size() * table.layout().raw_bytes();
    return std::clamp<int64_t>(bytes / kMinFileBytes, 1,
                               std::min(threads, kMaxFiles));
  }

  static absl::Status WriteFiles(const Table& table, Job* job) {
    const int64_t n = static_cast<int64_t>(job->files.size());
    const uint64_t first = std::stoull(job->id.substr(0, 16), nullptr, 16);
    for (int64_t i = 0; i < n; ++i) {
      SnapshotFile& file = job->files[i];
      file.path = tensorflow::io::JoinPath(
          job->directory,
          absl::StrFormat("rows-%s-%05d-%03d.chunks", job->id.substr(0, 16),
                          job->shard, i));
      file.tag = Mix64(first + Mix64((static_cast<uint64_t>(job->shard) << 32) +
                                     static_cast<uint64_t>(i)));
    }
    TF_RETURN_IF_ERROR(OnFileThreads(
        n, n, [&](int64_t i) { return WriteFile(table, *job, i, n); }));
    return SyncDirectory(job->directory);
  }

  static absl::Status WriteFile(const Table& table, Job& job, int64_t i,
                                int64_t n) {
    SnapshotFile& file = job.files[i];
    SnapshotFileWriter writer;
    TF_RETURN_IF_ERROR(writer.Open(file.path, job.max_bytes_per_second));
    absl::Status written;
    const auto sink = [&](const ChunkEncoder::Chunk& chunk) {
      written = writer.Append(
          absl::string_view(reinterpret_cast<const char*>(chunk.data),
                            chunk.bytes),
          chunk.crc32c);
      return written.ok() ? Status::Ok() : Status::FailedPrecondition("");
    };
    WrittenRows rows;
    const int64_t row_bytes = table.layout().raw_bytes();
    const Status status = table.WriteRows(
        kStripes * i / n, kStripes * (i + 1) / n, job.changed,
        {ChunkBytesFor(row_bytes), row_bytes, file.tag}, sink, &rows);
    TF_RETURN_IF_ERROR(written);
    TF_RETURN_IF_ERROR(ToTf(status));
    TF_RETURN_IF_ERROR(writer.SyncAndClose());
    file.rows = rows.rows;
    file.erased = rows.erased;
    file.bytes = writer.bytes();
    file.crc32c = writer.crc32c();
    return absl::OkStatus();
  }

  static absl::Status SetOutputs(OpKernelContext* ctx, const Table& table,
                                 const Job& job) {
    const int64_t n = static_cast<int64_t>(job.files.size());
    Tensor* names = nullptr;
    Tensor* files = nullptr;
    Tensor* chunk_bytes = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(kNames, TensorShape({n}), &names));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(kFiles, TensorShape({n, kFileColumns}), &files));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(kChunkBytes, TensorShape({}), &chunk_bytes));
    chunk_bytes->scalar<int64_t>()() =
        ChunkBytesFor(table.layout().raw_bytes());
    for (int64_t i = 0; i < n; ++i) {
      const SnapshotFile& file = job.files[i];
      names->vec<tstring>()(i) =
          std::string(tensorflow::io::Basename(file.path));
      auto row = files->matrix<int64_t>();
      row(i, kTag) = static_cast<int64_t>(file.tag);
      row(i, kRows) = file.rows;
      row(i, kErased) = file.erased;
      row(i, kBytes) = file.bytes;
      row(i, kCrc) = file.crc32c;
    }
    return absl::OkStatus();
  }
};

class SparseTableEndSaveOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, CheckScalar("id", ctx->input(kId)));
    OP_REQUIRES_OK(ctx, CheckScalar("committed", ctx->input(kCommitted)));
    OP_REQUIRES_OK(ctx, ToTf(table->EndChainSave(
                            StringInput(ctx, kId),
                            ctx->input(kCommitted).scalar<bool>()())));
  }

 private:
  enum Inputs { kHandle, kId, kCommitted };
};

class SparseTableSetChainOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &table));
    OP_REQUIRES_OK(ctx, CheckScalar("id", ctx->input(kId)));
    const std::string id = StringInput(ctx, kId);
    if (!id.empty()) OP_REQUIRES_OK(ctx, CheckSnapshotId("id", id));
    OP_REQUIRES_OK(ctx, ToTf(table->SetChain(id)));
  }

 private:
  enum Inputs { kHandle, kId };
};

class SparseTableRestoreOp : public AsyncOpKernel {
 public:
  explicit SparseTableRestoreOp(OpKernelConstruction* ctx)
      : AsyncOpKernel(ctx) {
    std::vector<std::string> names;
    std::vector<tensorflow::DataType> types;
    std::vector<int64_t> counts, offsets;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_names", &names));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_types", &types));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_counts", &counts));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_offsets", &offsets));
    OP_REQUIRES(ctx,
                types.size() == names.size() && counts.size() == names.size() &&
                    offsets.size() == names.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "field_names, field_types, field_counts and field_offsets "
                    "must have one entry per field, but they have ",
                    names.size(), ", ", types.size(), ", ", counts.size(),
                    " and ", offsets.size(), ".")));
    for (size_t i = 0; i < names.size(); ++i) {
      const FieldType type = types[i] == tensorflow::DT_FLOAT
                                 ? FieldType::kFloat32
                                 : FieldType::kInt32;
      fields_.push_back({names[i], type, counts[i], offsets[i]});
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
    TF_RETURN_IF_ERROR(GetInputs(ctx, &files, &stored));
    TF_RETURN_IF_ERROR(ToTf(table.CheckStoredRows(stored)));
    const int64_t chunk_bytes = IntInput(ctx, kChunkBytes);
    const Apply apply = ApplyOf(StringInput(ctx, kAction));
    if (apply == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("action must be 'verify', 'load', 'gather' or 'update', "
                       "but it is '",
                       StringInput(ctx, kAction), "'."));
    }
    std::atomic<int64_t> total{0};
    TF_RETURN_IF_ERROR(OnFileThreads(
        static_cast<int64_t>(files.size()), NumThreads(ctx), [&](int64_t i) {
          return ReadSnapshotFile(files[i], chunk_bytes, stored.row_bytes,
                                  [&](const ChunkView& chunk) {
                                    int64_t rows = 0;
                                    const Status status =
                                        apply(table, stored, chunk, &rows);
                                    total += rows;
                                    return ToTf(status);
                                  });
        }));
    return SetScalarOutput<int64_t>(ctx, 0, total);
  }

  absl::Status GetInputs(OpKernelContext* ctx, std::vector<SnapshotFile>* files,
                         StoredRows* stored) const {
    TF_RETURN_IF_ERROR(CheckVector("paths", ctx->input(kPaths)));
    TF_RETURN_IF_ERROR(CheckMatrix("files", ctx->input(kFiles)));
    for (const auto& [name, input] : {std::pair("chunk_bytes", kChunkBytes),
                                      {"row_bytes", kRowBytes},
                                      {"shard", kShard},
                                      {"shards", kShards},
                                      {"action", kAction},
                                      {"stored_shards", kStoredShards}}) {
      TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(input)));
    }
    const int64_t n = ctx->input(kPaths).dim_size(0);
    if (ctx->input(kFiles).shape() != TensorShape({n, kFileColumns})) {
      return absl::InvalidArgumentError(
          absl::StrCat("files must be of shape [", n, ",", kFileColumns,
                       "] (a row for each of the paths), but its shape is ",
                       ctx->input(kFiles).shape().DebugString(), "."));
    }
    TF_RETURN_IF_ERROR(CheckVector("file_shards", ctx->input(kFileShards)));
    if (ctx->input(kFileShards).dim_size(0) != n) {
      return absl::InvalidArgumentError(
          absl::StrCat("file_shards must be of shape [", n,
                       "] (one for each of the paths), but its shape is ",
                       ctx->input(kFileShards).shape().DebugString(), "."));
    }
    stored->fields = fields_;
    stored->row_bytes = IntInput(ctx, kRowBytes);
    stored->shard = IntInput(ctx, kShard);
    stored->shards = IntInput(ctx, kShards);
    TF_RETURN_IF_ERROR(
        CheckShardNumber("shard", stored->shard, "shards", stored->shards));
    TF_RETURN_IF_ERROR(ToTf(CheckChunkFormat(
        {IntInput(ctx, kChunkBytes), stored->row_bytes, /*tag=*/0})));
    for (int64_t i = 0; i < n; ++i) {
      TF_RETURN_IF_ERROR(AddFile(ctx, i, files));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckShardNumber(absl::string_view name, int64_t shard,
                                       absl::string_view of, int64_t shards) {
    if (shard >= 0 && shard < shards && shards <= kMaxShards) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be at least 0 and below ", of, ", which must be at most ",
        kMaxShards, ", but they are ", shard, " and ", shards, "."));
  }

  // Adds file `i` of the inputs.
  static absl::Status AddFile(OpKernelContext* ctx, int64_t i,
                              std::vector<SnapshotFile>* files) {
    const auto numbers = ctx->input(kFiles).matrix<int64_t>();
    SnapshotFile file;
    file.path = std::string(ctx->input(kPaths).vec<tstring>()(i));
    file.tag = static_cast<uint64_t>(numbers(i, kTag));
    file.rows = numbers(i, kRows);
    file.erased = numbers(i, kErased);
    file.bytes = numbers(i, kBytes);
    file.crc32c = static_cast<uint32_t>(numbers(i, kCrc));
    if (file.rows < 0 || file.erased < 0 || file.bytes < kChunkHeaderBytes ||
        file.crc32c != numbers(i, kCrc)) {
      return absl::InvalidArgumentError(
          absl::StrCat("files[", i,
                       "] must have rows and erased signs of at least 0, at "
                       "least ",
                       kChunkHeaderBytes,
                       " bytes and a CRC32C of 32 bits, but "
                       "they are ",
                       file.rows, ", ", file.erased, ", ", file.bytes, " and ",
                       numbers(i, kCrc), "."));
    }
    file.shard = ctx->input(kFileShards).vec<int64_t>()(i);
    file.shards = IntInput(ctx, kStoredShards);
    files->push_back(file);
    return CheckShardNumber(absl::StrCat("file_shards[", i, "]"), file.shard,
                            "stored_shards", file.shards);
  }

  std::vector<StoredField> fields_;
};

class WriteFileAtomicallyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, CheckScalar("path", ctx->input(kPath)));
    OP_REQUIRES_OK(ctx, CheckScalar("contents", ctx->input(kContents)));
    OP_REQUIRES_OK(ctx, WriteFileAtomically(StringInput(ctx, kPath),
                                            StringInput(ctx, kContents)));
  }

 private:
  enum Inputs { kPath, kContents };
};

#define REGISTER_SNAPSHOT_KERNEL(name)                                         \
  REGISTER_KERNEL_BUILDER(Name("TfExt>" #name).Device(tensorflow::DEVICE_CPU), \
                          name##Op)

REGISTER_SNAPSHOT_KERNEL(SparseTableSave);
REGISTER_SNAPSHOT_KERNEL(SparseTableEndSave);
REGISTER_SNAPSHOT_KERNEL(SparseTableSetChain);
REGISTER_SNAPSHOT_KERNEL(SparseTableRestore);
REGISTER_SNAPSHOT_KERNEL(WriteFileAtomically);

#undef REGISTER_SNAPSHOT_KERNEL

}  // namespace
}  // namespace tf_ext
