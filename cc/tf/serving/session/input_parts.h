// Which inputs of a signature are together one ragged or sparse tensor.
#pragma once

#include <map>
#include <string>

#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace group_embedding {

// An input of a signature as a part of a tensor of the function that was exported.
struct InputPart {
  // "flat_values" and "row_splits" of a ragged tensor; "indices", "values" and "dense_shape" of a
  // sparse one; "unknown": of a type that is neither.
  std::string part;
  std::string of;  // the input that is the first part, such as the flat values
  int level = 0;   // of row splits: 0 is the outermost
};

// By the signature's key of the input; dense inputs have none, nor has a SavedModel of
// TensorFlow 1. TensorFlow writes the types of a function's arguments beside the graph, but not
// into signatures.
std::map<std::string, InputPart> FindInputParts(const tensorflow::MetaGraphDef& meta,
                                                const std::string& signature);

}  // namespace group_embedding
