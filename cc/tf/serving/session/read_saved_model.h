// Reads the files of a SavedModel.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/protobuf/trackable_object_graph.pb.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace group_embedding {

// path: the folder. meta: the graph that has these tags, and no others.
absl::Status ReadMetaGraph(const std::string& path, const std::vector<std::string>& tags,
                           tensorflow::MetaGraphDef* meta);

// The objects of a checkpoint; none of one that TensorFlow 1 wrote.
tensorflow::TrackableObjectGraph ReadObjects(tensorflow::BundleReader* checkpoint);

}  // namespace group_embedding
