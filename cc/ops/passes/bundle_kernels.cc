// SPDX-License-Identifier: Apache-2.0
// Kernels that put tensors into one, to be sent together, and take them out.
//
// A bundle begins with the rank and the dimensions of each tensor, int64. The
// tensors follow in the same order, each at a multiple of TensorFlow's
// alignment, so that they can be used in place.

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/allocator.h"

namespace tf_ext {
namespace {

constexpr int64_t kAlignment = tensorflow::Allocator::kAllocatorAlignment;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Checks the attribute T.
absl::Status CheckTypes(const std::vector<DataType>& types) {
  for (size_t i = 0; i < types.size(); ++i) {
    if (!tensorflow::DataTypeCanUseMemcpy(types[i])) {
      return InvalidArgument(
          "T[", i, "] must be a type that is copied byte by byte, but is ",
          tensorflow::DataTypeString(types[i]), ".");
    }
  }
  return absl::OkStatus();
}

class BundleOp : public OpKernel {
 public:
  explicit BundleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<DataType> types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &types));
    OP_REQUIRES_OK(ctx, CheckTypes(types));
  }

  void Compute(OpKernelContext* ctx) override {
    std::vector<int64_t> header;
    int64_t data = 0;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const TensorShape& shape = ctx->input(i).shape();
      header.push_back(shape.dims());
      for (const int64_t size : shape.dim_sizes()) header.push_back(size);
      data += Aligned(ctx->input(i).tensor_data().size());
    }
    const int64_t header_bytes = header.size() * sizeof(int64_t);
    TensorShape shape;
    OP_REQUIRES_OK(ctx,
                   MakeShape("bundle", {Aligned(header_bytes) + data}, &shape));
    Tensor* bundle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &bundle));
    uint8_t* to = bundle->flat<uint8_t>().data();
    to = Copy(header.data(), header_bytes, to);
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const auto bytes = ctx->input(i).tensor_data();
      to = Copy(bytes.data(), bytes.size(), to);
    }
  }

 private:
  // Copies, and fills up with zeros; returns the next place.
  static uint8_t* Copy(const void* from, int64_t bytes, uint8_t* to) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    const int64_t aligned = Aligned(bytes);
    std::memset(to + bytes, 0, aligned - bytes);
    return to + aligned;
  }
};

class UnbundleOp : public OpKernel {
 public:
  explicit UnbundleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &types_));
    OP_REQUIRES_OK(ctx, CheckTypes(types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shapes", &shapes_));
    if (shapes_.empty()) shapes_.resize(types_.size());
    OP_REQUIRES_OK(ctx, CheckListSize("shapes", shapes_.size(),
                                      static_cast<int>(types_.size())));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& bundle = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckVector("bundle", bundle));
    std::vector<TensorShape> shapes;
    int64_t start = 0;
    OP_REQUIRES_OK(ctx, ReadHeader(bundle, &shapes, &start));
    for (size_t i = 0; i < types_.size(); ++i) {
      const int64_t bytes =
          shapes[i].num_elements() * tensorflow::DataTypeSize(types_[i]);
      OP_REQUIRES(ctx, bytes <= bundle.NumElements() - start,
                  Malformed(absl::StrCat("value ", i, " ends after it")));
      OP_REQUIRES(
          ctx, shapes_[i].IsCompatibleWith(shapes[i]),
          InvalidArgument("value ", i, " must be of shape shapes[", i,
                          "] = ", shapes_[i].DebugString(),
                          ", but its shape is ", shapes[i].DebugString(), "."));
      Tensor value;
      OP_REQUIRES_OK(ctx, Take(ctx, bundle.Slice(start, start + bytes),
                               types_[i], shapes[i], &value));
      ctx->set_output(i, value);
      start += Aligned(bytes);
    }
    OP_REQUIRES(ctx, start == bundle.NumElements(),
                Malformed(absl::StrCat("its values have ", start, " bytes")));
  }

 private:
  static absl::Status Malformed(absl::string_view what) {
    return InvalidArgument(
        "bundle must be the output of Bundle for the types T, but ", what, ".");
  }

  absl::Status ReadHeader(const Tensor& bundle,
                          std::vector<TensorShape>* shapes,
                          int64_t* end) const {
    const int64_t limit = bundle.NumElements() / sizeof(int64_t);
    const char* data = bundle.tensor_data().data();
    int64_t place = 0;
    const auto next = [&](int64_t* number) {
      if (place == limit) return false;
      std::memcpy(number, data + place * sizeof(int64_t), sizeof(int64_t));
      ++place;
      return true;
    };
    for (size_t i = 0; i < types_.size(); ++i) {
      int64_t rank = 0;
      if (!next(&rank) || rank < 0 || rank > TensorShape::MaxDimensions()) {
        return Malformed(absl::StrCat("value ", i, " has no rank"));
      }
      std::vector<int64_t> sizes(rank);
      for (int64_t& size : sizes) {
        if (!next(&size)) {
          return Malformed(absl::StrCat("value ", i, " has no shape"));
        }
      }
      TensorShape shape;
      TF_RETURN_IF_ERROR(MakeShape("values", sizes, &shape));
      // So that the number of bytes does not overflow.
      if (shape.num_elements() > bundle.NumElements()) {
        return Malformed(absl::StrCat("value ", i, " is larger"));
      }
      shapes->push_back(shape);
    }
    *end = Aligned(place * sizeof(int64_t));
    if (*end > bundle.NumElements()) return Malformed("it is too short");
    return absl::OkStatus();
  }

  // The part of a bundle as a tensor: in place, unless it is not aligned.
  static absl::Status Take(OpKernelContext* ctx, const Tensor& part,
                           DataType type, const TensorShape& shape,
                           Tensor* value) {
    if (part.IsAligned()) return value->BitcastFrom(part, type, shape);
    TF_RETURN_IF_ERROR(ctx->allocate_temp(type, shape, value));
    const auto bytes = part.tensor_data();
    if (!bytes.empty()) {
      std::memcpy(value->data(), bytes.data(), bytes.size());
    }
    return absl::OkStatus();
  }

  std::vector<DataType> types_;
  std::vector<PartialTensorShape> shapes_;
};

class BundleTransfersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext*) override {}
  bool IsExpensive() override { return false; }
};

class NextStageOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      ctx->set_output(i, ctx->input(i));
    }
  }
  bool IsExpensive() override { return false; }
};

TF_EXT_REGISTER_KERNEL(Bundle, BundleOp);
TF_EXT_REGISTER_KERNEL(Unbundle, UnbundleOp);
TF_EXT_REGISTER_KERNEL(BundleTransfers, BundleTransfersOp);
TF_EXT_REGISTER_KERNEL(NextStage, NextStageOp);

}  // namespace
}  // namespace tf_ext
