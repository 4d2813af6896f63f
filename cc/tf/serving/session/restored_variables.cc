#include "tf/serving/session/restored_variables.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/protobuf/saved_object_graph.pb.h"

namespace group_embedding {
namespace {

using ::tensorflow::MetaGraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::SavedObjectGraph;
using ::tensorflow::Tensor;
using ::tensorflow::TrackableObjectGraph;
using ::tensorflow::tstring;

// The strings of a constant; none if the node is none.
std::vector<std::string> ConstantStrings(const NodeDef& node) {
  const auto value = node.attr().find("value");
  Tensor tensor;
  if (node.op() != "Const" || value == node.attr().end() ||
      !tensor.FromProto(value->second.tensor()) || tensor.dtype() != tensorflow::DT_STRING) {
    return {};
  }
  std::vector<std::string> strings;
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    strings.emplace_back(tensor.flat<tstring>()(i));
  }
  return strings;
}

// Whether a slice, as of RestoreV2, is all of a variable: "", or "4 3 0,4:0,3" of a variable [4, 3]
// whose partitioner made one part.
bool IsWhole(const std::string& slice) {
  std::istringstream words(slice);
  std::vector<std::string> sizes;
  for (std::string word; words >> word;) sizes.push_back(word);
  if (sizes.empty()) return true;
  std::istringstream extents(sizes.back());
  sizes.pop_back();
  for (const std::string& size : sizes) {
    std::string extent;
    if (!std::getline(extents, extent, ':') || (extent != "-" && extent != "0," + size)) {
      return false;
    }
  }
  return true;
}

// {number of an object of the SavedModel: the checkpoint's key of its value}. An object is the same
// in both if the same names lead to it from the root.
std::map<int, std::string> KeysOf(const SavedObjectGraph& saved,
                                  const TrackableObjectGraph& checkpoint) {
  std::map<int, std::string> keys;
  std::set<int> seen = {0};
  std::vector<std::pair<int, int>> left = {{0, 0}};
  while (!left.empty()) {
    const auto [in_saved, in_checkpoint] = left.back();
    left.pop_back();
    if (in_saved < 0 || in_saved >= saved.nodes_size() || in_checkpoint < 0 ||
        in_checkpoint >= checkpoint.nodes_size()) {
      continue;  // a damaged file
    }
    const auto& node = checkpoint.nodes(in_checkpoint);
    if (node.attributes_size() == 1) keys[in_saved] = node.attributes(0).checkpoint_key();
    std::map<std::string, int> children;
    for (const auto& child : node.children()) children[child.local_name()] = child.node_id();
    for (const auto& child : saved.nodes(in_saved).children()) {
      const auto same = children.find(child.local_name());
      if (same != children.end() && seen.insert(child.node_id()).second) {
        left.emplace_back(child.node_id(), same->second);
      }
    }
  }
  return keys;
}

// {key in the checkpoint: the graph's node of the variable that is restored from it}.
std::map<std::string, std::string> RestoredNodes(MetaGraphDef* meta) {
  const GraphWalk walk(meta->mutable_graph_def());
  std::map<std::string, std::string> nodes;
  for (const NodeDef& node : meta->graph_def().node()) {
    if (node.op() != "VarHandleOp") continue;
    for (const GraphWalk::Use& use : walk.UsesOf(node.name())) {
      if (use.node->op() != "AssignVariableOp" || use.input != 0) continue;
      const std::string key = RestoredBy(use).key;
      if (!key.empty()) nodes[key] = node.name();
    }
  }
  return nodes;
}

// {a variable's node that functions are called with: the checkpoint's key of its object}.
std::map<std::string, std::string> KeysOfCalls(const MetaGraphDef& meta,
                                               const std::map<int, std::string>& keys) {
  std::set<std::string> variables;
  for (const NodeDef& node : meta.graph_def().node()) {
    if (node.op() == "VarHandleOp") variables.insert(node.name());
  }
  std::map<std::string, std::string> found;
  for (const NodeDef& node : meta.graph_def().node()) {
    const auto function = node.attr().find("f");
    if (function == node.attr().end()) continue;
    const auto& functions = meta.object_graph_def().concrete_functions();
    const auto called = functions.find(function->second.func().name());
    if (called == functions.end()) continue;
    // The last arguments are what the function captured.
    const auto& captured = called->second.bound_inputs();
    const auto is_control = [](const std::string& input) { return input.rfind("^", 0) == 0; };
    const auto end = std::find_if(node.input().begin(), node.input().end(), is_control);
    const int first = static_cast<int>(end - node.input().begin()) - captured.size();
    for (int i = 0; first >= 0 && i < captured.size(); ++i) {
      const std::string variable = NodeOf(node.input(first + i));
      const auto key = keys.find(captured.Get(i));
      if (variables.count(variable) > 0 && key != keys.end()) found[variable] = key->second;
    }
  }
  return found;
}

}  // namespace

Restored RestoredBy(const GraphWalk::Use& use) {
  Restored found;
  if (use.node->input_size() < 2) return found;
  std::string input = use.node->input(1);
  for (int step = 0; step < 8 && found.restore == nullptr; ++step) {
    const auto node = use.nodes->find(NodeOf(input));
    if (node == use.nodes->end()) return found;
    if (node->second->op() == "RestoreV2") {
      found.restore = node->second;
    } else if (node->second->op() == "Identity" && node->second->input_size() > 0) {
      found.passed.push_back(node->second);
      input = node->second->input(0);
    } else {
      return found;
    }
  }
  if (found.restore == nullptr || found.restore->input_size() < 3) return found;
  auto constant = [&](int i) {
    const auto node = use.nodes->find(NodeOf(found.restore->input(i)));
    return node == use.nodes->end() ? std::vector<std::string>() : ConstantStrings(*node->second);
  };
  const std::vector<std::string> keys = constant(1), slices = constant(2);
  const size_t colon = input.rfind(':');
  const std::string index = colon == input.npos ? "0" : input.substr(colon + 1);
  if (index.empty() || index.size() > 6 || index.find_first_not_of("0123456789") != index.npos) {
    return found;
  }
  const size_t at = std::stoul(index);
  if (at < keys.size() && at < slices.size() && IsWhole(slices[at])) {
    found.key = keys[at];
    found.output = static_cast<int>(at);
  }
  return found;
}

void JoinVariables(const TrackableObjectGraph& objects, MetaGraphDef* meta) {
  const auto called = KeysOfCalls(*meta, KeysOf(meta->object_graph_def(), objects));
  if (called.empty()) return;
  const std::map<std::string, std::string> restored = RestoredNodes(meta);
  std::set<std::string> complete;
  for (const auto& [key, node] : restored) complete.insert(node);
  std::map<std::string, std::string> others;
  for (const auto& [node, key] : called) {
    const auto other = restored.find(key);
    if (other != restored.end() && complete.count(node) == 0) others[node] = other->second;
  }
  if (others.empty()) return;
  for (NodeDef& node : *meta->mutable_graph_def()->mutable_node()) {
    for (std::string& input : *node.mutable_input()) {
      const auto other = others.find(input);
      if (other != others.end()) input = other->second;
    }
  }
}

}  // namespace group_embedding
