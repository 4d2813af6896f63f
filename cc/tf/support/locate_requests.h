// RequestLocator: replaces the keys that ranks request from this one by row numbers of its tables
// on a GPU.
#pragma once

#if GOOGLE_CUDA

#include <memory>
#include <vector>

#include "exchange/gpu/number_keys.h"
#include "exchange/transport/communicator.h"
#include "table/device/device_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/support/group_attrs.h"
#include "tf/support/located_batch.h"
#include "tf/support/tables.h"

namespace group_embedding {

// The features of a batch whose tables are in `keyed`.
std::vector<KeyedFeature> KeyedFeaturesOf(const std::vector<int32_t>& keyed,
                                          const BatchInput& batch,
                                          const std::vector<Feature>& features);

// For one op: its batches of the tables begin with it.
class RequestLocator {
 public:
  // keyed: which of the tables. steps: of each that trains, else -1, so that its keys are read.
  RequestLocator(tensorflow::OpKernelContext* context, const Tables& tables,
                 std::vector<int32_t> keyed, std::vector<int64_t> steps, std::vector<bool> trains);

  // Replaces the keys in `requests` by the rows that are read, as the exchange's lookup expects it.
  // requested: [num_ranks, num_tables]. Throws std::runtime_error, such as of a table that is full;
  // `status` then says which.
  std::vector<Table> Locate(const std::vector<int64_t>& requested, int64_t* requests,
                            const int64_t* times);
  const absl::Status& status() const { return status_; }

  // The batch of requests by the rows that are trained. Whoever holds the tensor keeps the rows
  // from being given to other keys. Throws as Locate.
  tensorflow::Tensor Hold(const tensorflow::Tensor& requests, bool training);

 private:
  // Whether a filter may give keys rows that are not read yet.
  bool MayAdmit() const;
  std::vector<DeviceKeysToLocate> RequestsOf(size_t table, const std::vector<int64_t>& requested,
                                             int64_t* rows, int64_t* reads,
                                             const int64_t* times) const;
  void Run(const std::vector<DeviceKeysToLocate>& requests, Access access, int64_t step);

  tensorflow::OpKernelContext* const context_;
  std::vector<Table> tables_;
  const std::vector<int32_t> keyed_;
  const std::vector<int64_t> steps_;
  const std::vector<bool> trains_;
  std::vector<std::unique_ptr<BatchLease>> leases_;
  tensorflow::Tensor trained_;  // rows of all requests, where they are not those that are read
  absl::Status status_;
};

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
