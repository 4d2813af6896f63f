#include "tf/serving/session/replace_nodes.h"

#include <set>

#include "tensorflow/core/framework/attr_value.pb.h"

namespace group_embedding {
namespace {

using ::tensorflow::NodeDef;

constexpr char kGpu[] = "/device:GPU:0";

int64_t IntOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? 0 : found->second.i();
}

std::string StringOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? "" : found->second.s();
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

}  // namespace

void NodeReplacer::Replace(NodeDef* node) const {
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
  } else if (op == "PrefetchRows" || op == "BringRows") {  // the older name
    PassBatch(node);
  } else if (op == "GroupIds" || op == "ServedIds" || op == "CheckIds") {
    StayOnHost(node);
  } else if (op == "GroupLookup") {
    SetOp(node, "ServedLookup");
  } else if (op == "ReadRows") {
    SetOp(node, "ServedReadRows");
  }
}

void NodeReplacer::PlaceVariable(NodeDef* node, const std::vector<GraphWalk::Use>& uses) const {
  if (!gpu_) return;
  for (const GraphWalk::Use& use : uses) {
    if (PlainName(use.node->op()) == "GroupLookup") node->set_device(kGpu);
  }
}

void NodeReplacer::ReplaceVariable(NodeDef* node) const {
  const std::string name = StringOf(*node, "shared_name");
  MakeTable(node, node->name(), name.empty() ? node->name() : name, false);
}

void NodeReplacer::ReplaceAssign(NodeDef* node, tensorflow::DataType stored) const {
  if (slot_ > 0) return MakeNoOp(node);
  const tensorflow::DataType trained = TypeOf(*node, "dtype");
  KeepAttrs(node, {});
  SetOp(node, "AssignServedTable");
  (*node->mutable_attr())["dtype"].set_type(stored);
  (*node->mutable_attr())["trained_dtype"].set_type(trained);
}

void NodeReplacer::SetOp(NodeDef* node, const char* op) const {
  node->set_op(std::string("GroupEmbedding>") + op);
  node->set_device(gpu_ ? kGpu : "");
  node->mutable_attr()->erase("_class");
}

void NodeReplacer::StayOnHost(NodeDef* node) const {
  if (gpu_) node->set_device("/device:CPU:0");
}

void NodeReplacer::PassBatch(NodeDef* node) const {
  KeepInputs(node, static_cast<int>(IntOf(*node, "num_tables")), 1);
  KeepAttrs(node, {});
  node->set_op("Identity");
  node->set_device(gpu_ ? "/device:CPU:0" : "");
  node->mutable_attr()->erase("_class");
  (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
}

void NodeReplacer::MakeTable(NodeDef* node, const std::string& resource,
                             const std::string& table_name, bool keyed) const {
  KeepAttrs(node, {});
  SetOp(node, "ServedTable");
  auto& attrs = *node->mutable_attr();
  attrs["model"].set_i(model_);
  attrs["slot"].set_i(slot_);
  attrs["table"].set_s((keyed ? "keyed/" : "variable/") + resource);
  attrs["table_name"].set_s(table_name);
  attrs["keyed"].set_b(keyed);
}

}  // namespace group_embedding
