#include "tf/serving/session/graph_walk.h"

#include "tensorflow/core/framework/attr_value.pb.h"

namespace group_embedding {
namespace {

using ::tensorflow::NodeDef;

// Functions that call each other would be walked forever, and those that call others twice for very
// long.
constexpr int kMaxDepth = 100;
constexpr int64_t kMaxVisits = 5'000'000;

bool MakesHandle(const std::string& op) {
  return op == "VarHandleOp" || op == "VariableV2" || op == "EmbeddingTableHandleOp";
}

bool IsLoop(const NodeDef& node) { return node.op() == "While" || node.op() == "StatelessWhile"; }

std::map<std::string, NodeDef*> ByName(google::protobuf::RepeatedPtrField<NodeDef>* nodes) {
  std::map<std::string, NodeDef*> by_name;
  for (NodeDef& node : *nodes) by_name[node.name()] = &node;
  return by_name;
}

}  // namespace

std::string PlainName(const std::string& op) {
  static const std::string prefix = "GroupEmbedding>";
  return op.rfind(prefix, 0) == 0 ? op.substr(prefix.size()) : op;
}

tensorflow::DataType TypeOf(const NodeDef& node, const std::string& name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? tensorflow::DT_INVALID : found->second.type();
}

void MakeNoOp(NodeDef* node) {
  NodeDef none;
  none.set_name(node->name());
  none.set_op("NoOp");
  none.set_device(node->device());
  for (const std::string& input : node->input()) {
    if (input[0] == '^') none.add_input(input);
  }
  *node = none;
}

std::string NodeOf(const std::string& input) {
  const size_t begin = !input.empty() && input[0] == '^' ? 1 : 0;
  return input.substr(begin,
                      input.find(':') == std::string::npos ? input.npos : input.find(':') - begin);
}

GraphWalk::GraphWalk(tensorflow::GraphDef* graph) : enters_loops_(true) { Start(graph, nullptr); }

GraphWalk::GraphWalk(tensorflow::GraphDef* graph, const std::set<std::string>& placeholders)
    : enters_loops_(false) {
  Start(graph, &placeholders);
}

void GraphWalk::Start(tensorflow::GraphDef* graph, const std::set<std::string>* placeholders) {
  for (auto& function : *graph->mutable_library()->mutable_function()) {
    functions_[function.signature().name()] = {&function, ByName(function.mutable_node_def())};
  }
  Nodes nodes = ByName(graph->mutable_node());
  std::map<std::string, std::string> origins;
  for (const auto& [name, node] : nodes) {
    const bool is_origin = placeholders == nullptr ? MakesHandle(PlainName(node->op()))
                                                   : placeholders->count(name) > 0;
    if (is_origin) origins[name] = name;
  }
  functions_[""] = {nullptr, std::move(nodes)};
  Visit(functions_[""].nodes, origins, 0);
}

std::string GraphWalk::Origin(const Nodes& nodes, const std::map<std::string, std::string>& origins,
                              const std::string& input) const {
  std::string name = NodeOf(input);
  for (int step = 0; step < kMaxDepth; ++step) {
    const auto known = origins.find(name);
    if (known != origins.end()) return known->second;
    const auto found = nodes.find(name);
    if (found == nodes.end() || found->second->op() != "Identity" ||
        found->second->input_size() == 0) {
      return "";
    }
    name = NodeOf(found->second->input(0));
  }
  return "";
}

std::vector<std::string> GraphWalk::CalledBy(const NodeDef& node, int* first) {
  const std::string& op = node.op();
  *first = 0;
  std::vector<std::string> attrs;
  if (op == "PartitionedCall" || op == "StatefulPartitionedCall") attrs = {"f"};
  if (IsLoop(node)) attrs = {"cond", "body"};
  if (op == "If" || op == "StatelessIf") attrs = {"then_branch", "else_branch"}, *first = 1;
  if (op == "Case" || op == "StatelessCase") attrs = {"branches"}, *first = 1;
  std::vector<std::string> called;
  for (const std::string& name : attrs) {
    const auto attr = node.attr().find(name);
    if (attr == node.attr().end()) continue;
    for (const auto& function : attr->second.list().func()) called.push_back(function.name());
    if (attr->second.has_func()) called.push_back(attr->second.func().name());
  }
  return called;
}

void GraphWalk::Visit(const Nodes& nodes, const std::map<std::string, std::string>& origins,
                      int depth) {
  if (depth > kMaxDepth) error_ = "expected functions that do not call themselves";
  for (const auto& [name, node] : nodes) {
    if (++num_visits_ > kMaxVisits) error_ = "expected fewer calls of functions";
    if (!error_.empty()) return;
    ++visits_[node];
    int first = 0;
    std::vector<std::string> called = CalledBy(*node, &first);
    if (called.empty() && functions_.count(node->op()) > 0 && !node->op().empty()) {
      called = {node->op()};
    }
    std::vector<std::string> passed;
    for (int i = 0; i < node->input_size(); ++i) {
      if (node->input(i).empty() || node->input(i)[0] == '^') break;  // control inputs come last
      passed.push_back(Origin(nodes, origins, node->input(i)));
      const bool entered = !called.empty() && i >= first && (enters_loops_ || !IsLoop(*node));
      if (!passed.back().empty() && !entered && node->op() != "Identity") {
        uses_[passed.back()].push_back({node, i, &nodes});
      }
    }
    for (const std::string& function : called) {
      const auto found = functions_.find(function);
      if (found == functions_.end()) continue;  // TensorFlow says so when it makes the session
      std::map<std::string, std::string> arguments;
      const auto& signature = found->second.def->signature();
      for (int i = 0; i < signature.input_arg_size(); ++i) {
        const size_t at = static_cast<size_t>(first + i);
        if (at < passed.size() && !passed[at].empty() && (enters_loops_ || !IsLoop(*node))) {
          arguments[signature.input_arg(i).name()] = passed[at];
        }
      }
      Visit(found->second.nodes, arguments, depth + 1);
      for (const auto& [name, returned] : found->second.def->ret()) {
        const std::string origin = Origin(found->second.nodes, arguments, returned);
        const bool is_use = !enters_loops_ && !origin.empty();  // handles are not returned
        if (is_use) uses_[origin].push_back({nullptr, 0, &found->second.nodes});
      }
    }
  }
}

const std::vector<GraphWalk::Use>& GraphWalk::UsesOf(const std::string& node) const {
  static const std::vector<Use> none;
  const auto found = uses_.find(node);
  return found == uses_.end() ? none : found->second;
}

int GraphWalk::NumVisits(const NodeDef* node) const {
  const auto found = visits_.find(node);
  return found == visits_.end() ? 0 : found->second;
}

}  // namespace group_embedding
