#include "tf/serving/rewrite_graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tf/serving/graph_walk.h"
#include "tf/serving/restored_variables.h"

namespace group_embedding {
namespace {

using ::tensorflow::DataType;
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

int64_t IntOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? 0 : found->second.i();
}

std::string StringOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? "" : found->second.s();
}

DataType TypeOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? tensorflow::DT_INVALID : found->second.type();
}

// Keeps the attributes of these names alone.
void KeepAttrs(NodeDef* node, const std::set<std::string>& names) {
  auto& attrs = *node->mutable_attr();
  std::vector<std::string> others;
  for (const auto& [name, value] : attrs) {
    if (names.count(name) == 0 && name[0] != '_') others.push_back(name);
  }
  for (const std::string& name : others) attrs.erase(name);
}

void KeepInputs(NodeDef* node, int first, int count) {
  std::vector<std::string> kept;
  for (int i = 0; i < node->input_size(); ++i) {
    const bool is_control = !node->input(i).empty() && node->input(i)[0] == '^';
    if (is_control || (i >= first && i < first + count)) kept.push_back(node->input(i));
  }
  node->clear_input();
  for (const std::string& input : kept) node->add_input(input);
}

// Where one node is replaced by the op that serves.
class Replacer {
 public:
  Replacer(int64_t model, int slot, bool gpu) : model_(model), slot_(slot), gpu_(gpu) {}

  void Replace(NodeDef* node) const {
    const std::string op = PlainName(node->op());
    if (op == "EmbeddingTableHandleOp") {
      const std::string name = StringOf(*node, "shared_name");
      MakeTable(node, name.empty() ? node->name() : name, StringOf(*node, "table_name"), true);
    } else if (op == "InitializeEmbeddingTable") {
      KeepAttrs(node, {"dtype", "dim", "no_row_value", "admission"});
      SetOp(node, "InitializeServedTable");
    } else if (op == "VerifyTable" || (op == "RestoreTable" && slot_ > 0)) {
      MakeNoOp(node);
    } else if (op == "RestoreTable") {
      KeepAttrs(node, {});
      SetOp(node, "RestoreServedTable");
    } else if (op == "LocateRows") {
      KeepInputs(node, static_cast<int>(IntOf(*node, "num_tables")), 1);
      KeepAttrs(node, {});
      SetOp(node, "ServedBatch");
      StayOnHost(node);
    } else if (op == "BringRows") {
      PassBatch(node);
    } else if (op == "GroupIds") {
      StayOnHost(node);
    } else if (op == "GroupLookup") {
      SetOp(node, "ServedLookup");
    } else if (op == "ReadRows") {
      SetOp(node, "ServedReadRows");
    }
  }

  // A variable that a lookup reads is where the lookup is, also where the trainer told its device:
  // TensorFlow does not run ops with resources of two devices.
  void PlaceVariable(NodeDef* node, const std::vector<GraphWalk::Use>& uses) const {
    if (!gpu_) return;
    for (const GraphWalk::Use& use : uses) {
      if (PlainName(use.node->op()) == "GroupLookup") node->set_device(kGpu);
    }
  }

  // Makes a variable a table by row number.
  void ReplaceVariable(NodeDef* node) const {
    const std::string name = StringOf(*node, "shared_name");
    MakeTable(node, node->name(), name.empty() ? node->name() : name, false);
  }

  void ReplaceAssign(NodeDef* node, DataType stored) const {
    if (slot_ > 0) return MakeNoOp(node);
    const DataType trained = TypeOf(*node, "dtype");
    KeepAttrs(node, {});
    SetOp(node, "AssignServedTable");
    (*node->mutable_attr())["dtype"].set_type(stored);
    (*node->mutable_attr())["trained_dtype"].set_type(trained);
  }

 private:
  static constexpr char kGpu[] = "/device:GPU:0";

  // On the device that serves, whichever the trainer used.
  void SetOp(NodeDef* node, const char* op) const {
    node->set_op(std::string("GroupEmbedding>") + op);
    node->set_device(gpu_ ? kGpu : "");
    node->mutable_attr()->erase("_class");
  }

  void StayOnHost(NodeDef* node) const {
    if (gpu_) node->set_device("/device:CPU:0");
  }

  // In the place of an op that moves rows of a batch between tiers: a session has tiers of its own.
  void PassBatch(NodeDef* node) const {
    KeepInputs(node, static_cast<int>(IntOf(*node, "num_tables")), 1);
    KeepAttrs(node, {});
    node->set_op("Identity");
    node->set_device(gpu_ ? "/device:CPU:0" : "");
    node->mutable_attr()->erase("_class");
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  }

  void MakeTable(NodeDef* node, const std::string& resource, const std::string& table_name,
                 bool keyed) const {
    KeepAttrs(node, {});
    SetOp(node, "ServedTable");
    auto& attrs = *node->mutable_attr();
    attrs["model"].set_i(model_);
    attrs["slot"].set_i(slot_);
    attrs["table"].set_s((keyed ? "keyed/" : "variable/") + resource);
    attrs["table_name"].set_s(table_name);
    attrs["keyed"].set_b(keyed);
  }

  const int64_t model_;
  const int slot_;
  const bool gpu_;
};

// Makes the graph restore a value in the type that the checkpoint has.
void Retype(const Restored& restored, DataType stored) {
  auto* dtypes = (*restored.restore->mutable_attr())["dtypes"].mutable_list();
  if (restored.output < dtypes->type_size()) dtypes->set_type(restored.output, stored);
  for (NodeDef* node : restored.passed) (*node->mutable_attr())["T"].set_type(stored);
}

bool IsTableType(DataType dtype) {
  return dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_HALF ||
         dtype == tensorflow::DT_BFLOAT16;
}

// Whether a checkpoint may hold quantised rows of a table as this type.
bool MayHold(DataType stored, DataType trained) {
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
                          const std::function<DataType(const std::string& key)>& stored,
                          MetaGraphDef* meta, std::vector<ServedVariable>* variables,
                          std::vector<StateNodes>* others) {
  Prune(meta);
  GraphDef* graph = meta->mutable_graph_def();
  const GraphWalk walk(graph);
  if (!walk.error().empty()) return absl::InvalidArgumentError("saved_model.pb: " + walk.error());
  const Replacer replacer(model, slot, gpu);
  struct Found {
    NodeDef variable;  // as it was
    ServedVariable served;
  };
  std::vector<Found> found;
  std::vector<NodeDef> unchanged;  // variables and hash tables that no delta changes
  std::vector<NodeDef*> tables;
  std::vector<std::pair<NodeDef*, DataType>> assigns;
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
        DataType in_file = stored(restored.key);
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
