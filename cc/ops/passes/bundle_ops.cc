// SPDX-License-Identifier: Apache-2.0
// The interfaces of the ops that send tensors together.

#include <string>
#include <vector>

#include "cc/ops/kernel_util.h"
#include "tensorflow/core/framework/op.h"

namespace tf_ext {
namespace {

absl::Status UnbundleShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(InputOfRank(c, "bundle", 1, &unused));
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  if (shapes.empty()) shapes.resize(c->num_outputs());
  TF_RETURN_IF_ERROR(CheckListSize("shapes", shapes.size(), c->num_outputs()));
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("TfExt>BundleTransfers")
    .SetIsStateful()
    .SetShapeFn(Shapes({}, {}))
    .Doc(R"doc(
Does nothing, and marks a function whose tensors travel in bundles.

Where the function runs on several tasks, the tensors that one task sends to
another and that do not depend on its answers are sent in one message.
)doc");

REGISTER_OP("TfExt>NextStage")
    .Input("values: T")
    .Output("same: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns tensors unchanged, and keeps what follows apart from what is before.

In functions with BundleTransfers, tensors that are made from these values do
not travel together with those that these values waited for.
)doc");

REGISTER_OP("TfExt>Bundle")
    .Input("values: T")
    .Output("bundle: uint8")
    .Attr("T: list(type) >= 0")
    .SetShapeFn(Shapes({}, {{-1}}))
    .Doc(R"doc(
Puts tensors, with their shapes, into one.

values: Of types that are copied byte by byte.
bundle: `[bytes]`, for Unbundle.
)doc");

REGISTER_OP("TfExt>Unbundle")
    .Input("bundle: uint8")
    .Output("values: T")
    .Attr("T: list(type) >= 0")
    .Attr("shapes: list(shape) >= 0 = []")
    .SetShapeFn(UnbundleShape)
    .Doc(R"doc(
Takes the tensors from a bundle. They share its memory.

bundle: `[bytes]`, from Bundle.
values: Of the types that were put in.
shapes: What is known of the shape of each value; empty if nothing is.
)doc");

}  // namespace
}  // namespace tf_ext
