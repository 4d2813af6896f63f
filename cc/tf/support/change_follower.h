// The number by which a table knows a publisher that follows its changes.
#pragma once

#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/embedding_table_resource.h"

namespace group_embedding {

// Reads the input "follower".
absl::Status ReadFollower(tensorflow::OpKernelContext* context, int64_t* follower);

// An error if the table of `resource` was made anew since the publisher began to follow it.
absl::Status CheckFollows(const EmbeddingTableResource& resource, EmbeddingTable* table,
                          int64_t follower);

}  // namespace group_embedding
