// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that say what a process of a cluster is: its
// versions, and its task.

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

// Stateful: a graph must not be given the versions of the process that
// optimises it.
REGISTER_OP("TfExt>Versions")
    .Output("versions: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The versions of tf_ext and of TensorFlow in the process of the op's device.

versions: `[2]`. The versions of tf_ext and TensorFlow, such as "0.1.0" and
  "2.21.0".
)doc");

}  // namespace
}  // namespace tf_ext
