// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/snapshot/snapshot_inputs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/bags/unique.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/platform/env.h"

namespace tf_ext {
namespace {

// The columns of the matrix that describes files.
enum FileColumns { kTag, kRows, kErased, kBytes, kCrc, kFileColumns };
static_assert(kFileColumns == kSnapshotFileColumns, "all columns are named");

// Gets file `i` of the inputs.
absl::Status GetFile(OpKernelContext* ctx, const SnapshotFileInputs& inputs,
                     int64_t i, int64_t stored_shards, SnapshotFile* file) {
  const auto numbers = ctx->input(inputs.files).matrix<int64_t>();
  file->path = std::string(ctx->input(inputs.paths).vec<tstring>()(i));
  file->tag = static_cast<uint64_t>(numbers(i, kTag));
  file->rows = numbers(i, kRows);
  file->erased = numbers(i, kErased);
  file->bytes = numbers(i, kBytes);
  file->crc32c = static_cast<uint32_t>(numbers(i, kCrc));
  if (file->rows < 0 || file->erased < 0 || file->bytes < kChunkHeaderBytes ||
      file->crc32c != numbers(i, kCrc)) {
    return InvalidArgument(
        "files[", i,
        "] must have rows and erased signs of at least 0, at "
        "least ",
        kChunkHeaderBytes,
        " bytes and a CRC32C of 32 bits, but "
        "they are ",
        file->rows, ", ", file->erased, ", ", file->bytes, " and ",
        numbers(i, kCrc), ".");
  }
  file->shard = ctx->input(inputs.file_shards).vec<int64_t>()(i);
  file->shards = stored_shards;
  return CheckShardNumber(absl::StrCat("file_shards[", i, "]"), file->shard,
                          "stored_shards", file->shards);
}

}  // namespace

int64_t NumFileThreads(OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return workers == nullptr ? 1 : std::max(1, workers->num_threads);
}

void InBackground(OpKernelContext* ctx, AsyncOpKernel::DoneCallback done,
                  std::function<absl::Status()> work) {
  tensorflow::Env::Default()->SchedClosure(
      [ctx, done = std::move(done), work = std::move(work)] {
        OP_REQUIRES_OK_ASYNC(ctx, work(), done);
        done();
      });
}

absl::Status CheckShardNumber(absl::string_view name, int64_t shard,
                              absl::string_view of, int64_t shards) {
  if (shard >= 0 && shard < shards && shards <= kMaxShards) {
    return absl::OkStatus();
  }
  return InvalidArgument(name, " must be at least 0 and below ", of,
                         ", which must be at most ", kMaxShards,
                         ", but they are ", shard, " and ", shards, ".");
}

absl::Status GetSnapshotFiles(OpKernelContext* ctx,
                              const SnapshotFileInputs& inputs,
                              std::vector<SnapshotFile>* files) {
  TF_RETURN_IF_ERROR(CheckVector("paths", ctx->input(inputs.paths)));
  TF_RETURN_IF_ERROR(CheckMatrix("files", ctx->input(inputs.files)));
  TF_RETURN_IF_ERROR(
      CheckVector("file_shards", ctx->input(inputs.file_shards)));
  int64_t stored_shards;
  TF_RETURN_IF_ERROR(
      ScalarInput(ctx, "stored_shards", inputs.stored_shards, &stored_shards));
  const int64_t n = ctx->input(inputs.paths).dim_size(0);
  if (ctx->input(inputs.files).shape() != TensorShape({n, kFileColumns})) {
    return InvalidArgument("files must be of shape [", n, ",", kFileColumns,
                           "] (a row for each of the paths), but its shape is ",
                           ctx->input(inputs.files).shape().DebugString(), ".");
  }
  if (ctx->input(inputs.file_shards).dim_size(0) != n) {
    return InvalidArgument("file_shards must be of shape [", n,
                           "] (one for each of the paths), but its shape is ",
                           ctx->input(inputs.file_shards).shape().DebugString(),
                           ".");
  }
  files->resize(n);
  for (int64_t i = 0; i < n; ++i) {
    TF_RETURN_IF_ERROR(GetFile(ctx, inputs, i, stored_shards, &(*files)[i]));
  }
  return absl::OkStatus();
}

void SetSnapshotFile(const SnapshotFile& file, int64_t i, Tensor* files) {
  auto row = files->matrix<int64_t>();
  row(i, kTag) = static_cast<int64_t>(file.tag);
  row(i, kRows) = file.rows;
  row(i, kErased) = file.erased;
  row(i, kBytes) = file.bytes;
  row(i, kCrc) = file.crc32c;
}

}  // namespace tf_ext
