#include "tf/serving/session/read_saved_model.h"

#include <algorithm>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/saved_model.pb.h"

namespace group_embedding {

using ::tensorflow::Env;
using ::tensorflow::MetaGraphDef;
using ::tensorflow::Tensor;

absl::Status ReadMetaGraph(const std::string& path, const std::vector<std::string>& tags,
                           MetaGraphDef* meta) {
  const std::string file = path + "/saved_model.pb";
  if (!Env::Default()->FileExists(file).ok()) {
    return absl::NotFoundError("expected the folder of a SavedModel, with saved_model.pb, got '" +
                               path + "'");
  }
  tensorflow::SavedModel saved;
  const absl::Status read = tensorflow::ReadBinaryProto(Env::Default(), file, &saved);
  if (!read.ok()) {
    return absl::DataLossError("file '" + file + "' is damaged: " + std::string(read.message()));
  }
  for (MetaGraphDef& graph : *saved.mutable_meta_graphs()) {
    const auto& found = graph.meta_info_def().tags();
    bool same = found.size() == static_cast<int>(tags.size());
    for (const std::string& tag : found) {
      same &= std::find(tags.begin(), tags.end(), tag) != tags.end();
    }
    if (!same) continue;
    meta->Swap(&graph);
    return absl::OkStatus();
  }
  std::string expected;
  for (const std::string& tag : tags) expected += (expected.empty() ? "" : ", ") + tag;
  return absl::NotFoundError("'" + path + "': expected a graph with the tags " + expected);
}

tensorflow::TrackableObjectGraph ReadObjects(tensorflow::BundleReader* checkpoint) {
  tensorflow::TrackableObjectGraph objects;
  Tensor text;
  if (checkpoint->status().ok() && checkpoint->Lookup("_CHECKPOINTABLE_OBJECT_GRAPH", &text).ok() &&
      text.dtype() == tensorflow::DT_STRING && text.NumElements() == 1 &&
      !objects.ParseFromString(std::string(text.flat<tensorflow::tstring>()(0)))) {
    objects.Clear();
  }
  return objects;
}

}  // namespace group_embedding
