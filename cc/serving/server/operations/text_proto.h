// TensorFlow Serving's configuration files: messages of protobuf as text.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "serving/server/models/status.h"

namespace group_embedding::server {

// NOT_FOUND: the file cannot be read. INVALID_ARGUMENT names the line.
Status ReadTextProto(const std::string& file, google::protobuf::Message* message);

}  // namespace group_embedding::server
