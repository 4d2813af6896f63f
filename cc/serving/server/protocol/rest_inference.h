// /v2/...: the REST of the Open Inference Protocol, with its extension for tensors as bytes.
#pragma once

#include "serving/server/protocol/http_server.h"
#include "serving/server/protocol/inference.h"

namespace group_embedding::server {

// The paths of models and of the server's metadata.
HttpAnswer AnswerInference(Models& models, const Request& request, const HttpRequest& http);

}  // namespace group_embedding::server
