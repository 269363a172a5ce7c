// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that say as which task a process was started.

#include "absl/status/status.h"
#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfExt>SetTask")
    .Input("task: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      return InputOfRank(c, "task", 0, &unused);
    })
    .Doc(R"doc(
Records as which task of which cluster the process of the op's device runs.

task: Scalar. A description, which Task returns.
)doc");

REGISTER_OP("TfExt>Task")
    .Output("task: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The task that SetTask has recorded in the process of the op's device.

task: Scalar. Empty if none has been recorded.
)doc");

}  // namespace
}  // namespace tf_ext
