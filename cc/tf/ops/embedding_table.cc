// Tables whose rows are found by key, as resources: made, initialized.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace group_embedding {

using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("GroupEmbedding>EmbeddingTableHandleOp")
    .Output("handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("table_name: string")
    .Attr("in_host_memory: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes a handle of a keyed table, and the table, not yet initialized, where there is none.

container, shared_name: as of VarHandleOp: handles of one name are of one table. A name that begins
  with that of anonymous resources makes a table that lives as long as its handle.
table_name: for messages.
in_host_memory: the table is: so TensorFlow puts the handle, and all ops that take it, on the CPU,
  also where a SavedModel has lost the devices of its ops.
)doc");

REGISTER_OP("GroupEmbedding>InitializeEmbeddingTable")
    .Input("table: resource")
    .Input("matrix: dtype")
    .Attr("dtype: {float, half, bfloat16}")
    .Attr("key_dtype: {int32, int64, uint32, uint64} = DT_INT64")
    .Attr("dim: int >= 1")
    .Attr("distribution: {'matrix', 'constant', 'uniform', 'normal', 'truncated_normal'}")
    .Attr("a: float = 0")
    .Attr("b: float = 0")
    .Attr("seed: int = 0")
    .Attr("no_row_value: float = 0")
    .Attr("admission: {'all', 'counter', 'bloom'} = 'all'")
    .Attr("min_count: int = 0")
    .Attr("num_counters: int = 0")
    .Attr("num_hashes: int = 0")
    .Attr("counter_bytes: int = 8")
    .Attr("probability: float = 1")
    .Attr("keeps_time: bool = false")
    .Attr("slot_dtype: {'', 'float32', 'bfloat16'} = ''")
    .Attr("budget_keys: int = 0")
    .Attr("budget_bytes: int = 0")
    .Attr("budget_keep: float = 0.9")
    .Attr(
        "evict_first: {'least_recent', 'least_frequent', 'decayed_frequency', 'smallest_norm', "
        "'score', 'earliest'} = 'least_recent'")
    .Attr("decay_steps: int = 0")
    .Attr("safe_steps: int = 0")
    .Attr("hands_out: {'nothing', 'keys', 'rows'} = 'nothing'")
    .Attr("budget_shares: int = 0")
    .Attr("budget_rank: int = 0")
    .Attr("budget_ranks: int = 1")
    .Attr("storage: {'dram', 'dram_ssdhash', 'hbm', 'hbm_dram', 'hbm_dram_ssdhash'} = 'dram'")
    .Attr("max_bytes: int = 0")
    .Attr("lower_max_bytes: int = 0")
    .Attr("lowest_max_bytes: int = 0")
    .Attr("storage_path: string = ''")
    .Attr("cache_strategy: {'lru', 'lfu'} = 'lfu'")
    .Attr("if_needed: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes the table that a handle names, empty. What it held before is gone.

table: from EmbeddingTableHandleOp.
matrix: [rows, dim] what keys start as, key modulo rows; no rows unless distribution is 'matrix'.
key_dtype: of the keys, which the table's files name.
dim: of the rows.
distribution, a, b, seed: what a key's row starts as: see cc/table/initial_values.h.
no_row_value: the constant that a key without a row reads.
admission, min_count, num_counters, num_hashes, counter_bytes, probability: which keys get a row when
  they are trained: see Admission in cc/table/table_options.h.
slot_dtype: of the slots of update rules; empty: that of the rows.
keeps_time: whether the minute in which a key was trained last is kept, for evictions by time.
budget_keys, budget_bytes, budget_keep, evict_first, decay_steps, safe_steps, hands_out,
  budget_shares, budget_rank, budget_ranks: how many keys it may have, and which go: see Budget in
  cc/table/budget.h.
storage: the tiers in which rows lie: host memory, that and disk, the GPU's memory, that and host
  memory, all three.
max_bytes: the most memory that rows, slots and what is kept of each may take in the first tier; 0:
  no limit, where it is the only one.
lower_max_bytes, lowest_max_bytes: the same of the second and third; 0: no limit, for the last.
storage_path: the folder of the disk tier; empty: a temporary one.
cache_strategy: which rows stay in the first tier: used last, or used most.
if_needed: leaves a table alone that is initialized, as one that was restored is.
)doc");

REGISTER_OP("GroupEmbedding>EmbeddingTableIsInitialized")
    .Input("table: resource")
    .Output("is_initialized: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Whether InitializeEmbeddingTable has run on a table.
)doc");

}  // namespace group_embedding
