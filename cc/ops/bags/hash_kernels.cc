// SPDX-License-Identifier: Apache-2.0
// The kernel that turns raw feature values into signs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/hash_strings.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/op_counts.h"

namespace tf_ext {
namespace {

// The op's attributes that describe the columns.
struct ColumnAttrs {
  std::vector<std::string> namespaces;
  std::vector<int64_t> bucket_sizes;
  std::vector<bool> identity;
  std::vector<int64_t> part_counts;
  std::vector<int64_t> part_inputs;
  std::vector<int64_t> part_bucket_sizes;
  std::vector<bool> part_has_missing;
  std::vector<std::string> part_missing;
  std::vector<int64_t> part_boundary_counts;
  std::vector<float> part_boundaries;

  absl::Status Read(OpKernelConstruction* ctx);
  absl::Status Check() const;
  std::vector<HashColumn> Columns() const;
};

absl::Status ColumnAttrs::Read(OpKernelConstruction* ctx) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("namespaces", &namespaces));
  TF_RETURN_IF_ERROR(ctx->GetAttr("bucket_sizes", &bucket_sizes));
  TF_RETURN_IF_ERROR(ctx->GetAttr("identity", &identity));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_counts", &part_counts));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_inputs", &part_inputs));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_bucket_sizes", &part_bucket_sizes));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_has_missing", &part_has_missing));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_missing", &part_missing));
  TF_RETURN_IF_ERROR(
      ctx->GetAttr("part_boundary_counts", &part_boundary_counts));
  TF_RETURN_IF_ERROR(ctx->GetAttr("part_boundaries", &part_boundaries));
  return Check();
}

absl::Status CheckAttrSize(absl::string_view name, size_t size, size_t wanted,
                           absl::string_view size_of) {
  if (size == wanted) return absl::OkStatus();
  return InvalidArgument(name, " must have ", wanted, " values (", size_of,
                         "), but has ", size, ".");
}

// Checks numbers of parts or boundaries: each at least `least`, with the sum
// `wanted`.
absl::Status CheckCounts(absl::string_view name,
                         const std::vector<int64_t>& counts, int64_t least,
                         size_t wanted, absl::string_view counted) {
  int64_t left = static_cast<int64_t>(wanted);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < least || counts[i] > left) {
      return InvalidArgument(name, "[", i, "] must be in [", least, ", ", left,
                             "], what ", counted, " has left, but it is ",
                             counts[i], ".");
    }
    left -= counts[i];
  }
  if (left == 0) return absl::OkStatus();
  return InvalidArgument(counted, " must have ", wanted - left,
                         " values (the sum of ", name, "), but has ", wanted,
                         ".");
}

absl::Status ColumnAttrs::Check() const {
  const size_t columns = namespaces.size();
  constexpr char kColumns[] = "one a column, as namespaces";
  TF_RETURN_IF_ERROR(
      CheckAttrSize("bucket_sizes", bucket_sizes.size(), columns, kColumns));
  TF_RETURN_IF_ERROR(
      CheckAttrSize("identity", identity.size(), columns, kColumns));
  TF_RETURN_IF_ERROR(
      CheckAttrSize("part_counts", part_counts.size(), columns, kColumns));
  const size_t parts = part_inputs.size();
  constexpr char kParts[] = "one a part, as part_inputs";
  TF_RETURN_IF_ERROR(CheckAttrSize("part_bucket_sizes",
                                   part_bucket_sizes.size(), parts, kParts));
  TF_RETURN_IF_ERROR(CheckAttrSize("part_has_missing", part_has_missing.size(),
                                   parts, kParts));
  TF_RETURN_IF_ERROR(
      CheckAttrSize("part_missing", part_missing.size(), parts, kParts));
  TF_RETURN_IF_ERROR(CheckAttrSize("part_boundary_counts",
                                   part_boundary_counts.size(), parts, kParts));
  TF_RETURN_IF_ERROR(
      CheckCounts("part_counts", part_counts, 1, parts, "part_inputs"));
  return CheckCounts("part_boundary_counts", part_boundary_counts, 0,
                     part_boundaries.size(), "part_boundaries");
}

std::vector<HashColumn> ColumnAttrs::Columns() const {
  std::vector<HashColumn> columns(namespaces.size());
  size_t p = 0;
  auto boundary = part_boundaries.begin();
  for (size_t c = 0; c < columns.size(); ++c) {
    HashColumn& column = columns[c];
    column.ns = namespaces[c];
    column.bucket_size = bucket_sizes[c];
    column.identity = identity[c];
    column.parts.resize(part_counts[c]);
    for (HashPart& part : column.parts) {
      part.input = part_inputs[p];
      part.bucket_size = part_bucket_sizes[p];
      part.has_missing = part_has_missing[p];
      part.missing = part_missing[p];
      part.boundaries.assign(boundary, boundary + part_boundary_counts[p]);
      boundary += part_boundary_counts[p];
      ++p;
    }
  }
  return columns;
}

ValueType ToValueType(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_STRING:
      return ValueType::kString;
    case tensorflow::DT_INT32:
      return ValueType::kInt32;
    case tensorflow::DT_FLOAT:
      return ValueType::kFloat;
    default:  // not reached: the op allows no other type
      return ValueType::kInt64;
  }
}

// Converts an input of the op to the core's; tensors must outlive the result.
absl::Status ToHashInput(int i, const Tensor& values, const Tensor& row_splits,
                         const Tensor& weights, HashInput* input) {
  if (values.dims() == 0) {
    return InvalidArgument(
        "values[", i,
        "] must have a rank of at least 1, the batch, but is a"
        " scalar.");
  }
  TF_RETURN_IF_ERROR(
      CheckVector(absl::StrCat("row_splits[", i, "]"), row_splits));
  if (values.dtype() == tensorflow::DT_STRING) {
    SetStrings(values.flat<tstring>().data(), input);
  } else {
    input->type = ToValueType(values.dtype());
    input->values = values.data();
  }
  input->n = values.NumElements();
  input->batch = values.dim_size(0);
  if (row_splits.NumElements() > 0) {
    TF_RETURN_IF_ERROR(CheckVector(
        absl::StrCat("values[", i, "], which has row_splits,"), values));
    input->batch = row_splits.NumElements() - 1;
    input->row_splits = row_splits.flat<int64_t>().data();
  }
  const int64_t num_weights = weights.NumElements();
  if (num_weights != 0 && num_weights != input->n) {
    return InvalidArgument("weights[", i, "] must have ", input->n,
                           " values, one for each of"
                           " values[",
                           i, "], or none, but has ", num_weights, ".");
  }
  if (num_weights > 0) input->weights = weights.flat<float>().data();
  return absl::OkStatus();
}

// The batch size of an input, which may be invalid otherwise; -1 if it has
// none.
int64_t BatchSize(const Tensor& values, const Tensor& row_splits) {
  if (row_splits.dims() != 1) return -1;
  if (row_splits.NumElements() > 0) return row_splits.NumElements() - 1;
  return values.dims() > 0 ? values.dim_size(0) : -1;
}

class HashCategoryOp : public OpKernel {
 public:
  explicit HashCategoryOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    ColumnAttrs attrs;
    OP_REQUIRES_OK(ctx, attrs.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("return_error", &return_error_));
    std::vector<DataType> types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tin", &types));
    int64_t num_inputs;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &num_inputs));
    OP_REQUIRES_OK(ctx, CheckAttrSize("Tin", types.size(), num_inputs,
                                      "N, the number of inputs"));
    std::vector<ValueType> value_types;
    for (const DataType type : types) value_types.push_back(ToValueType(type));
    OP_REQUIRES_OK(ctx, ToTf(ColumnHasher::Create(attrs.Columns(), value_types,
                                                  &hasher_)));
  }

  void Compute(OpKernelContext* ctx) override {
    const auto begin = OpCounts::Clock::now();
    std::vector<HashInput> inputs;
    int64_t batch = 0;
    absl::Status error = ReadInputs(ctx, &inputs);
    if (error.ok()) error = ToTf(hasher_->CheckInputs(inputs, &batch));
    OP_REQUIRES(ctx, error.ok() || return_error_, error);
    if (!error.ok()) batch = BatchSizeDespiteError(ctx);

    const ParallelFor parallel_for = MakeParallelFor(ctx);
    const int64_t bags = hasher_->num_columns() * batch;
    int64_t* splits = nullptr;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, kSignSplits,
                                       TensorShape({bags + 1}), &splits));
    if (error.ok()) {
      error = ToTf(hasher_->CountSigns(inputs, batch, parallel_for, splits));
    }
    OP_REQUIRES(ctx, error.ok() || return_error_, error);
    if (!error.ok()) std::fill_n(splits, bags + 1, 0);

    int64_t* signs = nullptr;
    OP_REQUIRES_OK(
        ctx, AllocateOutput(ctx, kSigns, TensorShape({splits[bags]}), &signs));
    float* weights = nullptr;
    const bool weighted = error.ok() && hasher_->HasWeights(inputs);
    OP_REQUIRES_OK(
        ctx,
        AllocateOutput(ctx, kSignWeights,
                       TensorShape({weighted ? splits[bags] : 0}), &weights));
    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, kError, tstring(error.message())));
    if (!error.ok()) return;
    hasher_->Hash(inputs, batch, splits, parallel_for, signs,
                  weighted ? weights : nullptr);
    CountsOfHashing().Add(splits[bags], begin);
  }

 private:
  enum Outputs { kSigns, kSignSplits, kSignWeights, kError };

  static absl::Status ReadInputs(OpKernelContext* ctx,
                                 std::vector<HashInput>* inputs) {
    OpInputList values, row_splits, weights;
    TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
    TF_RETURN_IF_ERROR(ctx->input_list("row_splits", &row_splits));
    TF_RETURN_IF_ERROR(ctx->input_list("weights", &weights));
    inputs->resize(values.size());
    for (int i = 0; i < values.size(); ++i) {
      TF_RETURN_IF_ERROR(
          ToHashInput(i, values[i], row_splits[i], weights[i], &(*inputs)[i]));
    }
    return absl::OkStatus();
  }

  // The batch size of the first input that has one; 0 if there is none, or its
  // bags would be too many.
  int64_t BatchSizeDespiteError(OpKernelContext* ctx) const {
    OpInputList values, row_splits;
    if (!ctx->input_list("values", &values).ok() ||
        !ctx->input_list("row_splits", &row_splits).ok()) {
      return 0;
    }
    for (int i = 0; i < values.size(); ++i) {
      const int64_t batch = BatchSize(values[i], row_splits[i]);
      if (batch < 0) continue;
      return batch <= kMaxSignsPerCall / hasher_->num_columns() ? batch : 0;
    }
    return 0;
  }

  std::unique_ptr<ColumnHasher> hasher_;
  bool return_error_ = false;
};

TF_EXT_REGISTER_KERNEL(HashCategory, HashCategoryOp);

}  // namespace
}  // namespace tf_ext
