// Reads and checks a batch and its `sizes`, inputs of an op. Every op reads batches through it.
#pragma once

#include <string>
#include <vector>

#include "grouping/check_batch.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace group_embedding {

// How much of a batch is checked.
enum class BatchCheck {
  kSizes,  // that `sizes` and the buffer belong together: for ops that read ids alone, or run
           // on a GPU, whose threads bound row splits
  kFeatureSplits,    // also where features begin and end: for functions that check the other row
                     // splits as they read them
  kRowSplits,        // all
  kRowSplitsOnHost,  // all, of a batch that is in host memory on a GPU, too
};

struct BatchInput {
  BatchExtents extents;
  Batch view;
};

// Fills `input` from a batch ([floats], where the op runs) and `sizes` ([num_features, 2], in host
// memory). `feature_names`: of the features, for messages; null: an op without names. On a GPU row
// splits are in its memory: `check` is kSizes there, whatever is asked for.
absl::Status ReadBatch(tensorflow::OpKernelContext* context, const tensorflow::Tensor& batch,
                       const tensorflow::Tensor& sizes, int64_t num_features, bool weighted,
                       BatchCheck check, const std::vector<std::string>* feature_names,
                       BatchInput* input);

}  // namespace group_embedding
