// NodeReplacer: nodes of a graph, replaced by the ops that serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf/serving/session/graph_walk.h"

namespace group_embedding {

class NodeReplacer {
 public:
  // As of RewriteGraph.
  NodeReplacer(int64_t model, int slot, bool gpu) : model_(model), slot_(slot), gpu_(gpu) {}

  // Replaces a node whose op trains, reads or restores tables; others stay.
  void Replace(tensorflow::NodeDef* node) const;

  // A variable that a lookup reads is where the lookup is, also where the trainer told its device:
  // TensorFlow does not run ops with resources of two devices.
  void PlaceVariable(tensorflow::NodeDef* node, const std::vector<GraphWalk::Use>& uses) const;

  // Makes a variable a table by row number.
  void ReplaceVariable(tensorflow::NodeDef* node) const;
  // Makes what assigns it restore that table. stored: the type in the checkpoint.
  void ReplaceAssign(tensorflow::NodeDef* node, tensorflow::DataType stored) const;

 private:
  // On the device that serves, whichever the trainer used.
  void SetOp(tensorflow::NodeDef* node, const char* op) const;
  void StayOnHost(tensorflow::NodeDef* node) const;
  // In the place of an op that moves rows of a batch between tiers: a session has tiers of its own.
  void PassBatch(tensorflow::NodeDef* node) const;
  void MakeTable(tensorflow::NodeDef* node, const std::string& resource,
                 const std::string& table_name, bool keyed) const;

  const int64_t model_;
  const int slot_;
  const bool gpu_;
};

}  // namespace group_embedding
