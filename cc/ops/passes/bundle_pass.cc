// SPDX-License-Identifier: Apache-2.0
// The pass that lets the tensors between two tasks travel in bundles.
//
// TensorFlow sends every tensor that a task needs from another one in a message
// of its own, each at the cost of a call. In functions that have the op
// BundleTransfers, this pass sends those together that can be. The stage of a
// node is the largest number of transfers on a way to it. Tensors from one
// device to another that are needed first at the same stage make a bundle. What
// the bundle depends on is of earlier stages, so none of it depends on what
// needs the bundle, and the graph stays free of cycles. Control edges travel
// along.
//
// The op NextStage counts as transfers. So of two computations that do not
// need each other's results, the first one's need not wait for the second one's
// to be sent, where the second one begins with NextStage after the first.
//
// What is in a branch, or in a loop or behind it, is sent as before: a bundle
// would be dead as soon as one of its tensors is.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cc/ops/passes/graph_pass.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_ext {
namespace {

using tensorflow::DataType;
using tensorflow::DeviceNameUtils;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// By how many stages NextStage keeps apart. More than a question and its answer
// take, so that answers to earlier questions have stages of their own.
constexpr int64_t kApart = 3;

// More branches than there are, so that no Merge seems to end them all.
constexpr int64_t kLoop = int64_t{1} << 32;

// What is sent from one device to another, to be there at one stage.
struct Transfer {
  // The edges of each tensor.
  std::vector<std::vector<const Edge*>> tensors;
  std::vector<const Edge*> controls;
};

class Bundler {
 public:
  static constexpr char kOp[] = "TfExt>BundleTransfers";

  explicit Bundler(Graph* graph) : graph_(*graph) {}

  absl::Status Run() {
    FindStages();
    for (const auto& [key, transfer] : FindTransfers()) {
      if (transfer.tensors.size() + transfer.controls.size() < 2) continue;
      TF_RETURN_IF_ERROR(Bundle(std::get<0>(key), std::get<1>(key), transfer));
    }
    return absl::OkStatus();
  }

 private:
  // Sending and receiving device, and the stage at which it is needed.
  using Key = std::tuple<std::string, std::string, int64_t>;

  static bool Crosses(const Edge& edge) {
    return edge.src()->IsOp() && edge.dst()->IsOp() &&
           !DeviceNameUtils::IsSameAddressSpace(
               edge.src()->assigned_device_name(),
               edge.dst()->assigned_device_name());
  }

  static bool IsOnCpu(const Node& node) {
    DeviceNameUtils::ParsedName name;
    return DeviceNameUtils::ParseFullName(node.assigned_device_name(), &name) &&
           name.has_type && name.type == tensorflow::DEVICE_CPU;
  }

  void FindStages() {
    stages_.assign(graph_.num_node_ids(), 0);
    branches_.assign(graph_.num_node_ids(), 0);
    std::vector<Node*> order;
    // Without the edges that close loops.
    tensorflow::GetReversePostOrder(graph_, &order, {}, [](const Edge& edge) {
      return !edge.src()->IsNextIteration();
    });
    for (const Node* node : order) {
      int64_t& branches = branches_[node->id()];
      for (const Edge* edge : node->in_edges()) {
        if (edge->src()->IsNextIteration()) continue;
        const int from = edge->src()->id();
        stages_[node->id()] = std::max(
            stages_[node->id()], stages_[from] + (Crosses(*edge) ? 1 : 0));
        branches = std::max(branches, branches_[from]);
      }
      if (node->IsSwitch()) {
        ++branches;
      } else if (node->IsMerge()) {
        // One of the branches is taken.
        branches = std::max<int64_t>(branches - 1, 0);
      } else if (node->IsControlFlow()) {
        branches = kLoop;
      }
      if (node->type_string() == "TfExt>NextStage") {
        stages_[node->id()] += kApart;
      }
    }
  }

  std::map<Key, Transfer> FindTransfers() const {
    // A tensor is sent to a device once, for the first node that needs it.
    std::map<std::tuple<int, int, std::string>, std::vector<const Edge*>> sent;
    std::map<Key, Transfer> transfers;
    for (const Edge* edge : graph_.edges()) {
      const Node& from = *edge->src();
      const Node& to = *edge->dst();
      if (!Crosses(*edge) || branches_[from.id()] > 0 || !IsOnCpu(from) ||
          !IsOnCpu(to)) {
        continue;
      }
      if (edge->IsControlEdge()) {
        transfers[KeyOf(*edge, stages_[to.id()])].controls.push_back(edge);
      } else if (tensorflow::DataTypeCanUseMemcpy(
                     from.output_type(edge->src_output()))) {
        sent[{from.id(), edge->src_output(), to.assigned_device_name()}]
            .push_back(edge);
      }
    }
    for (auto& [tensor, edges] : sent) {
      int64_t stage = stages_[edges[0]->dst()->id()];
      for (const Edge* edge : edges) {
        stage = std::min(stage, stages_[edge->dst()->id()]);
      }
      transfers[KeyOf(*edges[0], stage)].tensors.push_back(std::move(edges));
    }
    return transfers;
  }

  static Key KeyOf(const Edge& edge, int64_t stage) {
    return {edge.src()->assigned_device_name(),
            edge.dst()->assigned_device_name(), stage};
  }

  absl::Status Bundle(const std::string& from, const std::string& to,
                      const Transfer& transfer) {
    std::vector<NodeBuilder::NodeOut> values;
    std::vector<DataType> types;
    for (const auto& edges : transfer.tensors) {
      Node* node = edges[0]->src();
      const int output = edges[0]->src_output();
      values.emplace_back(node, output);
      types.push_back(node->output_type(output));
    }
    Node* bundle = nullptr;
    TF_RETURN_IF_ERROR(NodeBuilder(graph_.NewName("bundle"), "TfExt>Bundle",
                                   graph_.op_registry())
                           .Input(values)
                           .Attr("T", types)
                           .Device(from)
                           .AssignedDevice(from)
                           .Finalize(&graph_, &bundle));
    Node* unbundle = nullptr;
    TF_RETURN_IF_ERROR(NodeBuilder(graph_.NewName("unbundle"), "TfExt>Unbundle",
                                   graph_.op_registry())
                           .Input(bundle)
                           .Attr("T", types)
                           .Device(to)
                           .AssignedDevice(to)
                           .Finalize(&graph_, &unbundle));
    for (size_t i = 0; i < transfer.tensors.size(); ++i) {
      for (const Edge* edge : transfer.tensors[i]) {
        TF_RETURN_IF_ERROR(
            graph_.UpdateEdge(unbundle, i, edge->dst(), edge->dst_input()));
      }
    }
    for (const Edge* edge : transfer.controls) {
      graph_.AddControlEdge(edge->src(), bundle);
      graph_.AddControlEdge(unbundle, edge->dst());
      graph_.RemoveControlEdge(edge);
    }
    return absl::OkStatus();
  }

  Graph& graph_;
  // By the numbers of nodes.
  std::vector<int64_t> stages_;
  // In how many branches, one in another, they are.
  std::vector<int64_t> branches_;
};

REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
    GraphPass<Bundler>);

}  // namespace
}  // namespace tf_ext
