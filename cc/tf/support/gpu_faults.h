// Faults that CUDA threads find, reported without waiting for the GPU.
//
// Each op kernel owns a slot of host memory that the GPU can write. A thread that meets bad input
// stores it there and goes on with zeros; whichever op of this library looks next raises the error:
// GroupLookupGrad does so in the same step, after the one synchronisation that it needs anyway, and
// every lookup does so when it starts.
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
