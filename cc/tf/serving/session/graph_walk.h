// GraphWalk: which variables and tables of a graph reach which ops, through functions as well; or
// which of its placeholders.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace group_embedding {

// "VarHandleOp" for "GroupEmbedding>VarHandleOp" too: ops of this library have names with and
// without its prefix.
std::string PlainName(const std::string& op);

// The type that an attribute of a node has; DT_INVALID: the node has no such attribute.
tensorflow::DataType TypeOf(const tensorflow::NodeDef& node, const std::string& name);

// Makes the node a NoOp that waits for what the node waited for by control inputs.
void MakeNoOp(tensorflow::NodeDef* node);

class GraphWalk {
 public:
  // An input of a node, in the graph or in a function, that a node of the graph reaches.
  struct Use {
    tensorflow::NodeDef* node;  // null: a function returns it
    int input;
    // The nodes of the same function, or of the graph, by name.
    const std::map<std::string, tensorflow::NodeDef*>* nodes;
  };

  explicit GraphWalk(tensorflow::GraphDef* graph);
  // From these nodes of the graph, in the place of handles: a loop is a use of what it begins with,
  // as its next round may have another value.
  GraphWalk(tensorflow::GraphDef* graph, const std::set<std::string>& placeholders);

  // An error sentence if the graph is one that cannot be walked, or "".
  const std::string& error() const { return error_; }
  // Uses of a variable or table, by the name of the graph's node that makes the handle, or of a
  // placeholder. A call of a
  // function that can be entered is not among them, but the uses in the function are.
  const std::vector<Use>& UsesOf(const std::string& node) const;
  // How often a node of a function is reached by calls.
  int NumVisits(const tensorflow::NodeDef* node) const;

 private:
  using Nodes = std::map<std::string, tensorflow::NodeDef*>;

  struct Function {
    const tensorflow::FunctionDef* def;
    Nodes nodes;
  };

  // origins: per argument, the node of the graph that made what is passed, or "".
  void Visit(const Nodes& nodes, const std::map<std::string, std::string>& origins, int depth);
  void Start(tensorflow::GraphDef* graph, const std::set<std::string>* placeholders);
  // The functions that a node calls, and which of its inputs is their first argument.
  static std::vector<std::string> CalledBy(const tensorflow::NodeDef& node, int* first);
  std::string Origin(const Nodes& nodes, const std::map<std::string, std::string>& origins,
                     const std::string& input) const;

  const bool enters_loops_;
  std::map<std::string, Function> functions_;
  std::map<std::string, std::vector<Use>> uses_;
  std::map<const tensorflow::NodeDef*, int> visits_;
  int64_t num_visits_ = 0;
  std::string error_;
};

// The node that an input names: "a" of "^a", "a:1" and "a:output:0".
std::string NodeOf(const std::string& input);

}  // namespace group_embedding
