// SPDX-License-Identifier: Apache-2.0
#include "cc/ops/bags/bag_inputs.h"

#include "cc/core/support/checked_math.h"
#include "cc/core/support/status.h"
#include "cc/ops/kernel_util.h"

namespace tf_ext {

absl::Status GetCombiners(OpKernelConstruction* ctx,
                          std::vector<Combiner>* combiners) {
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(ctx->GetAttr("combiners", &names));
  combiners->resize(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    TF_RETURN_IF_ERROR(ToTf(ParseCombiner(names[i], &(*combiners)[i])));
  }
  return absl::OkStatus();
}

absl::Status MakeBags(const BagTensors& tensors, const std::string& place,
                      const std::vector<Combiner>& combiners, Bags* bags) {
  const auto& [rows, inverse, row_splits, weights] = tensors;
  TF_RETURN_IF_ERROR(CheckMatrix("rows" + place, rows));
  TF_RETURN_IF_ERROR(CheckVector("inverse" + place, inverse));
  TF_RETURN_IF_ERROR(CheckVector("row_splits" + place, row_splits));
  const int64_t n = inverse.dim_size(0);
  TF_RETURN_IF_ERROR(CheckOptionalVectorOf("weights" + place, weights, n,
                                           "as inverse" + place));
  const int64_t columns = static_cast<int64_t>(combiners.size());
  const int64_t cells = row_splits.dim_size(0) - 1;
  if (cells < 0 || cells % columns != 0) {
    return InvalidArgument("row_splits", place, " must have ", columns,
                           " * batch_size + 1 values (there are ", columns,
                           " combiners), but its shape is ",
                           row_splits.shape().DebugString(), ".");
  }
  bags->combiners = combiners;
  bags->batch = cells / columns;
  bags->dim = rows.dim_size(1);
  bags->unique = rows.dim_size(0);
  bags->n = n;
  bags->rows = rows.flat<float>().data();
  bags->inverse = inverse.flat<int32_t>().data();
  bags->row_splits = row_splits.flat<int64_t>().data();
  if (weights.dim_size(0) > 0) bags->weights = weights.flat<float>().data();
  bags->singles = HaveOneValueEach(*bags);
  const Status status = CheckBags(*bags);
  if (status.ok() || place.empty()) return ToTf(status);
  return InvalidArgument("Of the bags ", place, ": ", status.message());
}

absl::Status CombinedWidth(const Bags& bags, int64_t* width) {
  *width = SaturatedMultiply(bags.columns(), bags.dim);
  if (*width < kBeyondInt64) return absl::OkStatus();
  return InvalidArgument("rows have ", bags.dim, " values each; times ",
                         bags.columns(), " combiners that is beyond int64.");
}

}  // namespace tf_ext
