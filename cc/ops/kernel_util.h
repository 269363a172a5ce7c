// SPDX-License-Identifier: Apache-2.0
// What all ops and kernels use: TensorFlow's names; adapters of the core's
// errors and threads; and checks of inputs, for kernels and for shape
// functions, with the same error texts.
#ifndef TF_EXT_CC_OPS_KERNEL_UTIL_H_
#define TF_EXT_CC_OPS_KERNEL_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"

namespace tf_ext {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ToTf(const Status& status);

// The error of what the texts and numbers say, one after the other.
template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Uses the intra-op threads of the kernel's device. The caller takes part, and
// waits only for blocks that a thread has started, never for closures that are
// still in the pool's queue: so calls may be nested and made from a thread of
// the same pool.
ParallelFor MakeParallelFor(OpKernelContext* ctx);

// The errors name the argument, its shape and the one that is required.
absl::Status CheckScalar(absl::string_view name, const Tensor& tensor);
absl::Status CheckVector(absl::string_view name, const Tensor& tensor);
absl::Status CheckMatrix(absl::string_view name, const Tensor& tensor);
// `tensor` must be a vector of `size` values; `size_of` says what for.
absl::Status CheckVectorOf(absl::string_view name, const Tensor& tensor,
                           int64_t size, absl::string_view size_of);
// `tensor` must be a vector of `size` values, or of 0, meaning none; `size_of`
// names what else has that size.
absl::Status CheckOptionalVectorOf(absl::string_view name, const Tensor& tensor,
                                   int64_t size, absl::string_view size_of);
// Attribute `name` must be a list of one value for each of `count` inputs or
// outputs.
absl::Status CheckListSize(absl::string_view name, size_t size, int count);
// Attribute `starts_of` must be indices of `tables` tables, each at most once
// and ascending.
absl::Status CheckStartsOf(const std::vector<int64_t>& starts_of,
                           int64_t tables);
// Attribute `K` must be the number of inputs that number a step.
absl::Status CheckNumbered(int numbered);
// A table's columns, begins[i] up to but not including ends[i], must be some of
// `columns`.
absl::Status CheckColumns(int i, int64_t begin, int64_t end, int64_t columns);
// `sizes` must be a vector of non-negative int64 that add up to `sum`; `sum_of`
// describes the sum.
absl::Status CheckSplitSizes(absl::string_view name, const Tensor& sizes,
                             int64_t sum, absl::string_view sum_of);
// `width` columns must hold the rows of all peers, of `needed` columns each.
absl::Status CheckWidth(int64_t width, const std::vector<int64_t>& needed);

// The shape of output `name`, whose sizes depend on inputs. Fails where the
// constructor of TensorShape would abort the process.
absl::Status MakeShape(absl::string_view name, absl::Span<const int64_t> sizes,
                       TensorShape* shape);

// Allocates output `index`, whose values start at `*data`.
template <typename T>
absl::Status AllocateOutput(OpKernelContext* ctx, int index,
                            const TensorShape& shape, T** data) {
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(index, shape, &output));
  *data = output->flat<T>().data();
  return absl::OkStatus();
}

// Allocates output `index` as a scalar and sets it. Not for kernels whose side
// effects must not have happened if the allocation fails.
template <typename T>
absl::Status SetScalarOutput(OpKernelContext* ctx, int index, T value) {
  T* output = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, index, TensorShape({}), &output));
  *output = std::move(value);
  return absl::OkStatus();
}

// The value of input `index`, which must be a scalar.
template <typename T>
absl::Status ScalarInput(OpKernelContext* ctx, absl::string_view name,
                         int index, T* value) {
  TF_RETURN_IF_ERROR(CheckScalar(name, ctx->input(index)));
  *value = ctx->input(index).scalar<T>()();
  return absl::OkStatus();
}
inline absl::Status ScalarInput(OpKernelContext* ctx, absl::string_view name,
                                int index, std::string* text) {
  tstring value;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, name, index, &value));
  *text = std::string(value);
  return absl::OkStatus();
}

// A kernel without attributes, of a function Run<name of the op>.
template <absl::Status (*kCompute)(OpKernelContext*)>
class FunctionOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, kCompute(ctx));
  }
};

#define TF_EXT_REGISTER_KERNEL(name, ...)                                      \
  REGISTER_KERNEL_BUILDER(Name("TfExt>" #name).Device(tensorflow::DEVICE_CPU), \
                          __VA_ARGS__)
#define TF_EXT_REGISTER_FUNCTION(name) \
  TF_EXT_REGISTER_KERNEL(name, FunctionOp<Run##name>)

// The names of inputs: first of scalars, then of vectors, then of matrices.
using InputsByRank = std::vector<std::vector<const char*>>;
// For shape functions: the inputs must have these ranks.
absl::Status CheckRanks(InferenceContext* c, const InputsByRank& inputs);
// A shape function that checks ranks and sets the shapes of all outputs: {} is
// that of a scalar, and -1 an unknown size.
std::function<absl::Status(InferenceContext*)> Shapes(
    InputsByRank inputs, std::vector<std::vector<int64_t>> outputs);

// For shape functions: the shape of input `name`, as far as it is known, which
// must be of rank `rank` (0, 1 or 2).
absl::Status InputOfRank(InferenceContext* c, absl::string_view name, int rank,
                         ShapeHandle* shape);
// The same of each input of the list `name`.
absl::Status InputsOfRank(InferenceContext* c, absl::string_view name, int rank,
                          std::vector<ShapeHandle>* shapes);
// The same as CheckOptionalVectorOf, as far as the sizes are known.
absl::Status CheckOptionalVectorInput(InferenceContext* c,
                                      absl::string_view name,
                                      DimensionHandle size,
                                      absl::string_view size_of);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_KERNEL_UTIL_H_
