#include "tf/serving/session/rewrite_graph.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tf/serving/session/graph_walk.h"
#include "tf/serving/session/replace_nodes.h"
#include "tf/serving/session/request_ids.h"
#include "tf/serving/session/restored_variables.h"

namespace group_embedding {
namespace {

using ::tensorflow::GraphDef;
using ::tensorflow::MetaGraphDef;
using ::tensorflow::NodeDef;

// Leaves only what requests, restoring and initializing need: saving reads variables, too.
void Prune(MetaGraphDef* meta) {
  std::vector<std::string> left = {NodeOf(meta->saver_def().filename_tensor_name()),
                                   NodeOf(meta->saver_def().restore_op_name())};
  for (const auto& [name, signature] : meta->signature_def()) {
    for (const auto& [key, tensor] : signature.inputs()) left.push_back(NodeOf(tensor.name()));
    for (const auto& [key, tensor] : signature.outputs()) left.push_back(NodeOf(tensor.name()));
  }
  for (const char* name : {"saved_model_main_op", "legacy_init_op"}) {
    const auto found = meta->collection_def().find(name);
    if (found == meta->collection_def().end()) continue;
    for (const std::string& node : found->second.node_list().value()) left.push_back(NodeOf(node));
  }
  for (const auto& asset : meta->asset_file_def())
    left.push_back(NodeOf(asset.tensor_info().name()));
  std::map<std::string, const NodeDef*> nodes;
  for (const NodeDef& node : meta->graph_def().node()) nodes[node.name()] = &node;
  std::set<std::string> needed;
  while (!left.empty()) {
    const std::string name = std::move(left.back());
    left.pop_back();
    const auto found = nodes.find(name);
    if (found == nodes.end() || !needed.insert(name).second) continue;
    for (const std::string& input : found->second->input()) left.push_back(NodeOf(input));
  }
  GraphDef* graph = meta->mutable_graph_def();
  google::protobuf::RepeatedPtrField<NodeDef> kept;
  for (NodeDef& node : *graph->mutable_node()) {
    if (needed.count(node.name()) > 0) kept.Add()->Swap(&node);
  }
  graph->mutable_node()->Swap(&kept);
}

// Makes the graph restore a value in the type that the checkpoint has.
void Retype(const Restored& restored, tensorflow::DataType stored) {
  auto* dtypes = (*restored.restore->mutable_attr())["dtypes"].mutable_list();
  if (restored.output < dtypes->type_size()) dtypes->set_type(restored.output, stored);
  for (NodeDef* node : restored.passed) (*node->mutable_attr())["T"].set_type(stored);
}

bool IsTableType(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_HALF ||
         dtype == tensorflow::DT_BFLOAT16;
}

// Whether a checkpoint may hold quantised rows of a table as this type.
bool MayHold(tensorflow::DataType stored, tensorflow::DataType trained) {
  return stored == tensorflow::DT_INT8 || stored == tensorflow::DT_UINT8 ||
         (stored == tensorflow::DT_BFLOAT16 && trained != stored);
}

// Whether lookups alone read a variable, so that its rows may lie elsewhere. `assign`: the node
// that restores it.
bool IsTableByRowNumber(const GraphWalk& walk, const NodeDef& variable,
                        const std::vector<GraphWalk::Use>& uses, const NodeDef* assign) {
  const auto shape = variable.attr().find("shape");
  if (variable.op() != "VarHandleOp" || !IsTableType(TypeOf(variable, "dtype")) ||
      shape == variable.attr().end() || shape->second.shape().dim_size() != 2 ||
      walk.NumVisits(assign) != 1) {
    return false;
  }
  bool looked_up = false;
  for (const GraphWalk::Use& use : uses) {
    if (use.node == assign) continue;
    if (PlainName(use.node->op()) != "GroupLookup") return false;
    const auto dims = use.node->attr().find("dims");
    const auto keyed = use.node->attr().find("keyed");
    if (dims == use.node->attr().end() || use.input >= dims->second.list().i_size()) return false;
    if (keyed != use.node->attr().end()) {
      const auto& tables = keyed->second.list().i();
      if (std::find(tables.begin(), tables.end(), use.input) != tables.end()) return false;
    }
    looked_up = true;
  }
  return looked_up;
}

}  // namespace

absl::Status RewriteGraph(int64_t model, int slot, bool gpu,
                          const std::function<tensorflow::DataType(const std::string& key)>& stored,
                          MetaGraphDef* meta, std::vector<ServedVariable>* variables,
                          std::vector<StateNodes>* others, std::set<std::string>* unread) {
  Prune(meta);
  // Behind a copy from a GPU ops go on in a thread of TensorFlow's, which has no request.
  if (!gpu) *unread = ReadIdsFromRequests(meta);
  GraphDef* graph = meta->mutable_graph_def();
  const GraphWalk walk(graph);
  if (!walk.error().empty()) return absl::InvalidArgumentError("saved_model.pb: " + walk.error());
  const NodeReplacer replacer(model, slot, gpu);
  struct Found {
    NodeDef variable;  // as it was
    ServedVariable served;
  };
  std::vector<Found> found;
  std::vector<NodeDef> unchanged;  // variables and hash tables that no delta changes
  std::vector<NodeDef*> tables;
  std::vector<std::pair<NodeDef*, tensorflow::DataType>> assigns;
  for (NodeDef& node : *graph->mutable_node()) {
    if (IsHashTable(node)) unchanged.push_back(node);
    if (node.op() != "VarHandleOp" && node.op() != "VariableV2") continue;
    const auto& uses = walk.UsesOf(node.name());
    replacer.PlaceVariable(&node, uses);
    bool has_value = false, has_key = false;
    for (const GraphWalk::Use& use : uses) {
      const bool assigns_it = use.node->op() == "AssignVariableOp" || use.node->op() == "Assign";
      if (!assigns_it || use.input != 0) continue;
      has_value = true;
      const Restored restored = RestoredBy(use);
      if (restored.key.empty()) continue;
      has_key = true;
      ServedVariable served;
      served.key = restored.key;
      served.dtype = TypeOf(node, "dtype");
      if (IsTableByRowNumber(walk, node, uses, use.node)) {
        served.resource = "variable/" + node.name();
        tensorflow::DataType in_file = stored(restored.key);
        if (MayHold(in_file, served.dtype)) {
          Retype(restored, in_file);
        } else {
          in_file = served.dtype;
        }
        tables.push_back(&node);
        assigns.emplace_back(use.node, in_file);
      }
      found.push_back({node, served});
      break;
    }
    if (has_value && !has_key) unchanged.push_back(node);
  }
  for (NodeDef* node : tables) replacer.ReplaceVariable(node);
  for (const auto& [node, in_file] : assigns) replacer.ReplaceAssign(node, in_file);
  for (NodeDef& node : *graph->mutable_node()) replacer.Replace(&node);
  for (auto& function : *graph->mutable_library()->mutable_function()) {
    for (NodeDef& node : *function.mutable_node_def()) replacer.Replace(&node);
  }
  variables->clear();
  int number = 0;
  for (Found& variable : found) {
    if (variable.served.resource.empty()) {
      variable.served.nodes = AddVariableNodes(variable.variable, number++, graph);
    }
    variables->push_back(variable.served);
  }
  others->clear();
  for (const NodeDef& node : unchanged) {
    others->push_back(IsHashTable(node) ? AddHashTableNodes(node, number++, graph)
                                        : AddVariableNodes(node, number++, graph));
  }
  return absl::OkStatus();
}

}  // namespace group_embedding
