// DeviceUse: counts what a table in GPU memory is asked for, as TableUse does in host memory. The
// kernels that locate keys count what they find; the host reads that when it is asked.
//
// How ids repeat is sampled: one call in kSampleEvery counts the keys of one part of the table, by
// their hash, another one each time (sample_keys.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "core/status.h"
#include "table/device/found_counts.h"
#include "table/use_counts.h"

namespace group_embedding {

struct DeviceTableRef;
struct UseState;

// Not thread-safe: the caller has the table's lock.
class DeviceUse {
 public:
  static constexpr int64_t kSampleEvery = 32;

  DeviceUse() = default;
  ~DeviceUse();
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;

  Status Begin(cudaStream_t stream);
  // A call locates so many keys, with the table as `ref`, which says then where kernels count.
  void BeginCall(int64_t num_keys, DeviceTableRef* ref);
  // For a call that looks for rows below memory, before BeginCall: the kernel that looks which are
  // missing counts the others where `ref` says then. Once it has run, ReadBefore reads them; waits
  // for the stream. ForgetBefore: the call does not come.
  void CountBefore(DeviceTableRef* ref, cudaStream_t stream);
  void ReadBefore(cudaStream_t stream);
  void AddWait(int64_t nanoseconds) { wait_before_ += nanoseconds; }  // of the call that comes
  void ForgetBefore() {
    before_.reset();
    wait_before_ = 0;
  }

  void AddExpired(const ExpiredCounts& counts) { expired_ += counts; }
  // Waits for the stream.
  UseCounts Counts(cudaStream_t stream) const;

 private:
  UseState* state_ = nullptr;          // in device memory
  std::optional<FoundCounts> before_;  // by the call that comes next; none: it did not look
  int64_t wait_before_ = 0;            // of that call
  FoundCounts found_before_{};         // by calls that came
  int64_t num_calls_ = 0, num_looked_up_ = 0, wait_nanoseconds_ = 0;
  ExpiredCounts expired_;
};

}  // namespace group_embedding
