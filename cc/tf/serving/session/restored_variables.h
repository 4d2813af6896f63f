// Which variable of the checkpoint a graph restores where.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/protobuf/trackable_object_graph.pb.h"
#include "tf/serving/session/graph_walk.h"

namespace group_embedding {

// Where the value that a node assigns comes from: an output of a RestoreV2 of the same function,
// past Identity nodes.
struct Restored {
  std::string key;  // in the checkpoint; "": it comes from elsewhere, or is a slice of a variable
  tensorflow::NodeDef* restore = nullptr;
  int output = 0;
  std::vector<tensorflow::NodeDef*> passed;  // Identity nodes
};

// use: of a variable, by an op that assigns it.
Restored RestoredBy(const GraphWalk::Use& use);

// Makes one variable of two, where functions read one that the graph does not restore, and the
// graph restores another in its place. Keras 3 in a tf.Module is saved so: tf.saved_model.load
// restores objects, which are one for both, where a session restores nodes of the graph.
//
// objects: of the checkpoint.
void JoinVariables(const tensorflow::TrackableObjectGraph& objects, tensorflow::MetaGraphDef* meta);

}  // namespace group_embedding
