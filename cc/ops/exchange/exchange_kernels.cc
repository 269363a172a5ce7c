// SPDX-License-Identifier: Apache-2.0
// Kernels that pack and unpack the buffers of an all-to-all collective, and the
// one that raises an error that was found elsewhere.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/bags/gradient_sum.h"
#include "cc/core/support/checked_math.h"
#include "cc/core/support/parallel.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/register_types.h"

namespace tf_ext {
namespace {

// The bytes that a thread copies at a time: about 50 microseconds of work.
constexpr int64_t kBytesPerBlock = 512 << 10;
// The bytes that are checked at a time, while they are in a core's cache.
constexpr int64_t kCheckedBytes = 16 << 10;

// Copies between buffers, which run in parallel.
class Copies {
 public:
  // A source of nullptr writes zeros.
  void Add(const void* from, void* to, int64_t bytes) {
    const char* source = static_cast<const char*>(from);
    char* target = static_cast<char*>(to);
    bytes_ += bytes;
    while (bytes > 0) {
      const int64_t count = std::min(bytes, kBytesPerBlock);
      copies_.push_back({source, target, count});
      if (source != nullptr) source += count;
      target += count;
      bytes -= count;
    }
  }

  // Whether all floats are within the limit, unless that is 0.
  bool Run(float limit, const ParallelFor& parallel_for) const {
    std::atomic<bool> within{true};
    const int64_t count = static_cast<int64_t>(copies_.size());
    const int64_t blocks = std::clamp<int64_t>(bytes_ / kBytesPerBlock, 1,
                                               std::max<int64_t>(1, count));
    RunBlocks(blocks, parallel_for, [&](int64_t block) {
      for (int64_t i = count * block / blocks; i < count * (block + 1) / blocks;
           ++i) {
        if (!RunOne(copies_[i], limit)) within = false;
      }
    });
    return within;
  }

 private:
  struct Copy {
    const char* from;
    char* to;
    int64_t bytes;
  };

  static bool RunOne(const Copy& copy, float limit) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
      return true;
    }
    if (limit == 0) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      return true;
    }
    bool within = true;
    for (int64_t done = 0; done < copy.bytes; done += kCheckedBytes) {
      const int64_t bytes = std::min(kCheckedBytes, copy.bytes - done);
      std::memcpy(copy.to + done, copy.from + done, bytes);
      within &= AllWithin(reinterpret_cast<const float*>(copy.to + done),
                          bytes / sizeof(float), limit);
    }
    return within;
  }

  std::vector<Copy> copies_;
  int64_t bytes_ = 0;
};

// The parts of `values[index]` for each peer.
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
    return InvalidArgument(name, " must be of shape [", peers,
                           "] (header has so many rows), but its shape is ",
                           split_sizes.shape().DebugString(), ".");
  }
  if (values.dims() < 1) {
    return InvalidArgument(
        "values[", index,
        "] must have at least one dimension, but its shape is ",
        values.shape().DebugString(), ".");
  }
  return CheckSplitSizes(
      name, split_sizes, values.dim_size(0),
      absl::StrCat("the first dimension of values[", index, "]"));
}

template <typename T>
class ExchangePackOp : public OpKernel {
 public:
  explicit ExchangePackOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("limit", &limit_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("all_or_none", &all_or_none_));
    OP_REQUIRES(
        ctx, limit_ == 0 || (limit_ > 0 && std::is_same_v<T, float>),
        InvalidArgument("limit must be 0, or above 0 for floats, but is ",
                        limit_, "."));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList values, split_sizes;
    OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
    OP_REQUIRES_OK(ctx, ctx->input_list("split_sizes", &split_sizes));
    const Tensor& header = ctx->input(2 * values.size());
    int64_t width;
    OP_REQUIRES_OK(ctx, CheckMatrix("header", header));
    OP_REQUIRES_OK(ctx,
                   ScalarInput(ctx, "width", 2 * values.size() + 1, &width));
    const int64_t peers = header.dim_size(0);
    OP_REQUIRES(ctx, limit_ == 0 || header.dim_size(1) > 0,
                InvalidArgument(
                    "header must have a column if there is a limit, but its "
                    "shape is ",
                    header.shape().DebugString(), "."));
    std::vector<Part> parts;
    OP_REQUIRES_OK(ctx, GetParts(values, split_sizes, peers, &parts));
    absl::Status wide_enough = CheckWidth(width, Needed(header, parts));
    if (all_or_none_ && !wide_enough.ok()) {
      parts.clear();
      wide_enough = CheckWidth(width, Needed(header, parts));
    }
    OP_REQUIRES_OK(ctx, wide_enough);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape("packed", {peers, width}, &shape));
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &packed));
    LayOut(ctx, header, &parts, packed);
  }

 private:
  static absl::Status GetParts(const OpInputList& values,
                               const OpInputList& split_sizes, int64_t peers,
                               std::vector<Part>* parts) {
    for (int i = 0; i < values.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckPart(i, values[i], split_sizes[i], peers));
      const int64_t rows = values[i].dim_size(0);
      const int64_t dim = rows == 0 ? 0 : values[i].NumElements() / rows;
      parts->push_back({reinterpret_cast<const char*>(values[i].data()),
                        split_sizes[i].vec<int64_t>().data(),
                        dim * static_cast<int64_t>(sizeof(T))});
    }
    return absl::OkStatus();
  }

  // The number of columns of each peer's row.
  static std::vector<int64_t> Needed(const Tensor& header,
                                     const std::vector<Part>& parts) {
    std::vector<int64_t> needed(header.dim_size(0), header.dim_size(1));
    for (const Part& part : parts) {
      const int64_t columns = part.row_bytes / static_cast<int64_t>(sizeof(T));
      for (size_t peer = 0; peer < needed.size(); ++peer) {
        needed[peer] += part.split_sizes[peer] * columns;
      }
    }
    return needed;
  }

  void LayOut(OpKernelContext* ctx, const Tensor& header,
              std::vector<Part>* parts, Tensor* packed) const {
    const int64_t row_bytes = packed->dim_size(1) * sizeof(T);
    const int64_t header_bytes = header.dim_size(1) * sizeof(T);
    Copies copies;
    char* row = reinterpret_cast<char*>(packed->data());
    const char* head = reinterpret_cast<const char*>(header.data());
    for (int64_t peer = 0; peer < packed->dim_size(0); ++peer) {
      char* to = row;
      if (header_bytes != 0) std::memcpy(to, head, header_bytes);
      to += header_bytes;
      head += header_bytes;
      for (Part& part : *parts) {
        const int64_t bytes = part.split_sizes[peer] * part.row_bytes;
        copies.Add(part.data, to, bytes);
        part.data += bytes;
        to += bytes;
      }
      row += row_bytes;
      copies.Add(nullptr, to, row - to);
    }
    const bool within = copies.Run(limit_, MakeParallelFor(ctx));
    if (limit_ != 0 && packed->dim_size(0) > 0) {
      packed->matrix<T>().chip(0, 1).setConstant(within ? 0 : 1);
    }
  }

  float limit_ = 0;
  bool all_or_none_ = false;
};

// The numbers may come from another machine, so they are always checked.
absl::Status CheckCounts(const Tensor& packed, const Tensor& counts_tensor,
                         const std::vector<int32_t>& dims, int64_t offset) {
  TF_RETURN_IF_ERROR(CheckMatrix("packed", packed));
  TF_RETURN_IF_ERROR(CheckMatrix("counts", counts_tensor));
  const int64_t peers = packed.dim_size(0);
  const int64_t count = static_cast<int64_t>(dims.size());
  if (counts_tensor.dim_size(0) != count ||
      counts_tensor.dim_size(1) != peers) {
    return InvalidArgument("counts must be of shape [", count, ", ", peers,
                           "] (dims, rows of packed), but its shape is ",
                           counts_tensor.shape().DebugString(), ".");
  }
  const auto counts = counts_tensor.matrix<int64_t>();
  for (int64_t peer = 0; peer < peers; ++peer) {
    int64_t left = packed.dim_size(1) - offset;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rows = counts(i, peer);
      const int64_t most = left < 0       ? -1
                           : dims[i] == 0 ? int64_t{1} << 40
                                          : left / dims[i];
      if (rows < 0 || rows > most) {
        return InvalidArgument(
            "counts[", i, "][", peer, "] must be from 0 to ",
            std::max<int64_t>(most, 0), ", what the rest of row ", peer,
            " of packed holds after offset ", offset, ", but is ", rows, ".");
      }
      left -= rows * dims[i];
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDims(const std::vector<int32_t>& dims) {
  if (*std::min_element(dims.begin(), dims.end()) >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("dims must not be negative.");
}

template <typename T>
class ExchangeUnpackOp : public OpKernel {
 public:
  explicit ExchangeUnpackOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("offset", &offset_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("flat", &flat_));
    int count = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES_OK(ctx, CheckListSize("dims", dims_.size(), count));
    OP_REQUIRES_OK(ctx, CheckDims(dims_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& packed = ctx->input(0);
    const Tensor& counts_tensor = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckCounts(packed, counts_tensor, dims_, offset_));
    const auto counts = counts_tensor.matrix<int64_t>();
    const int64_t peers = packed.dim_size(0);
    const int64_t width = packed.dim_size(1);
    OpOutputList outputs;
    OP_REQUIRES_OK(ctx, ctx->output_list("values", &outputs));
    std::vector<char*> to(dims_.size());
    for (size_t i = 0; i < dims_.size(); ++i) {
      // Rows without columns take no space, so any number of them fits.
      int64_t rows = 0;
      for (int64_t peer = 0; peer < peers; ++peer) {
        rows = SaturatedAdd(rows, counts(i, peer));
      }
      OP_REQUIRES(ctx, rows < kBeyondInt64,
                  InvalidArgument("counts[", i, "] has a sum beyond int64."));
      TensorShape shape;
      const std::string name = absl::StrCat("values[", i, "]");
      OP_REQUIRES_OK(
          ctx,
          flat_ ? MakeShape(name, {SaturatedMultiply(rows, dims_[i])}, &shape)
                : MakeShape(name, {rows, dims_[i]}, &shape));
      Tensor* output = nullptr;
      OP_REQUIRES_OK(ctx, outputs.allocate(i, shape, &output));
      to[i] = reinterpret_cast<char*>(output->data());
    }
    Copies copies;
    const char* data = reinterpret_cast<const char*>(packed.data());
    for (int64_t peer = 0; peer < peers; ++peer) {
      const char* from = data + (peer * width + offset_) * sizeof(T);
      for (size_t i = 0; i < dims_.size(); ++i) {
        const int64_t bytes = counts(i, peer) * dims_[i] * sizeof(T);
        copies.Add(from, to[i], bytes);
        to[i] += bytes;
        from += bytes;
      }
    }
    copies.Run(0, MakeParallelFor(ctx));
  }

 private:
  int64_t offset_ = 0;
  std::vector<int32_t> dims_;
  bool flat_ = false;
};

class ExchangeSumOp : public OpKernel {
 public:
  explicit ExchangeSumOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sum_of", &sum_of_));
    int sums = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &sums));
    OP_REQUIRES_OK(ctx, CheckDims(dims_));
    OP_REQUIRES(
        ctx, sum_of_.size() == dims_.size(),
        InvalidArgument("sum_of must have a number for each of the ",
                        dims_.size(), " dims, but has ", sum_of_.size(), "."));
    sum_dims_.assign(sums, -1);
    for (size_t i = 0; i < dims_.size(); ++i) {
      OP_REQUIRES(ctx, sum_of_[i] >= 0 && sum_of_[i] < sums,
                  InvalidArgument("sum_of[", i, "] must be from 0 to ",
                                  sums - 1, ", but is ", sum_of_[i], "."));
      int32_t& dim = sum_dims_[sum_of_[i]];
      OP_REQUIRES(ctx, dim == -1 || dim == dims_[i],
                  InvalidArgument(
                      "dims[", i, "] must be that of the other values of sum ",
                      sum_of_[i], ", ", dim, ", but is ", dims_[i], "."));
      dim = dims_[i];
    }
    for (int i = 0; i < sums; ++i) {
      OP_REQUIRES(ctx, sum_dims_[i] >= 0,
                  InvalidArgument("sum_of must have each of 0 to ", sums - 1,
                                  ", but not ", i, "."));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& packed = ctx->input(0);
    const Tensor& counts_tensor = ctx->input(1);
    int64_t offset;
    OP_REQUIRES_OK(ctx,
                   ScalarInput(ctx, "offset", ctx->num_inputs() - 1, &offset));
    OP_REQUIRES(
        ctx, offset >= 0,
        InvalidArgument("offset must be at least 0, but is ", offset, "."));
    OP_REQUIRES_OK(ctx, CheckCounts(packed, counts_tensor, dims_, offset));
    const auto counts = counts_tensor.matrix<int64_t>();
    const int64_t peers = packed.dim_size(0);
    std::vector<int64_t> column(peers, offset);
    std::vector<std::vector<ValuePart>> parts(sum_dims_.size());
    for (size_t i = 0; i < dims_.size(); ++i) {
      for (int64_t peer = 0; peer < peers; ++peer) {
        const float* values =
            packed.flat<float>().data() + peer * packed.dim_size(1);
        parts[sum_of_[i]].push_back({values + column[peer], counts(i, peer)});
        column[peer] += counts(i, peer) * dims_[i];
      }
    }
    OpInputList segments, signs;
    OpOutputList sums;
    OP_REQUIRES_OK(ctx, ctx->input_list("segments", &segments));
    OP_REQUIRES_OK(ctx, ctx->input_list("signs", &signs));
    OP_REQUIRES_OK(ctx, ctx->output_list("sums", &sums));
    for (int i = 0; i < segments.size(); ++i) {
      OP_REQUIRES_OK(ctx, Sum(ctx, i, parts[i], segments[i], signs[i], &sums));
    }
  }

 private:
  absl::Status Sum(OpKernelContext* ctx, int index,
                   const std::vector<ValuePart>& parts, const Tensor& segments,
                   const Tensor& signs, OpOutputList* sums) const {
    TF_RETURN_IF_ERROR(
        CheckVector(absl::StrCat("segments[", index, "]"), segments));
    TF_RETURN_IF_ERROR(CheckVector(absl::StrCat("signs[", index, "]"), signs));
    int64_t n = 0;
    for (const ValuePart& part : parts) n = SaturatedAdd(n, part.n);
    if (segments.dim_size(0) != n) {
      return InvalidArgument("segments[", index, "] must be of shape [", n,
                             "] (the sum of its counts), but its shape is ",
                             segments.shape().DebugString(), ".");
    }
    TensorShape shape;
    TF_RETURN_IF_ERROR(MakeShape(absl::StrCat("sums[", index, "]"),
                                 {signs.dim_size(0), sum_dims_[index]},
                                 &shape));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(sums->allocate(index, shape, &output));
    return ToTf(SumSegments(
        parts, segments.flat<int32_t>().data(), sum_dims_[index],
        shape.dim_size(0), MakeParallelFor(ctx), output->flat<float>().data()));
  }

  std::vector<int32_t> dims_;
  std::vector<int32_t> sum_of_;
  std::vector<int32_t> sum_dims_;
};

absl::Status RunRaiseError(OpKernelContext* ctx) {
  std::string text;
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "error", 0, &text));
  if (!text.empty()) return absl::InvalidArgumentError(text);
  ctx->set_output(0, ctx->input(0));
  return absl::OkStatus();
}

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

TF_EXT_REGISTER_KERNEL(ExchangeSum, ExchangeSumOp);
TF_EXT_REGISTER_FUNCTION(RaiseError);

}  // namespace
}  // namespace tf_ext
