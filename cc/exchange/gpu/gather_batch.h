// The ids of all ranks on each rank, for owners that combine rows (sums_lookup.h).
//
// A rank's batch travels whole. The samples of the features that this rank serves are put behind
// each other, rank after rank, as one batch that the fused lookup and update take.
// Where this rank has some of a table's rows, their numbers become local ones, and other ids are
// outside the table.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/fault.h"
#include "exchange/gpu/named_memory.h"
#include "exchange/transport/communicator.h"
#include "fused/group_lookup.h"

namespace group_embedding {

// Enqueues the check of this rank's batch. num_rows: [num_tables] of the whole tables. scratch:
// device memory of CheckBatchScratchBytes. fault: receives the first bad id, unless read_zeros, or
// the first wrong row split.
int64_t CheckBatchScratchBytes(int64_t num_features);
cudaError_t CheckBatchCuda(const Group& group, const std::vector<int64_t>& num_rows, void* scratch,
                           Fault* fault, cudaStream_t stream);

// Enqueues the write of the numbers of samples of all features, then of ids, as ExchangeCounts
// takes them: counts, [num_ranks * 2 * num_features + 1], is the number before each, the same for
// each rank. scratch: as for CheckBatchCuda.
cudaError_t CountFeaturesCuda(const Group& group, int num_ranks, void* scratch, int64_t* counts,
                              cudaStream_t stream);

// Enqueues the write of what the weighted sum of each sample's rows is multiplied by: factors,
// [num_samples], as the features' combiners say. scratch: as for CheckBatchCuda.
cudaError_t CombinerFactorsCuda(const Group& group, const std::vector<int64_t>& num_rows,
                                void* scratch, float* factors, cudaStream_t stream);

// Completes the gradients of weights of features whose ranks' sums are added: each is the product
// of its row and its sample's gradient times factor so far. num_rows: kNotAdded for tables of other
// features. weight_grad: [num_ids] read and written. scratch: as for CheckBatchCuda.
inline constexpr int64_t kNotAdded = -1;
cudaError_t FinishWeightGradientsCuda(const Group& group, const std::vector<int64_t>& num_rows,
                                      const float* factors, void* scratch, float* weight_grad,
                                      cudaStream_t stream);

// How this rank serves a feature.
struct ServedFeature {
  bool is_served = false;
  int64_t num_rows = kAllHere;  // of the whole table, of which row r is on rank r % num_ranks
  static constexpr int64_t kAllHere = -1;
};

// The samples and ids of one feature of one rank.
struct FeatureSize {
  int64_t num_samples = 0, num_ids = 0;
};

class GatheredBatch {
 public:
  // sizes: [num_ranks, num_features] of the ranks' batches. served: [num_features].
  GatheredBatch(const std::vector<FeatureSize>& sizes, const std::vector<ServedFeature>& served);

  // [num_ranks, num_features]; none of a feature that this rank does not serve.
  const std::vector<FeatureSize>& sizes() const { return kept_; }
  int64_t num_samples() const { return num_samples_; }
  int64_t num_ids() const { return num_ids_; }

  // Enqueues the exchange of ids and the write of `gathered`, whose pointers are to memory of
  // num_samples() and num_ids(). own: this rank's batch, with row splits; of all ranks with weights
  // or without. combiners: [num_features].
  void Gather(const Batch& own, const std::vector<Combiner>& combiners, Communicator* communicator,
              const NamedMemory& memory, const Batch& gathered, cudaStream_t stream) const;

 private:
  const std::vector<FeatureSize> sizes_;
  const std::vector<ServedFeature> served_;
  const int64_t num_features_;
  std::vector<FeatureSize> kept_;
  int64_t num_samples_ = 0, num_ids_ = 0;
};

}  // namespace group_embedding
