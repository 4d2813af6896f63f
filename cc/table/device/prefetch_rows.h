// Brings the rows of the next batch ahead: rows that its keys have in host memory are exchanged
// with cold rows of device memory, on a stream of its own, while the device computes this batch.
// The next batch then finds them in device memory, for its lookup, its gradients and its update.
//
// Which memory a row lies in changes no result: keys are neither counted nor inserted, and rows
// that a batch in flight has located are not moved. The rows that leave device memory are used
// least in a section of it, and are none of the next batch. Locating waits on the device for the
// exchange. So rows are best brought right after this batch is looked up.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"
#include "table/device/device_memory.h"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

// The state of a running exchange, in device memory. It is all zero when none runs, but for `hand`.
struct PrefetchState {
  static constexpr int kNumHeats = 256;

  unsigned long long num_wanted, num_victims;
  int64_t hand;                   // where the search for victims continues, from the first row on
  uint32_t histogram[kNumHeats];  // of rows that may leave, by heat
};

// What the kernels see of one table.
struct PrefetchRef {
  DeviceTableRef table;  // moves.is_next: the rows of the next batch's keys
  PrefetchState* state;
  int64_t* wanted;     // [capacity] rows in host memory that the next batch reads
  int64_t* victims;    // [capacity] rows in device memory that leave
  int64_t capacity;    // at least the keys of the next batch
  int64_t held_since;  // rows located in a call since then do not move
};

// The memory for the exchanges of one table.
class TierPrefetcher {
 public:
  TierPrefetcher(int64_t max_rows, Status* error);
  ~TierPrefetcher();
  TierPrefetcher(const TierPrefetcher&) = delete;
  TierPrefetcher& operator=(const TierPrefetcher&) = delete;

  // Before rows of the next batch are marked: for a table of `num_rows` rows, and `num_keys` keys.
  Status Grow(int64_t num_rows, int64_t num_keys);
  // When the next batch is located: later ones find no row marked. Until then rows of all calls of
  // Grow are, as a model may look a table up more than once in a step.
  cudaError_t ForgetNext(cudaStream_t stream);
  // Fills in the rows of the next batch.
  void Complete(MovesRef* moves) const;
  PrefetchRef ref(const DeviceTableRef& table, int64_t held_since) const;

 private:
  const std::unique_ptr<DeviceMemory> is_next_, wanted_, victims_;
  PrefetchState* state_ = nullptr;
  bool has_next_ = false;
};

// The current device's stream for exchanges of all tables. It is never destroyed.
cudaStream_t PrefetchStream();

// Enqueues the exchanges of several tables on `stream`: a few launches for all of them.
cudaError_t EnqueuePrefetching(const std::vector<PrefetchRef>& tables, cudaStream_t stream);

}  // namespace group_embedding
