// Files of snapshots on TensorFlow's file systems.
#ifndef TF_EXT_CC_OPS_SNAPSHOT_FILES_H_
#define TF_EXT_CC_OPS_SNAPSHOT_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/snapshot_chunk.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace tf_ext {

// What ops tell each other of a file: tag, rows, erased signs, bytes, CRC32C.
inline constexpr int64_t kSnapshotFileColumns = 5;

// Writes one file, not faster than `max_bytes_per_second` (0: as fast as it
// goes), and computes its CRC32C.
class SnapshotFileWriter {
 public:
  absl::Status Open(const std::string& path, double max_bytes_per_second);
  // `crc32c`: of the data.
  absl::Status Append(absl::string_view data, uint32_t crc32c);
  // Nothing of the file is lost in a power cut after this.
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

// What a manifest says of a file.
struct SnapshotFile {
  std::string path;
  uint64_t tag;
  int64_t rows;
  int64_t erased;
  int64_t bytes;
  uint32_t crc32c;
  // It holds signs of shard `shard` of `shards` alone.
  int64_t shard = 0;
  int64_t shards = 1;
};

// Reads a file and hands over its chunks, each found whole, in order. Errors
// name the file and, if it is damaged (absl::StatusCode::kDataLoss), the byte.
// What is no regular file is damage, and not opened.
absl::Status ReadSnapshotFile(
    const SnapshotFile& file, int64_t chunk_bytes, int64_t row_bytes,
    const std::function<absl::Status(const ChunkView&)>& take);

// Writes `contents` so that `path` holds either what it did or all of them,
// whenever the process or the machine stops.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents);

// Makes the names in a local directory durable; others are when written.
absl::Status SyncDirectory(const std::string& path);

// Calls work(0) ... work(n - 1) on threads of their own, `threads` at a time:
// writing and reading files blocks, which the threads that compute must not.
// Returns the first error; after one, no further call begins.
absl::Status OnFileThreads(int64_t n, int64_t threads,
                           const std::function<absl::Status(int64_t)>& work);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_SNAPSHOT_FILES_H_
