// SPDX-License-Identifier: Apache-2.0
// Adapters of the core's errors and threads to TensorFlow's; and the checks of
// inputs that all ops share, for kernels and for shape functions, with the same
// error texts.
#ifndef TF_EXT_CC_OPS_KERNEL_UTIL_H_
#define TF_EXT_CC_OPS_KERNEL_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ext {

absl::Status ToTf(const Status& status);

// Uses the intra-op threads of the kernel's device. The caller takes part, and
// waits only for blocks that a thread has started, never for closures that are
// still in the pool's queue: so calls may be nested and made from a thread of
// the same pool.
ParallelFor MakeParallelFor(tensorflow::OpKernelContext* ctx);

// The errors name the argument, its shape and the one that is required.
absl::Status CheckScalar(absl::string_view name,
                         const tensorflow::Tensor& tensor);
absl::Status CheckVector(absl::string_view name,
                         const tensorflow::Tensor& tensor);
absl::Status CheckMatrix(absl::string_view name,
                         const tensorflow::Tensor& tensor);
// `tensor` must be a vector of `size` values; `size_of` says what for.
absl::Status CheckVectorOf(absl::string_view name,
                           const tensorflow::Tensor& tensor, int64_t size,
                           absl::string_view size_of);
// `tensor` must be a vector of `size` values, or of 0, meaning none; `size_of`
// names what else has that size.
absl::Status CheckOptionalVectorOf(absl::string_view name,
                                   const tensorflow::Tensor& tensor,
                                   int64_t size, absl::string_view size_of);
// Attribute `name` must be a list of one value for each of `count` inputs or
// outputs.
absl::Status CheckListSize(absl::string_view name, size_t size, int count);
// A table's columns, begins[i] up to but not including ends[i], must be some of
// `columns`.
absl::Status CheckColumns(int i, int64_t begin, int64_t end, int64_t columns);
// `sizes` must be a vector of non-negative int64 that add up to `sum`; `sum_of`
// describes the sum.
absl::Status CheckSplitSizes(absl::string_view name,
                             const tensorflow::Tensor& sizes, int64_t sum,
                             absl::string_view sum_of);
// `width` columns must hold the rows of all peers, of `needed` columns each.
absl::Status CheckWidth(int64_t width, const std::vector<int64_t>& needed);

// The shape of output `name`, whose sizes depend on inputs. Fails where the
// constructor of TensorShape would abort the process.
absl::Status MakeShape(absl::string_view name, absl::Span<const int64_t> sizes,
                       tensorflow::TensorShape* shape);

// Allocates output `index` as a scalar and sets it. Not for kernels whose side
// effects must not have happened if the allocation fails.
template <typename T>
absl::Status SetScalarOutput(tensorflow::OpKernelContext* ctx, int index,
                             T value) {
  tensorflow::Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(index, tensorflow::TensorShape({}), &output));
  output->scalar<T>()() = std::move(value);
  return absl::OkStatus();
}

// For shape functions: the shape of input `name`, as far as it is known, which
// must be of rank `rank` (0, 1 or 2).
absl::Status InputOfRank(tensorflow::shape_inference::InferenceContext* c,
                         absl::string_view name, int rank,
                         tensorflow::shape_inference::ShapeHandle* shape);
// The same of each input of the list `name`.
absl::Status InputsOfRank(
    tensorflow::shape_inference::InferenceContext* c, absl::string_view name,
    int rank, std::vector<tensorflow::shape_inference::ShapeHandle>* shapes);
// The same as CheckOptionalVectorOf, as far as the sizes are known.
absl::Status CheckOptionalVectorInput(
    tensorflow::shape_inference::InferenceContext* c, absl::string_view name,
    tensorflow::shape_inference::DimensionHandle size,
    absl::string_view size_of);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_KERNEL_UTIL_H_
