// SPDX-License-Identifier: Apache-2.0
// The inputs of the ops on bags.
#ifndef TF_EXT_CC_OPS_BAGS_BAG_INPUTS_H_
#define TF_EXT_CC_OPS_BAGS_BAG_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/bags/combine.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ext {

// The attr "combiners".
absl::Status GetCombiners(tensorflow::OpKernelConstruction* ctx,
                          std::vector<Combiner>* combiners);

// Of one table.
struct BagTensors {
  const tensorflow::Tensor& rows;
  const tensorflow::Tensor& inverse;
  const tensorflow::Tensor& row_splits;
  const tensorflow::Tensor& weights;
};

// Checks that the sizes agree. `place` follows the names of the tensors in
// errors: "", or "[1]" if there are lists of them.
absl::Status MakeBags(const BagTensors& tensors, const std::string& place,
                      const std::vector<Combiner>& combiners, Bags* bags);

// The columns of the combined bags: those of an empty tensor of rows may be too
// many.
absl::Status CombinedWidth(const Bags& bags, int64_t* width);

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_BAGS_BAG_INPUTS_H_
