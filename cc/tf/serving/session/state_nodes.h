// Nodes by which the state of one session is read, and written from outside.
#pragma once

#include <string>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace group_embedding {

// A variable has one tensor, a hash table two: keys and values.
struct StateNodes {
  std::vector<std::string> reads;  // the tensors of its content
  std::vector<std::string> fed;    // the tensors to feed, as many
  std::string assign;              // the op that writes what is fed
  bool in_place = false;           // whether it writes into memory that was read
};

// Whether a node is a hash table whose content a graph can change. Others are filled by the
// initializer of the SavedModel.
bool IsHashTable(const tensorflow::NodeDef& node);

// number: of the nodes, another for each variable and table of a graph.
StateNodes AddVariableNodes(const tensorflow::NodeDef& variable, int number,
                            tensorflow::GraphDef* graph);
StateNodes AddHashTableNodes(const tensorflow::NodeDef& table, int number,
                             tensorflow::GraphDef* graph);

}  // namespace group_embedding
