// Reports faults that CUDA threads find, without waiting for the GPU.
//
// Each op kernel owns a Fault in host memory that the GPU can write. A thread that finds bad input
// stores it there and continues with zeros. The next op of this library raises the error:
// GroupLookupGrad in the same step, after a synchronisation that it needs anyway, or any lookup
// when it starts.
#pragma once

#if GOOGLE_CUDA

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "core/fault.h"

namespace group_embedding {

class GpuFaultSlot {
 public:
  using Explain = std::function<absl::Status(const Fault&)>;

  GpuFaultSlot();
  ~GpuFaultSlot();
  GpuFaultSlot(const GpuFaultSlot&) = delete;
  GpuFaultSlot& operator=(const GpuFaultSlot&) = delete;

  // Where the next launch stores its first fault, and how to put it in words. Null when no host
  // memory could be had; then `status` says so.
  Fault* Arm(Explain explain, absl::Status* status);

 private:
  struct State;
  State* state_;  // in the process-wide list, never freed: the GPU may still write to it

  friend absl::Status RaiseGpuFaults();
};

// The error of any slot that holds a fault, which is then empty again.
absl::Status RaiseGpuFaults();

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
