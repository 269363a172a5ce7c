// SPDX-License-Identifier: Apache-2.0
// The pass that saves the copies of a concatenation of bags.
//
// A model with several tables most often concatenates what it reads from them.
// When a graph is complete, this pass replaces such a concatenation, and the
// CombineBags whose results only it needs, by one CombineBagsConcat.
//
// Nodes with an edge between them run under the same conditions: what enters or
// leaves a loop or a branch of tf.cond does so by nodes of its own, such as
// Switch and Merge.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/passes/graph_pass.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_ext {
namespace {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;
using tensorflow::Tensor;

const Edge& InputEdge(const Node& node, int input) {
  const Edge* edge = nullptr;
  TF_CHECK_OK(node.input_edge(input, &edge));
  return *edge;
}

NodeBuilder::NodeOut Input(const Node& node, int input) {
  const Edge& edge = InputEdge(node, input);
  return {edge.src(), edge.src_output()};
}

std::vector<const Edge*> OutEdges(const Node& node) {
  return {node.out_edges().begin(), node.out_edges().end()};
}

bool IsShape(const Node& node) {
  return node.type_string() == "Shape" || node.type_string() == "ShapeN";
}

class BagsConcatenator {
 public:
  static constexpr char kOp[] = "TfExt>CombineBags";

  explicit BagsConcatenator(Graph* graph) : graph_(*graph) {}

  absl::Status Run() {
    std::vector<Node*> concats;
    for (Node* node : graph_.op_nodes()) {
      if (node->type_string() == "ConcatV2") concats.push_back(node);
    }
    for (Node* node : concats) TF_RETURN_IF_ERROR(WriteIntoWhole(node));
    return absl::OkStatus();
  }

 private:
  // What `node` waits for by control edges, `after` waits for as well.
  void KeepOrder(const Node& node, Node* after) {
    for (const Edge* edge : node.in_edges()) {
      if (edge->IsControlEdge()) graph_.AddControlEdge(edge->src(), after);
    }
  }

  // Lets the end of an edge have its input from another node.
  absl::Status Move(const Edge& edge, Node* from, int output) {
    if (edge.IsControlEdge()) {
      graph_.AddControlEdge(from, edge.dst());
      return absl::OkStatus();
    }
    return graph_.UpdateEdge(from, output, edge.dst(), edge.dst_input());
  }

  absl::Status WriteIntoWhole(Node* concat) {
    if (!JoinsColumns(*concat)) return absl::OkStatus();
    std::vector<Node*> bags;
    std::vector<int32_t> places;
    std::vector<NodeBuilder::NodeOut> others;
    for (int i = 0; i + 1 < concat->num_inputs(); ++i) {
      Node* const from = InputEdge(*concat, i).src();
      if (IsOnlyFor(*from, *concat)) {
        bags.push_back(from);
        places.push_back(i);
      } else {
        others.push_back(Input(*concat, i));
      }
    }
    DataType shape_type = tensorflow::DT_INT32;
    if (bags.empty() || !HaveOneShapeType(bags, &shape_type) ||
        WouldCloseCycle(bags, *concat)) {
      return absl::OkStatus();
    }
    Node* whole = nullptr;
    TF_RETURN_IF_ERROR(
        MakeWhole(*concat, bags, places, others, shape_type, &whole));
    // First, as bags that it also waits for become one with it.
    KeepOrder(*concat, whole);
    for (size_t i = 0; i < bags.size(); ++i) {
      TF_RETURN_IF_ERROR(ReplaceBags(bags[i], whole, static_cast<int>(1 + i)));
    }
    for (const Edge* edge : OutEdges(*concat)) {
      TF_RETURN_IF_ERROR(Move(*edge, whole, 0));
    }
    graph_.RemoveNode(concat);
    return absl::OkStatus();
  }

  // Along the second axis, which is the last one of bags.
  static bool JoinsColumns(const Node& concat) {
    const int last = concat.num_inputs() - 1;
    const Node& axis = *InputEdge(concat, last).src();
    Tensor value;
    if (last < 2 || concat.output_type(0) != tensorflow::DT_FLOAT ||
        !axis.IsConstant() ||
        !GetNodeAttr(axis.attrs(), "value", &value).ok() ||
        value.NumElements() != 1) {
      return false;
    }
    const int64_t number = value.dtype() == tensorflow::DT_INT32
                               ? value.flat<int32_t>()(0)
                               : value.flat<int64_t>()(0);
    return number == 1 || number == -1;
  }

  // Whether only the concatenation needs the values of bags.
  bool IsOnlyFor(const Node& bags, const Node& concat) const {
    if (bags.type_string() != kOp ||
        bags.assigned_device_name() != concat.assigned_device_name()) {
      return false;
    }
    int uses = 0;
    for (const Edge* edge : bags.out_edges()) {
      if (edge->IsControlEdge()) continue;
      const Node& user = *edge->dst();
      if (&user == &concat) {
        ++uses;
      } else if (!IsShape(user) ||
                 user.assigned_device_name() != bags.assigned_device_name()) {
        return false;
      }
    }
    return uses == 1;
  }

  static bool HaveOneShapeType(const std::vector<Node*>& bags, DataType* type) {
    std::set<DataType> types;
    for (const Node* node : bags) {
      for (const Edge* edge : node->out_edges()) {
        if (IsShape(*edge->dst())) types.insert(edge->dst()->output_type(0));
      }
    }
    if (!types.empty()) *type = *types.begin();
    return types.size() <= 1;
  }

  // Whether what is concatenated waits for something that waits for bags, such
  // as their shapes.
  bool WouldCloseCycle(const std::vector<Node*>& bags,
                       const Node& concat) const {
    std::vector<const Node*> found;
    for (const Node* node : bags) {
      for (const Edge* edge : node->out_edges()) {
        if (edge->dst() != &concat) found.push_back(edge->dst());
      }
    }
    std::vector<bool> seen(graph_.num_node_ids(), false);
    while (!found.empty()) {
      const Node* const node = found.back();
      found.pop_back();
      if (node == &concat) return true;  // Also by way of bags.
      if (seen[node->id()] || node->IsNextIteration()) continue;
      seen[node->id()] = true;
      for (const Edge* edge : node->out_edges()) found.push_back(edge->dst());
    }
    return false;
  }

  absl::Status MakeWhole(const Node& concat, const std::vector<Node*>& bags,
                         const std::vector<int32_t>& places,
                         const std::vector<NodeBuilder::NodeOut>& others,
                         DataType shape_type, Node** whole) {
    std::vector<std::string> combiners;
    std::vector<int32_t> columns;
    for (const Node* node : bags) {
      std::vector<std::string> its;
      TF_RETURN_IF_ERROR(GetNodeAttr(node->attrs(), "combiners", &its));
      combiners.insert(combiners.end(), its.begin(), its.end());
      columns.push_back(static_cast<int32_t>(its.size()));
    }
    NodeBuilder builder(graph_.NewName(concat.name()),
                        "TfExt>CombineBagsConcat", graph_.op_registry());
    for (int i = 0; i < bags[0]->num_inputs(); ++i) {
      std::vector<NodeBuilder::NodeOut> inputs;
      for (const Node* node : bags) inputs.push_back(Input(*node, i));
      builder.Input(inputs);
    }
    return builder.Input(others)
        .Attr("columns", columns)
        .Attr("combiners", combiners)
        .Attr("places", places)
        .Attr("out_type", shape_type)
        .Device(concat.requested_device())
        .AssignedDevice(concat.assigned_device_name())
        .Finalize(&graph_, whole);
  }

  // The bags' shape is an output of `whole`.
  absl::Status ReplaceBags(Node* bags, Node* whole, int shape) {
    std::set<Node*> shapes;
    for (const Edge* edge : OutEdges(*bags)) {
      if (edge->IsControlEdge()) {
        graph_.AddControlEdge(whole, edge->dst());
      } else if (IsShape(*edge->dst())) {
        shapes.insert(edge->dst());
      }
    }
    for (Node* node : shapes) {
      TF_RETURN_IF_ERROR(ReplaceShape(*bags, node, whole, shape));
    }
    KeepOrder(*bags, whole);
    graph_.RemoveNode(bags);
    return absl::OkStatus();
  }

  // A ShapeN stays if outputs of it that are of other tensors are needed.
  absl::Status ReplaceShape(const Node& bags, Node* node, Node* whole,
                            int shape) {
    for (const Edge* edge : OutEdges(*node)) {
      if (edge->IsControlEdge() ||
          InputEdge(*node, edge->src_output()).src() != &bags) {
        continue;
      }
      KeepOrder(*node, edge->dst());
      TF_RETURN_IF_ERROR(Move(*edge, whole, shape));
    }
    const std::vector<const Edge*> left = OutEdges(*node);
    if (std::any_of(left.begin(), left.end(),
                    [](const Edge* edge) { return !edge->IsControlEdge(); })) {
      // Any tensor will do where the output has no use.
      for (int i = 0; i < node->num_inputs(); ++i) {
        if (InputEdge(*node, i).src() == &bags) {
          TF_RETURN_IF_ERROR(graph_.UpdateEdge(whole, 0, node, i));
        }
      }
      return absl::OkStatus();
    }
    for (const Edge* edge : left) {
      KeepOrder(*node, edge->dst());
      graph_.AddControlEdge(whole, edge->dst());
    }
    graph_.RemoveNode(node);
    return absl::OkStatus();
  }

  Graph& graph_;
};

REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    GraphPass<BagsConcatenator>);

}  // namespace
}  // namespace tf_ext
