// Grouping as a TensorFlow op.
#include "tf/ops/group_ids.h"

#include "tensorflow/core/framework/op.h"

namespace group_embedding {

REGISTER_OP("GroupEmbedding>GroupIds")
    .Input("values: value_types")
    .Input("partitions: partition_types")
    .Input("dense_shapes: num_sparse * int64")
    .Input("weights: num_weighted * float")
    .Input("weight_partitions: weight_partition_types")
    .Output("batch: float")
    .Output("sizes: int64")
    .GROUP_IDS_ATTRS.SetShapeFn(GroupIdsShape)
    .Doc(R"doc(
Packs the ids, row splits and weights of many features into one buffer.

values: per feature, the ids.
partitions: per 'sparse' or 'ragged' feature, the indices [num_ids, rank] of its SparseTensor, in row
  order, or its row splits [num_samples + 1].
dense_shapes: per 'sparse' feature, the dense shape [rank] of its SparseTensor. Host memory.
weights: per feature in weighted_features, one per id.
weight_partitions: per 'sparse' or 'ragged' feature in weighted_features, the partition that belongs
  to its weights; compared with that of its ids.
batch: row splits and ids (int64, two floats each) and weights, if any: see cc/grouping/group_ids.h.
keyed_features: features whose ids are keys: those of uint64 keep all their bits, where ids above
  2^63 - 1 become that number.
sizes: [num_features, 2], the samples and the ids of each feature. Host memory.
layouts: 'sparse' pools over the last axis, 'ragged' over each row, 'dense' over the last axis of
  `values`; 'single' makes every id a sample of its own.
)doc");

}  // namespace group_embedding
