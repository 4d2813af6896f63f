// A folder of SavedModels whose names are versions, as TensorFlow Serving has them.
#pragma once

#include <map>
#include <string>

#include "serving/server/operations/options.h"

namespace group_embedding::server {

// The SavedModels to serve, by version. A path that is a SavedModel itself has one version: its
// name if this is a number, else 0. The error says what is wrong with the path.
Status VersionsToServe(const ModelToServe& model, std::map<int64_t, std::string>* paths);

// A number of digits alone, up to 2^63 - 1; else -1.
int64_t AsVersion(const std::string& name);

}  // namespace group_embedding::server
