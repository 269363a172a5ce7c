// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/snapshot/snapshot_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "cc/core/snapshot/crc32c.h"
#include "cc/core/support/mutex.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/path.h"

namespace tf_ext {
namespace {

// RandomAccessFile::Read takes a span since TensorFlow 2.20, and before that a
// size and a pointer. Called with 0 as the last argument, the overload of int
// precedes that of long where it compiles.
template <typename File>
auto ReadAt(const File& file, uint64_t offset, absl::Span<char> buffer,
            absl::string_view* data, int)
    -> decltype(file.Read(offset, *data, buffer)) {
  return file.Read(offset, *data, buffer);
}

template <typename File>
absl::Status ReadAt(const File& file, uint64_t offset, absl::Span<char> buffer,
                    absl::string_view* data, long) {
  return file.Read(offset, buffer.size(), data, buffer.data());
}

using tensorflow::Env;

constexpr size_t kIdDigits = 32;

// The path without its scheme if it is local, else empty.
std::string LocalPath(const std::string& path) {
  absl::string_view scheme, host, local;
  tensorflow::io::ParseURI(path, &scheme, &host, &local);
  if (!scheme.empty() && scheme != "file") return "";
  return std::string(local);
}

// TensorFlow's local file system does not sync directories.
absl::Status SyncLocal(const std::string& path) {
  const std::string local = LocalPath(path);
  if (local.empty()) return absl::OkStatus();
  const int file = open(local.c_str(), O_RDONLY | O_CLOEXEC);
  int error = errno;
  if (file >= 0) {
    error = fsync(file) == 0 ? 0 : errno;
    close(file);
  }
  // Some file systems do not sync directories.
  if (error == 0 || error == EINVAL) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("syncing ", path));
}

absl::Status Damaged(const SnapshotFile& file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file.path, " is ", what));
}

// Opening a pipe would wait for its other end, and a symbolic link may point
// out of the directory. Other file systems have neither.
absl::Status CheckRegular(const SnapshotFile& file) {
  const std::string local = LocalPath(file.path);
  struct stat found;
  if (local.empty() || lstat(local.c_str(), &found) != 0 ||
      S_ISREG(found.st_mode)) {
    return absl::OkStatus();
  }
  return Damaged(file, "damaged at byte 0: it is not a regular file.");
}

}  // namespace

absl::Status CheckSnapshotId(absl::string_view name, absl::string_view id) {
  const bool hexadecimal = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (id.size() == kIdDigits && hexadecimal) return absl::OkStatus();
  return InvalidArgument(name, " must be ", kIdDigits,
                         " lower-case hexadecimal digits, but it is '", id,
                         "'.");
}

absl::Status SnapshotFileWriter::Open(const std::string& path,
                                      double max_bytes_per_second) {
  path_ = path;
  max_bytes_per_second_ = max_bytes_per_second;
  start_micros_ = Env::Default()->NowMicros();
  return Env::Default()->NewWritableFile(path, &file_);
}

absl::Status SnapshotFileWriter::Append(absl::string_view data,
                                        uint32_t crc32c) {
  TF_RETURN_IF_ERROR(file_->Append(data));
  bytes_ += data.size();
  crc32c_ = CombineCrc32c(crc32c_, crc32c, data.size());
  if (max_bytes_per_second_ > 0) {
    const double due = bytes_ / max_bytes_per_second_ * 1e6;
    const double passed = Env::Default()->NowMicros() - start_micros_;
    if (due > passed) Env::Default()->SleepForMicroseconds(due - passed);
  }
  return absl::OkStatus();
}

absl::Status SnapshotFileWriter::Close() {
  // Others would begin to write only now what has to be durable later.
  if (LocalPath(path_).empty()) TF_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

absl::Status SnapshotFileWriter::SyncAndClose() {
  TF_RETURN_IF_ERROR(Close());
  return SyncLocal(path_);
}

absl::Status ReadSnapshotFile(
    const SnapshotFile& file, int64_t chunk_bytes, int64_t row_bytes,
    const std::function<absl::Status(const ChunkView&)>& take) {
  TF_RETURN_IF_ERROR(CheckRegular(file));
  uint64_t found;
  TF_RETURN_IF_ERROR(Env::Default()->GetFileSize(file.path, &found));
  if (static_cast<int64_t>(found) != file.bytes) {
    return Damaged(
        file, absl::StrCat("damaged at byte ",
                           std::min<int64_t>(found, file.bytes), ": it has ",
                           found, " bytes instead of ", file.bytes, "."));
  }
  std::unique_ptr<tensorflow::RandomAccessFile> reader;
  TF_RETURN_IF_ERROR(Env::Default()->NewRandomAccessFile(file.path, &reader));
  const ChunkFormat format = {chunk_bytes, row_bytes, file.tag};
  std::vector<char> buffer(std::min(chunk_bytes, file.bytes));
  int64_t rows = 0, erased = 0;
  uint32_t crc = 0;
  for (int64_t index = 0; index == 0 || index * chunk_bytes < file.bytes;
       ++index) {
    const int64_t bytes = ChunkSize(format, file.bytes, index);
    absl::string_view data;
    TF_RETURN_IF_ERROR(ReadAt(*reader, index * chunk_bytes,
                              absl::MakeSpan(buffer.data(), bytes), &data, 0));
    ChunkView chunk;
    Status status =
        DecodeChunk(format, reinterpret_cast<const uint8_t*>(data.data()),
                    data.size(), index, &chunk);
    if (!status.ok()) return Damaged(file, status.message());
    if (file.shards != 1) {
      status = CheckShard(chunk, row_bytes, file.shard, file.shards);
      if (!status.ok()) {
        return absl::DataLossError(
            absl::StrCat(file.path, " ", status.message()));
      }
    }
    rows += chunk.rows;
    erased += chunk.erased_before + chunk.erased_after;
    crc = CombineCrc32c(crc, chunk.crc32c, data.size());
    TF_RETURN_IF_ERROR(take(chunk));
  }
  if (rows != file.rows || erased != file.erased || crc != file.crc32c) {
    return Damaged(
        file, absl::StrFormat("not the one that the manifest names: it has %d "
                              "rows, %d erased signs and the CRC32C %08x, "
                              "instead of %d, %d and %08x.",
                              rows, erased, crc, file.rows, file.erased,
                              file.crc32c));
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents) {
  Env* const env = Env::Default();
  bool atomic_move = false;
  if (!env->HasAtomicMove(path, &atomic_move).ok()) atomic_move = false;
  const std::string first = atomic_move ? absl::StrCat(path, ".part") : path;
  SnapshotFileWriter writer;
  absl::Status status = writer.Open(first, 0);
  constexpr uint32_t kUnused = 0;  // The CRC is not needed.
  if (status.ok()) status = writer.Append(contents, kUnused);
  if (status.ok()) status = writer.SyncAndClose();
  if (status.ok() && atomic_move) status = env->RenameFile(first, path);
  if (!status.ok()) {
    if (atomic_move) env->DeleteFile(first).IgnoreError();
    return status;
  }
  return SyncDirectory(std::string(tensorflow::io::Dirname(path)));
}

absl::Status SyncFile(const std::string& path) { return SyncLocal(path); }

absl::Status SyncDirectory(const std::string& path) {
  return SyncLocal(path.empty() ? "." : path);
}

absl::Status OnFileThreads(int64_t n, int64_t threads,
                           const std::function<absl::Status(int64_t)>& work) {
  Mutex mutex;
  absl::Status first;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i = next++; i < n; i = next++) {
      absl::Status status;
      try {
        status = work(i);
      } catch (const std::bad_alloc&) {
        status = absl::ResourceExhaustedError(
            "out of memory for a file of a snapshot.");
      }
      if (status.ok()) continue;
      next = n;
      const ExclusiveLock lock(mutex);
      first.Update(status);
    }
  };
  {
    tensorflow::thread::ThreadPool pool(Env::Default(), "tf_ext_snapshot",
                                        std::clamp<int64_t>(n, 1, threads));
    for (int64_t t = 0; t < std::min(n, threads); ++t) pool.Schedule(run);
  }  // waits
  return first;
}

}  // namespace tf_ext
