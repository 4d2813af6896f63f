// Grouping: the ids, row splits and weights of all features become one batch in one buffer.
//
// The buffer is float32, so that autodiff sees the weights in it; ids and row splits are int64
// whose bits take two floats each. One buffer means one copy from host to device for the whole
// group.
//
//   | row_splits int64 [num_samples + 1] | ids int64 [num_ids] | weights float [num_ids] or nothing
//   |
#pragma once

#include <cstdint>

#include "core/fault.h"
#include "core/group.h"
#include "core/parallel.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

enum class IdType : int32_t { kInt32, kInt64, kUInt32, kUInt64 };

enum class Layout : int32_t {
  kSparse,  // partition: int64 [num_ids, rank], the indices of a SparseTensor, rows ascending
  kRagged,  // partition: int32 or int64 [num_samples + 1], the row_splits of a RaggedTensor
  kDense,   // partition: null; every sample has num_ids / num_samples ids
};

// A SparseTensor of rank r is pooled over its last axis: its samples are the product of the others.
inline constexpr int kMaxSparseRank = 8;

// One feature as it arrives. Pointers are borrowed, and are device pointers for the CUDA function.
struct FeatureIds {
  const void* values;            // [num_ids] of id_type
  const void* partition;         // see Layout
  const void* weight_partition;  // same shape as partition, compared with it; null: no comparison
  const float* weights;          // [num_ids], or null: every weight is 1
  int64_t num_ids;
  int64_t num_samples;
  int64_t
      sample_strides[kMaxSparseRank - 1];    // sparse: sample = sum_i index[i] * sample_strides[i]
  int64_t sample_shape[kMaxSparseRank - 1];  // sparse: index[i] must be in [0, sample_shape[i])
  int32_t rank;                              // sparse: of the indices, 2 or more
  IdType id_type;
  Layout layout;
  bool int32_splits;  // ragged: type of partition (and weight_partition)
};

// Where the parts of the buffer are, in floats.
struct BatchLayout {
  int64_t ids;
  int64_t weights;
  int64_t size;
};

inline BatchLayout LayOutBatch(int64_t num_samples, int64_t num_ids, bool weighted) {
  const int64_t ids = 2 * (num_samples + 1);
  const int64_t weights = ids + 2 * num_ids;
  return {ids, weights, weights + (weighted ? num_ids : 0)};
}

inline Batch ViewBatch(const float* buffer, int64_t num_samples, int64_t num_ids, bool weighted) {
  const BatchLayout at = LayOutBatch(num_samples, num_ids, weighted);
  return {reinterpret_cast<const int64_t*>(buffer),
          reinterpret_cast<const int64_t*>(buffer + at.ids),
          weighted ? buffer + at.weights : nullptr, num_samples, num_ids};
}

// Writes the batch of `features` to `buffer` ([LayOutBatch(...).size], 8-byte aligned). `weighted`:
// a weights part is written, 1 for features that have none. Ids of uint64 above 2^63 - 1 become
// 2^63 - 1, which is outside every table. On a fault the buffer's content is undefined and must not
// be used.
Fault GroupIdsCpu(const FeatureIds* features, int64_t num_features, bool weighted, float* buffer,
                  const ParallelFor& parallel_for);

#if GROUP_EMBEDDING_CUDA
// As GroupIdsCpu on a GPU: enqueues on `stream` and returns. scratch: device memory of at least
// GroupIdsScratchBytes(num_features). fault: device-visible, kNone before; receives the first
// fault. The batch is safe to look up even then: row splits stay within [0, num_ids].
int64_t GroupIdsScratchBytes(int64_t num_features);
cudaError_t GroupIdsCuda(const FeatureIds* features, int64_t num_features, bool weighted,
                         float* buffer, void* scratch, Fault* fault, cudaStream_t stream);
#endif

}  // namespace group_embedding
