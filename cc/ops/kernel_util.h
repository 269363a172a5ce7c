// What every kernel needs to call the core: its errors and threads as
// TensorFlow's; and the checks of inputs that all ops share, for kernels and
// for shape functions, which word their errors alike.
#ifndef TF_EXT_CC_OPS_KERNEL_UTIL_H_
#define TF_EXT_CC_OPS_KERNEL_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/parallel.h"
#include "cc/core/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ext {

absl::Status ToTf(const Status& status);

// Borrows the intra-op threads of the kernel's device. The caller takes part,
// and waits only for blocks that a thread has begun, never for one that is
// still in the pool's queue: safe from a thread of that same pool, and nested.
ParallelFor MakeParallelFor(tensorflow::OpKernelContext* ctx);

// The errors name the argument, the shape that was found and the one wanted.
absl::Status CheckScalar(absl::string_view name,
                         const tensorflow::Tensor& tensor);
absl::Status CheckVector(absl::string_view name,
                         const tensorflow::Tensor& tensor);
absl::Status CheckMatrix(absl::string_view name,
                         const tensorflow::Tensor& tensor);
// `tensor` is a vector of `size` values, or of 0, meaning none; `size_of` says
// what else has that size.
absl::Status CheckOptionalVectorOf(absl::string_view name,
                                   const tensorflow::Tensor& tensor,
                                   int64_t size, absl::string_view size_of);
// Attribute `name` is a list of one value for each of `count` inputs or
// outputs.
absl::Status CheckListSize(absl::string_view name, size_t size, int count);
// `sizes` is a vector of int64 that are not negative and add up to `sum`;
// `sum_of` says what that is.
absl::Status CheckSplitSizes(absl::string_view name,
                             const tensorflow::Tensor& sizes, int64_t sum,
                             absl::string_view sum_of);
// `width` columns hold what goes to each peer: `needed` columns each.
absl::Status CheckWidth(int64_t width, const std::vector<int64_t>& needed);

// The shape of output `name`, whose sizes follow from what a caller gave. The
// constructor of TensorShape would end the process where this is an error.
absl::Status MakeShape(absl::string_view name, absl::Span<const int64_t> sizes,
                       tensorflow::TensorShape* shape);

// For shape functions: input `name` as far as its shape is known, which must
// be of rank `rank` (0, 1 or 2).
absl::Status InputOfRank(tensorflow::shape_inference::InferenceContext* c,
                         absl::string_view name, int rank,
                         tensorflow::shape_inference::ShapeHandle* shape);
// The same as CheckOptionalVectorOf, as far as the sizes are known.
absl::Status CheckOptionalVectorInput(
    tensorflow::shape_inference::InferenceContext* c, absl::string_view name,
    tensorflow::shape_inference::DimensionHandle size,
    absl::string_view size_of);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_KERNEL_UTIL_H_
