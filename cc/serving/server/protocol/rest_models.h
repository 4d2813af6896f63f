// /v1/models/...: a path and a body become a message, and the answer becomes JSON.
#pragma once

#include <string>

#include "serving/server/models/models.h"

namespace group_embedding::server {

struct RestAnswer {
  int http_status = 200;
  std::string json;
};

// As TensorFlow Serving translates codes.
int HttpStatus(StatusCode code);

// method: "GET" or "POST".
RestAnswer AnswerRest(Models& models, const Request& request, const std::string& method,
                      const std::string& path, const std::string& body);

}  // namespace group_embedding::server
