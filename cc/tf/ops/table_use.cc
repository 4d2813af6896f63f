// What a keyed table was asked for and did.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("GroupEmbedding>TableUse")
    .Input("table: resource")
    .Output("looked_up: int64")
    .Output("in_first_tier: int64")
    .Output("in_second_tier: int64")
    .Output("in_third_tier: int64")
    .Output("admitted: int64")
    .Output("expired_by_steps: int64")
    .Output("expired_by_minutes: int64")
    .Output("expired_by_norm: int64")
    .Output("wait_nanoseconds: int64")
    .Output("sampled_ids: int64")
    .Output("sampled_keys: int64")
    .Output("hottest_share: double")
    .Output("oldest_steps: int64")
    .Output("host_bytes: int64")
    .Output("disk_bytes: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Counts what a table was asked for and did, since it was made.

looked_up: ids of batches, trained or read.
in_first_tier, in_second_tier, in_third_tier: those whose row was in that tier when the batch came,
  and prefetches that had begun were done.
admitted: keys that got a row as they were trained.
expired_by_steps, expired_by_minutes, expired_by_norm: keys that went by the steps, the minutes or
  the norm that the table evicts by; of several that hold for a key, the first counts.
wait_nanoseconds: for which batches waited for rows of a tier below.
sampled_ids, sampled_keys: how many ids were in samples of batches, and how many different keys
  these were.
hottest_share: of the ids of a batch, the most that one key had in a sample.
oldest_steps: for how many steps a key was not trained, the most among up to 65,536 rows in memory
  and 1,024 on disk; -1: no row has a step.
host_bytes: of the table's memory_bytes, those in host memory below a GPU's.
disk_bytes: of rows on disk.
)doc");

}  // namespace group_embedding
