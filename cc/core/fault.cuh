// Faults found by CUDA threads.
#pragma once

#include "core/fault.h"

namespace group_embedding {

// Stores a fault unless one is there. `fault` may be in the host's memory; the host resets it with
// `*fault = Fault{}` and may look at any time: the kind is written last.
__device__ inline void RaiseFault(Fault* fault, FaultKind kind, int64_t feature, int64_t sample,
                                  int64_t value) {
  // The thread that sets `feature` first stores its fault; others do nothing.
  volatile Fault* shared = fault;
  if (shared->feature != -1) return;
  if (atomicCAS_system(&fault->feature, -1, static_cast<int32_t>(feature)) != -1) return;
  shared->sample = sample;
  shared->value = value;
  __threadfence_system();
  *reinterpret_cast<volatile int32_t*>(&fault->kind) = static_cast<int32_t>(kind);
}

}  // namespace group_embedding
