// SPDX-License-Identifier: Apache-2.0
// The interface of the op that says which versions a process runs.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ext {
namespace {

using tensorflow::shape_inference::InferenceContext;

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
