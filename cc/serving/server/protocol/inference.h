// The Open Inference Protocol (KServe's version 2, Triton's), answered by models.
#pragma once

#include "inference/grpc_service.pb.h"
#include "serving/server/models/models.h"

namespace group_embedding::server {

Status Infer(Models& models, const Request& request, const inference::ModelInferRequest& message,
             inference::ModelInferResponse* answer);

Status Metadata(const Models& models, const inference::ModelMetadataRequest& message,
                inference::ModelMetadataResponse* answer);

}  // namespace group_embedding::server
