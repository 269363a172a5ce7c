// SPDX-License-Identifier: Apache-2.0
// Files of snapshots on TensorFlow's file systems.
#ifndef TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_FILES_H_
#define TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace tf_ext {

// The numbers that describe a file in inputs and outputs of ops: tag, rows,
// erased signs, bytes, CRC32C.
inline constexpr int64_t kSnapshotFileColumns = 5;

// Fails unless `id` is 32 lower-case hexadecimal digits; `name` is that of the
// argument.
absl::Status CheckSnapshotId(absl::string_view name, absl::string_view id);

// Writes a file, at most `max_bytes_per_second` (0: no limit), and computes its
// CRC32C.
class SnapshotFileWriter {
 public:
  absl::Status Open(const std::string& path, double max_bytes_per_second);
  // `crc32c` is that of the data.
  absl::Status Append(absl::string_view data, uint32_t crc32c);
  // The file is then whole, but durable only on file systems that are not
  // local.
  absl::Status Close();
  // Makes the file durable.
  absl::Status SyncAndClose();

  int64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  std::string path_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  double max_bytes_per_second_ = 0;
  uint64_t start_micros_ = 0;
  int64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

// A file as described by a manifest.
struct SnapshotFile {
  std::string path;
  uint64_t tag = 0;
  int64_t rows = 0;
  int64_t erased = 0;
  int64_t bytes = 0;
  uint32_t crc32c = 0;
  // It holds only signs of shard `shard` of `shards`.
  int64_t shard = 0;
  int64_t shards = 1;
};

// Reads a file and passes its chunks, each of which has been checked, to `take`
// in order. Errors name the file and, if it is damaged
// (absl::StatusCode::kDataLoss), the byte. A local path that is no regular file
// counts as damage and is not opened.
absl::Status ReadSnapshotFile(
    const SnapshotFile& file, int64_t chunk_bytes, int64_t row_bytes,
    const std::function<absl::Status(const ChunkView&)>& take);

// Writes a file atomically: whenever the process or the machine stops, `path`
// has either its previous or its new contents.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents);

// Makes a local file durable that was closed. Files of other file systems are
// durable when they are closed.
absl::Status SyncFile(const std::string& path);

// Makes the entries of a local directory durable. Those of other file systems
// are durable when they are written.
absl::Status SyncDirectory(const std::string& path);

// Calls work(0) ... work(n - 1) on dedicated threads, `threads` at a time: file
// operations block, and TensorFlow's compute threads must not. Returns the
// first error, after which no further calls are started.
absl::Status OnFileThreads(int64_t n, int64_t threads,
                           const std::function<absl::Status(int64_t)>& work);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_FILES_H_
