// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs that the kernels of snapshots have in common.
#ifndef TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_
#define TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "cc/ops/snapshot/snapshot_files.h"

namespace tf_ext {

// The number of threads for files.
int64_t NumFileThreads(OpKernelContext* ctx);

// Runs the blocking work of a kernel on a thread of its own.
void InBackground(OpKernelContext* ctx, AsyncOpKernel::DoneCallback done,
                  std::function<absl::Status()> work);

// Shard `shard` must be one of `shards`; the names are those of the inputs.
absl::Status CheckShardNumber(absl::string_view name, int64_t shard,
                              absl::string_view of, int64_t shards);

// The indices of the inputs that describe files.
struct SnapshotFileInputs {
  int paths;
  int files;
  int file_shards;
  int stored_shards;
};

// Checks these inputs and gets the files.
absl::Status GetSnapshotFiles(OpKernelContext* ctx,
                              const SnapshotFileInputs& inputs,
                              std::vector<SnapshotFile>* files);

// Sets row `i` of an output [f, kSnapshotFileColumns].
void SetSnapshotFile(const SnapshotFile& file, int64_t i, Tensor* files);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_
