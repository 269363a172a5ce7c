// SPDX-License-Identifier: Apache-2.0
// The passes over graphs that have a certain op.
#ifndef TF_EXT_CC_OPS_PASSES_GRAPH_PASS_H_
#define TF_EXT_CC_OPS_PASSES_GRAPH_PASS_H_

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ext {

// Calls Rewriter(&graph).Run() for each graph with an op Rewriter::kOp. For
// REGISTER_OPTIMIZATION.
template <typename Rewriter>
class GraphPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) {
      return absl::OkStatus();
    }
    tensorflow::Graph& graph = **options.graph;
    for (const tensorflow::Node* node : graph.op_nodes()) {
      if (node->type_string() == Rewriter::kOp) return Rewriter(&graph).Run();
    }
    return absl::OkStatus();
  }
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_OPS_PASSES_GRAPH_PASS_H_
