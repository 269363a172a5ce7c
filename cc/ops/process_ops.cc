// SPDX-License-Identifier: Apache-2.0
// The interface of the ops that say what a process of a cluster is: its
// versions, and its task.

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

REGISTER_OP("TfExt>SetTask")
    .Input("task: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({{"task"}}, {}))
    .Doc(R"doc(
Records as which task of which cluster the process of the op's device runs.

task: Scalar. A description, which Task returns.
)doc");

REGISTER_OP("TfExt>Task")
    .Output("task: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({}, {{}}))
    .Doc(R"doc(
The task that SetTask has recorded in the process of the op's device.

task: Scalar. Empty if none has been recorded.
)doc");

// Stateful: a graph must not be given the versions of the process that
// optimises it.
REGISTER_OP("TfExt>Versions")
    .Output("versions: string")
    .SetIsStateful()
    .SetShapeFn(Shapes({}, {{2}}))
    .Doc(R"doc(
The versions of tf_ext and of TensorFlow in the process of the op's device.

versions: `[2]`. The versions of tf_ext and TensorFlow, such as "0.1.0" and
  "2.21.0".
)doc");

}  // namespace
}  // namespace tf_ext
