#include "tf/serving/session/state_nodes.h"

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tf/serving/session/graph_walk.h"

namespace group_embedding {
namespace {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

// Adds nodes beside one, whose names begin alike.
class Adder {
 public:
  Adder(const NodeDef& beside, int number, GraphDef* graph)
      : beside_(beside),
        prefix_("group_embedding_serving/" + std::to_string(number) + "/"),
        graph_(graph) {}

  NodeDef* Add(const std::string& name, const std::string& op,
               const std::vector<std::string>& inputs) const {
    NodeDef* node = graph_->add_node();
    node->set_name(prefix_ + name);
    node->set_op(op);
    node->set_device(beside_.device());
    for (const std::string& input : inputs) node->add_input(input);
    return node;
  }

  // The name of a placeholder of any shape.
  std::string AddFed(const std::string& name, tensorflow::DataType dtype) const {
    NodeDef* fed = Add(name, "Placeholder", {});
    (*fed->mutable_attr())["dtype"].set_type(dtype);
    (*fed->mutable_attr())["shape"].mutable_shape()->set_unknown_rank(true);
    return fed->name();
  }

 private:
  const NodeDef& beside_;
  const std::string prefix_;
  GraphDef* const graph_;
};

}  // namespace

bool IsHashTable(const NodeDef& node) {
  return node.op() == "MutableHashTableV2" || node.op() == "MutableHashTableOfTensorsV2" ||
         node.op() == "MutableDenseHashTableV2";
}

StateNodes AddVariableNodes(const NodeDef& variable, int number, GraphDef* graph) {
  const Adder adder(variable, number, graph);
  const bool is_resource = variable.op() == "VarHandleOp";
  const char* const attr = is_resource ? "dtype" : "T";
  const tensorflow::DataType dtype = TypeOf(variable, "dtype");
  NodeDef* read = adder.Add("read", is_resource ? "ReadVariableOp" : "Identity", {variable.name()});
  (*read->mutable_attr())[attr].set_type(dtype);
  const std::string fed = adder.AddFed("fed", dtype);
  NodeDef* assign =
      adder.Add("assign", is_resource ? "AssignVariableOp" : "Assign", {variable.name(), fed});
  (*assign->mutable_attr())[attr].set_type(dtype);
  if (!is_resource) (*assign->mutable_attr())["validate_shape"].set_b(true);
  return {{read->name() + ":0"}, {fed + ":0"}, assign->name(), !is_resource};
}

StateNodes AddHashTableNodes(const NodeDef& table, int number, GraphDef* graph) {
  const Adder adder(table, number, graph);
  const tensorflow::DataType keys = TypeOf(table, "key_dtype"),
                             values = TypeOf(table, "value_dtype");
  NodeDef* read = adder.Add("read", "LookupTableExportV2", {table.name()});
  (*read->mutable_attr())["Tkeys"].set_type(keys);
  (*read->mutable_attr())["Tvalues"].set_type(values);
  const std::string fed_keys = adder.AddFed("keys", keys);
  const std::string fed_values = adder.AddFed("values", values);
  NodeDef* import =
      adder.Add("import", "LookupTableImportV2", {table.name(), fed_keys, fed_values});
  (*import->mutable_attr())["Tin"].set_type(keys);
  (*import->mutable_attr())["Tout"].set_type(values);
  return {{read->name() + ":0", read->name() + ":1"},
          {fed_keys + ":0", fed_values + ":0"},
          import->name()};
}

}  // namespace group_embedding
