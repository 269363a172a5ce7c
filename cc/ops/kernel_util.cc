// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/kernel_util.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cc/core/support/mutex.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tf_ext {
namespace {

constexpr const char* kRankNames[] = {"a scalar", "a vector", "a matrix"};

// The blocks of one ParallelFor call, shared by the caller and its closures: a
// closure that starts after the call has returned finds no block left and does
// not use `fn`, which belongs to the caller.
class BlockQueue {
 public:
  BlockQueue(int64_t blocks, const std::function<void(int64_t)>& fn)
      : blocks_(blocks), fn_(&fn) {}

  void Work() {
    int64_t done = 0;
    for (int64_t block = next_.fetch_add(1); block < blocks_;
         block = next_.fetch_add(1)) {
      (*fn_)(block);
      ++done;
    }
    if (done == 0) return;
    const ExclusiveLock lock(mutex_);
    finished_ += done;
    if (finished_ == blocks_) all_finished_.notify_one();
  }

  void Wait() {
    const ExclusiveLock lock(mutex_);
    while (finished_ < blocks_) mutex_.Wait(&all_finished_);
  }

 private:
  const int64_t blocks_;
  const std::function<void(int64_t)>* const fn_;
  std::atomic<int64_t> next_{0};
  Mutex mutex_;
  std::condition_variable all_finished_;
  int64_t finished_ TF_EXT_GUARDED_BY(mutex_) = 0;
};

absl::Status ShapeError(absl::string_view name, absl::string_view found,
                        absl::string_view wanted) {
  return InvalidArgument(name, " must be ", wanted, ", but its shape is ",
                         found, ".");
}

absl::Status CheckRank(absl::string_view name, const Tensor& tensor, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return ShapeError(name, tensor.shape().DebugString(), kRankNames[rank]);
}

std::string OptionalVectorOf(int64_t size, absl::string_view size_of) {
  return absl::StrCat("a vector of ", size, " values (", size_of,
                      ") or of none");
}

}  // namespace

absl::Status ToTf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(status.message());
    case StatusCode::kNotFound:
      return absl::NotFoundError(status.message());
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message());
    case StatusCode::kDataLoss:
      return absl::DataLossError(status.message());
  }
  return absl::InternalError(status.message());
}

ParallelFor MakeParallelFor(OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  if (workers == nullptr || workers->num_threads <= 1) return SerialFor;
  tensorflow::thread::ThreadPool* const pool = workers->workers;
  const int64_t num_threads = workers->num_threads;
  return [pool, num_threads](int64_t blocks,
                             const std::function<void(int64_t)>& fn) {
    if (blocks <= 1) return SerialFor(blocks, fn);
    auto queue = std::make_shared<BlockQueue>(blocks, fn);
    const int64_t helpers = std::min(num_threads, blocks) - 1;
    for (int64_t i = 0; i < helpers; ++i) {
      pool->Schedule([queue] { queue->Work(); });
    }
    queue->Work();
    queue->Wait();
  };
}

absl::Status CheckScalar(absl::string_view name, const Tensor& tensor) {
  return CheckRank(name, tensor, 0);
}

absl::Status CheckVector(absl::string_view name, const Tensor& tensor) {
  return CheckRank(name, tensor, 1);
}

absl::Status CheckMatrix(absl::string_view name, const Tensor& tensor) {
  return CheckRank(name, tensor, 2);
}

absl::Status CheckVectorOf(absl::string_view name, const Tensor& tensor,
                           int64_t size, absl::string_view size_of) {
  if (tensor.dims() == 1 && tensor.dim_size(0) == size) return absl::OkStatus();
  return ShapeError(
      name, tensor.shape().DebugString(),
      absl::StrCat("a vector of ", size, " values (", size_of, ")"));
}

absl::Status CheckOptionalVectorOf(absl::string_view name, const Tensor& tensor,
                                   int64_t size, absl::string_view size_of) {
  if (tensor.dims() == 1 && tensor.dim_size(0) == 0) return absl::OkStatus();
  if (tensor.dims() == 1 && tensor.dim_size(0) == size) return absl::OkStatus();
  return ShapeError(name, tensor.shape().DebugString(),
                    OptionalVectorOf(size, size_of));
}

absl::Status CheckListSize(absl::string_view name, size_t size, int count) {
  if (static_cast<int>(size) == count) return absl::OkStatus();
  return InvalidArgument(name, " must have N = ", count, " values, but has ",
                         size, ".");
}

absl::Status CheckStartsOf(const std::vector<int64_t>& starts_of,
                           int64_t tables) {
  int64_t least = 0;
  for (size_t j = 0; j < starts_of.size(); ++j) {
    if (starts_of[j] < least || starts_of[j] >= tables) {
      return InvalidArgument("starts_of[", j, "] must be from ", least, " to ",
                             tables - 1, ", but is ", starts_of[j], ".");
    }
    least = starts_of[j] + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckNumbered(int numbered) {
  if (numbered <= 1) return absl::OkStatus();
  return InvalidArgument("K must be 0 or 1, but is ", numbered, ".");
}

absl::Status CheckColumns(int i, int64_t begin, int64_t end, int64_t columns) {
  if (0 <= begin && begin <= end && end <= columns) return absl::OkStatus();
  return InvalidArgument(
      "begins[", i, "] and ends[", i,
      "] must be at least 0, not decrease, and be at most columns = ", columns,
      ", but are ", begin, " and ", end, ".");
}

absl::Status CheckSplitSizes(absl::string_view name, const Tensor& sizes,
                             int64_t sum, absl::string_view sum_of) {
  int64_t left = sum;
  const auto values = sizes.vec<int64_t>();
  for (int64_t i = 0; i < values.size(); ++i) {
    if (values(i) < 0 || values(i) > left) break;
    left -= values(i);
    if (i == values.size() - 1 && left == 0) return absl::OkStatus();
  }
  return InvalidArgument(name, " must be non-negative with the sum ", sum, " (",
                         sum_of, "), but is ", sizes.SummarizeValue(16), ".");
}

absl::Status CheckWidth(int64_t width, const std::vector<int64_t>& needed) {
  for (size_t peer = 0; peer < needed.size(); ++peer) {
    if (needed[peer] <= width) continue;
    return InvalidArgument("width must be at least ", needed[peer],
                           ", what goes to peer ", peer, ", but is ", width,
                           ".");
  }
  return absl::OkStatus();
}

absl::Status MakeShape(absl::string_view name, absl::Span<const int64_t> sizes,
                       TensorShape* shape) {
  if (TensorShape::BuildTensorShape(sizes, shape).ok()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      name, " cannot be of shape [", absl::StrJoin(sizes, ","),
      "]: sizes must not be negative, and their product must be below 2^63.");
}

absl::Status InputOfRank(InferenceContext* c, absl::string_view name, int rank,
                         ShapeHandle* shape) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(c->input(name, &shapes));
  if (c->WithRank(shapes[0], rank, shape).ok()) return absl::OkStatus();
  return ShapeError(name, c->DebugString(shapes[0]), kRankNames[rank]);
}

absl::Status CheckRanks(InferenceContext* c, const InputsByRank& inputs) {
  ShapeHandle unused;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (const char* name : inputs[rank]) {
      TF_RETURN_IF_ERROR(InputOfRank(c, name, static_cast<int>(rank), &unused));
    }
  }
  return absl::OkStatus();
}

std::function<absl::Status(InferenceContext*)> Shapes(
    InputsByRank inputs, std::vector<std::vector<int64_t>> outputs) {
  return [inputs = std::move(inputs),
          outputs = std::move(outputs)](InferenceContext* c) {
    TF_RETURN_IF_ERROR(CheckRanks(c, inputs));
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::vector<DimensionHandle> sizes;
      for (const int64_t size : outputs[i]) {
        sizes.push_back(size < 0 ? c->UnknownDim() : c->MakeDim(size));
      }
      c->set_output(static_cast<int>(i), c->MakeShape(sizes));
    }
    return absl::OkStatus();
  };
}

absl::Status InputsOfRank(InferenceContext* c, absl::string_view name, int rank,
                          std::vector<ShapeHandle>* shapes) {
  TF_RETURN_IF_ERROR(c->input(name, shapes));
  for (size_t i = 0; i < shapes->size(); ++i) {
    ShapeHandle& shape = (*shapes)[i];
    if (c->WithRank(shape, rank, &shape).ok()) continue;
    return ShapeError(absl::StrCat(name, "[", i, "]"), c->DebugString(shape),
                      kRankNames[rank]);
  }
  return absl::OkStatus();
}

absl::Status CheckOptionalVectorInput(InferenceContext* c,
                                      absl::string_view name,
                                      DimensionHandle size,
                                      absl::string_view size_of) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(InputOfRank(c, name, 1, &shape));
  const DimensionHandle found = c->Dim(shape, 0);
  if (!c->ValueKnown(found) || c->Value(found) == 0 || !c->ValueKnown(size) ||
      c->Value(found) == c->Value(size)) {
    return absl::OkStatus();
  }
  return ShapeError(name, c->DebugString(shape),
                    OptionalVectorOf(c->Value(size), size_of));
}

}  // namespace tf_ext
