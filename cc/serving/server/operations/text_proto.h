// Files of TensorFlow Serving's configuration.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "serving/server/models/serving_library.h"

namespace group_embedding::server {

// Reads a message in protobuf's text format. Errors name the file and the line.
Status ReadTextProto(const std::string& file, google::protobuf::Message* message);

}  // namespace group_embedding::server
