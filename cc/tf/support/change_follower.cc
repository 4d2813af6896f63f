#include "tf/support/change_follower.h"

#include <string>

#include "table/change_log.h"

namespace group_embedding {

absl::Status ReadFollower(tensorflow::OpKernelContext* context, int64_t* follower) {
  TF_RETURN_IF_ERROR(ReadScalar(context, "follower", follower));
  if (*follower > kSaves) return absl::OkStatus();
  return absl::InvalidArgumentError("follower: expected a number above 0, got " +
                                    std::to_string(*follower));
}

absl::Status CheckFollows(const EmbeddingTableResource& resource, EmbeddingTable* table,
                          int64_t follower) {
  if (table->changes()->Has(follower)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "table '" + resource.name() +
      "': expected a table whose changes the publisher has followed from its base, got one that "
      "was made anew, or that has evicted more keys since than it remembers; publish a base");
}

}  // namespace group_embedding
