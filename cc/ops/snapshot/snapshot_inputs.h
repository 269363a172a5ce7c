// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs that the kernels of snapshots have in common.
#ifndef TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_
#define TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/ops/snapshot/snapshot_files.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {

// The value of an input, which must be a scalar.
std::string StringInput(tensorflow::OpKernelContext* ctx, int input);
int64_t IntInput(tensorflow::OpKernelContext* ctx, int input);

// The number of threads for files.
int64_t NumFileThreads(tensorflow::OpKernelContext* ctx);

// Runs the blocking work of a kernel on a thread of its own.
void InBackground(tensorflow::OpKernelContext* ctx,
                  tensorflow::AsyncOpKernel::DoneCallback done,
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
absl::Status GetSnapshotFiles(tensorflow::OpKernelContext* ctx,
                              const SnapshotFileInputs& inputs,
                              std::vector<SnapshotFile>* files);

// Sets row `i` of an output [f, kSnapshotFileColumns].
void SetSnapshotFile(const SnapshotFile& file, int64_t i,
                     tensorflow::Tensor* files);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_SNAPSHOT_SNAPSHOT_INPUTS_H_
