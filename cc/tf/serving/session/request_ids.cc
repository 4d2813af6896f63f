#include "tf/serving/session/request_ids.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tf/serving/session/graph_walk.h"

namespace group_embedding {
namespace {

using ::tensorflow::MetaGraphDef;
using ::tensorflow::NodeDef;

// By signature, the position of an input among all of the signature's, in the order of names.
using Positions = std::map<std::string, int>;

// The placeholders that requests feed, by their nodes.
std::map<std::string, Positions> FindPlaceholders(const MetaGraphDef& meta) {
  std::set<std::string> nodes;
  for (const NodeDef& node : meta.graph_def().node()) {
    if (node.op() == "Placeholder") nodes.insert(node.name());
  }
  std::map<std::string, Positions> found;
  std::set<std::string> twice;  // in one signature
  for (const auto& [name, signature] : meta.signature_def()) {
    const std::map<std::string, tensorflow::TensorInfo> inputs(signature.inputs().begin(),
                                                               signature.inputs().end());
    int position = 0;
    for (const auto& [key, info] : inputs) {
      const std::string node = NodeOf(info.name());
      if (nodes.count(node) > 0 && !found[node].emplace(name, position).second) twice.insert(node);
      ++position;
    }
  }
  for (const std::string& node : twice) found.erase(node);
  return found;
}

// Data inputs of a node; control inputs come behind them.
int NumInputs(const NodeDef& node) {
  const auto is_control = [](const std::string& input) { return input.rfind("^", 0) == 0; };
  return static_cast<int>(std::find_if(node.input().begin(), node.input().end(), is_control) -
                          node.input().begin());
}

// What placeholders are as inputs of one GroupIds.
struct Ids {
  std::map<int, std::vector<const Positions*>> inputs;  // by input, one for each call that is made

  // Whether each input is a placeholder in all calls, and at one position in all signatures.
  bool AreOfRequest(int num_inputs, size_t num_calls) const {
    if (static_cast<int>(inputs.size()) != num_inputs) return false;
    for (const auto& [input, calls] : inputs) {
      if (calls.size() != num_calls) return false;
      const int position = calls[0]->begin()->second;
      for (const Positions* positions : calls) {
        for (const auto& [signature, other] : *positions) {
          if (other != position) return false;
        }
      }
    }
    return num_inputs > 0;
  }

  // Those that have all inputs.
  std::vector<std::string> Signatures() const {
    std::map<std::string, size_t> counts;
    for (const auto& [input, calls] : inputs) {
      std::set<std::string> names;
      for (const Positions* positions : calls) {
        for (const auto& [signature, position] : *positions) names.insert(signature);
      }
      for (const std::string& name : names) ++counts[name];
    }
    std::vector<std::string> found;
    for (const auto& [name, count] : counts) {
      if (count == inputs.size()) found.push_back(name);
    }
    return found;
  }
};

void MakeServedIds(const Ids& ids, const std::vector<std::string>& signatures, NodeDef* node) {
  node->set_op("GroupEmbedding>ServedIds");
  auto& attrs = *node->mutable_attr();
  for (const auto& [input, calls] : ids.inputs) {
    attrs["inputs"].mutable_list()->add_i(calls[0]->begin()->second);
  }
  for (const std::string& name : signatures) attrs["signatures"].mutable_list()->add_s(name);
  node->mutable_input()->DeleteSubrange(0, NumInputs(*node));
}

// A constant without elements in the place of a placeholder that nothing reads: calls pass it on.
void MakeEmpty(NodeDef* node) {
  const tensorflow::DataType dtype = TypeOf(*node, "dtype");
  NodeDef empty;
  empty.set_name(node->name());
  empty.set_op("Const");
  empty.set_device(node->device());
  (*empty.mutable_attr())["dtype"].set_type(dtype);
  auto* value = (*empty.mutable_attr())["value"].mutable_tensor();
  value->set_dtype(dtype);
  value->mutable_tensor_shape()->add_dim()->set_size(0);
  *node = empty;
}

// Tensors that a request may fetch, or that the model reads to begin with.
std::set<std::string> FetchedNodes(const MetaGraphDef& meta,
                                   const std::map<std::string, const NodeDef*>& nodes) {
  std::set<std::string> fetched;
  for (const auto& [name, signature] : meta.signature_def()) {
    for (const auto& [key, info] : signature.outputs()) {
      std::string node = NodeOf(info.name());
      for (auto found = nodes.find(node); found != nodes.end() && fetched.insert(node).second;
           found = nodes.find(node)) {
        if (found->second->op() != "Identity" || found->second->input().empty()) break;
        node = NodeOf(found->second->input(0));
      }
    }
  }
  return fetched;
}

}  // namespace

std::set<std::string> ReadIdsFromRequests(MetaGraphDef* meta) {
  const std::map<std::string, Positions> placeholders = FindPlaceholders(*meta);
  std::set<std::string> names;
  for (const auto& [name, positions] : placeholders) names.insert(name);
  const GraphWalk walk(meta->mutable_graph_def(), names);
  if (!walk.error().empty()) return {};  // as the walk from handles will tell
  std::map<NodeDef*, Ids> grouped;
  for (const auto& [name, positions] : placeholders) {
    for (const GraphWalk::Use& use : walk.UsesOf(name)) {
      if (use.node == nullptr || PlainName(use.node->op()) != "GroupIds") continue;
      grouped[use.node].inputs[use.input].push_back(&positions);
    }
  }
  std::set<const NodeDef*> replaced;
  for (const auto& [node, ids] : grouped) {
    const std::vector<std::string> signatures = ids.Signatures();
    const size_t num_calls = walk.NumVisits(node);
    if (signatures.empty() || !ids.AreOfRequest(NumInputs(*node), num_calls)) continue;
    MakeServedIds(ids, signatures, node);
    replaced.insert(node);
  }
  std::map<std::string, const NodeDef*> nodes;
  for (const NodeDef& node : meta->graph_def().node()) nodes[node.name()] = &node;
  const std::set<std::string> fetched = FetchedNodes(*meta, nodes);
  std::set<std::string> unread;
  for (NodeDef& node : *meta->mutable_graph_def()->mutable_node()) {
    if (placeholders.count(node.name()) == 0 || fetched.count(node.name()) > 0) continue;
    const auto& uses = walk.UsesOf(node.name());
    const bool is_read = std::any_of(uses.begin(), uses.end(), [&](const GraphWalk::Use& use) {
      return replaced.count(use.node) == 0;
    });
    if (is_read || uses.empty()) continue;
    MakeEmpty(&node);
    unread.insert(node.name() + ":0");
  }
  return unread;
}

}  // namespace group_embedding
