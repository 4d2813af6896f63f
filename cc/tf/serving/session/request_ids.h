// Ids that a lookup takes from the request itself, past the graph.
#pragma once

#include <set>
#include <string>

#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace group_embedding {

// Replaces each GroupIds whose inputs are inputs of a signature, as they come, by a ServedIds,
// which reads them where the request has them: hundreds of features are not passed from node to
// node, and are copied once, into the batch. Signatures stay as they are.
//
// Returns the tensors, such as "serving_default_user:0", that nothing else in the graph reads: a
// session need not be fed them.
std::set<std::string> ReadIdsFromRequests(tensorflow::MetaGraphDef* meta);

}  // namespace group_embedding
