// Kernels around an all-to-all collective, and the one that raises an error
// that was found elsewhere.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// What `values[index]` has for each peer.
struct Part {
  const char* data;
  const int64_t* split_sizes;
  int64_t row_bytes;
};

absl::Status CheckPart(int index, const Tensor& values,
                       const Tensor& split_sizes, int64_t peers) {
  const std::string name = absl::StrCat("split_sizes[", index, "]");
  TF_RETURN_IF_ERROR(CheckVector(name, split_sizes));
  if (split_sizes.dim_size(0) != peers) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be of shape [", peers,
                     "] (header has so many rows), but its shape is ",
                     split_sizes.shape().DebugString(), "."));
  }
  if (values.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("values[", index,
                     "] must have at least one dimension, but its shape is ",
                     values.shape().DebugString(), "."));
  }
  int64_t left = values.dim_size(0);
  const auto sizes = split_sizes.vec<int64_t>();
  for (int64_t peer = 0; peer < peers; ++peer) {
    if (sizes(peer) < 0 || sizes(peer) > left) break;
    left -= sizes(peer);
    if (peer == peers - 1 && left == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be non-negative with the sum ",
                   values.dim_size(0), " (the first dimension of values[",
                   index, "]), but is ", split_sizes.SummarizeValue(16), "."));
}

template <typename T>
class ExchangePackOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OpInputList values, split_sizes;
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    OP_REQUIRES_OK(ctx, ctx->input_list("split_sizes", &split_sizes));
    const Tensor& header = ctx->input(2 * values.size());
    const Tensor& width_tensor = ctx->input(2 * values.size() + 1);
    OP_REQUIRES_OK(ctx, CheckMatrix("header", header));
    OP_REQUIRES_OK(ctx, CheckScalar("width", width_tensor));
    const int64_t peers = header.dim_size(0);
    const int64_t header_bytes = header.dim_size(1) * sizeof(T);
    const int64_t width = width_tensor.scalar<int64_t>()();

    std::vector<Part> parts;
    std::vector<int64_t> needed(peers, header.dim_size(1));
    for (int i = 0; i < values.size(); ++i) {
      OP_REQUIRES_OK(ctx, CheckPart(i, values[i], split_sizes[i], peers));
      const int64_t rows = values[i].dim_size(0);
      const int64_t dim = rows == 0 ? 0 : values[i].NumElements() / rows;
      const int64_t* sizes = split_sizes[i].vec<int64_t>().data();
      for (int64_t peer = 0; peer < peers; ++peer) {
        needed[peer] += sizes[peer] * dim;
      }
      parts.push_back({reinterpret_cast<const char*>(values[i].data()), sizes,
                       dim * static_cast<int64_t>(sizeof(T))});
    }
    for (int64_t peer = 0; peer < peers; ++peer) {
      OP_REQUIRES(ctx, needed[peer] <= width,
                  absl::InvalidArgumentError(absl::StrCat(
                      "width must be at least ", needed[peer],
                      ", what goes to peer ", peer, ", but is ", width, ".")));
    }
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({peers, width}), &packed));
    char* row = reinterpret_cast<char*>(packed->data());
    const char* head = reinterpret_cast<const char*>(header.data());
    for (int64_t peer = 0; peer < peers; ++peer) {
      char* to = row;
      Append(head + peer * header_bytes, header_bytes, &to);
      for (Part& part : parts) {
        const int64_t bytes = part.split_sizes[peer] * part.row_bytes;
        Append(part.data, bytes, &to);
        part.data += bytes;
      }
      row += width * sizeof(T);
      if (row != to) std::memset(to, 0, row - to);
    }
  }

 private:
  static void Append(const char* from, int64_t bytes, char** to) {
    if (bytes != 0) std::memcpy(*to, from, bytes);
    *to += bytes;
  }
};

template <typename T>
class ExchangeUnpackOp : public OpKernel {
 public:
  explicit ExchangeUnpackOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("offset", &offset_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    int count = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES(ctx, static_cast<int>(dims_.size()) == count,
                absl::InvalidArgumentError(
                    absl::StrCat("dims must have N = ", count,
                                 " values, but has ", dims_.size(), ".")));
    OP_REQUIRES(ctx, *std::min_element(dims_.begin(), dims_.end()) >= 0,
                absl::InvalidArgumentError("dims must not be negative."));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& packed = ctx->input(0);
    const Tensor& counts_tensor = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckMatrix("packed", packed));
    OP_REQUIRES_OK(ctx, CheckMatrix("counts", counts_tensor));
    OP_REQUIRES_OK(ctx, CheckCounts(packed, counts_tensor));
    const auto counts = counts_tensor.matrix<int64_t>();
    const int64_t peers = packed.dim_size(0);
    const int64_t width = packed.dim_size(1);
    OpOutputList outputs;
    OP_REQUIRES_OK(ctx, ctx->output_list("values", &outputs));
    std::vector<char*> to(dims_.size());
    for (size_t i = 0; i < dims_.size(); ++i) {
      int64_t rows = 0;
      for (int64_t peer = 0; peer < peers; ++peer) rows += counts(i, peer);
      Tensor* output = nullptr;
      OP_REQUIRES_OK(
          ctx, outputs.allocate(i, TensorShape({rows, dims_[i]}), &output));
      to[i] = reinterpret_cast<char*>(output->data());
    }
    const char* data = reinterpret_cast<const char*>(packed.data());
    for (int64_t peer = 0; peer < peers; ++peer) {
      const char* from = data + (peer * width + offset_) * sizeof(T);
      for (size_t i = 0; i < dims_.size(); ++i) {
        const int64_t bytes = counts(i, peer) * dims_[i] * sizeof(T);
        if (bytes != 0) std::memcpy(to[i], from, bytes);
        to[i] += bytes;
        from += bytes;
      }
    }
  }

 private:
  // The numbers may come from another machine: they are never trusted.
  absl::Status CheckCounts(const Tensor& packed, const Tensor& counts_tensor) {
    const int64_t peers = packed.dim_size(0);
    const int64_t count = static_cast<int64_t>(dims_.size());
    if (counts_tensor.dim_size(0) != count ||
        counts_tensor.dim_size(1) != peers) {
      return absl::InvalidArgumentError(
          absl::StrCat("counts must be of shape [", count, ", ", peers,
                       "] (dims, rows of packed), but its shape is ",
                       counts_tensor.shape().DebugString(), "."));
    }
    const auto counts = counts_tensor.matrix<int64_t>();
    for (int64_t peer = 0; peer < peers; ++peer) {
      int64_t left = packed.dim_size(1) - offset_;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t rows = counts(i, peer);
        const int64_t most = left < 0        ? -1
                             : dims_[i] == 0 ? int64_t{1} << 40
                                             : left / dims_[i];
        if (rows < 0 || rows > most) {
          return absl::InvalidArgumentError(absl::StrCat(
              "counts[", i, "][", peer, "] must be from 0 to ",
              std::max<int64_t>(most, 0), ", what the rest of row ", peer,
              " of packed holds after offset ", offset_, ", but is ", rows,
              "."));
        }
        left -= rows * dims_[i];
      }
    }
    return absl::OkStatus();
  }

  int64_t offset_ = 0;
  std::vector<int32_t> dims_;
};

class RaiseErrorOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& error = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckScalar("error", error));
    const tstring& text = error.scalar<tstring>()();
    OP_REQUIRES(ctx, text.empty(),
                absl::InvalidArgumentError(std::string(text)));
    ctx->set_output(0, error);
  }
};

#define REGISTER(T)                                           \
  REGISTER_KERNEL_BUILDER(Name("TfExt>ExchangePack")          \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          ExchangePackOp<T>);                 \
  REGISTER_KERNEL_BUILDER(Name("TfExt>ExchangeUnpack")        \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          ExchangeUnpackOp<T>)
REGISTER(int64_t);
REGISTER(float);
#undef REGISTER

REGISTER_KERNEL_BUILDER(Name("TfExt>RaiseError").Device(tensorflow::DEVICE_CPU),
                        RaiseErrorOp);

}  // namespace
}  // namespace tf_ext
