#include "tf/support/gpu_faults.h"

#if GOOGLE_CUDA

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

namespace group_embedding {

struct GpuFaultSlot::State {
  Fault* fault = nullptr;  // pinned
  Explain explain;
  bool owned = false;
};

namespace {

std::mutex& Mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

std::vector<void*>& States() {
  static std::vector<void*>* states = new std::vector<void*>;
  return *states;
}

}  // namespace

GpuFaultSlot::GpuFaultSlot() : state_(nullptr) {
  std::lock_guard<std::mutex> lock(Mutex());
  for (void* state : States()) {
    State* free = static_cast<State*>(state);
    if (!free->owned && (free->fault == nullptr || free->fault->kind == FaultKind::kNone)) {
      state_ = free;
    }
  }
  if (state_ == nullptr) {
    state_ = new State;
    States().push_back(state_);
  }
  state_->owned = true;
}

GpuFaultSlot::~GpuFaultSlot() {
  std::lock_guard<std::mutex> lock(Mutex());
  state_->owned = false;
}

Fault* GpuFaultSlot::Arm(Explain explain, absl::Status* status) {
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_->fault == nullptr) {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, sizeof(Fault), cudaHostAllocMapped);
    if (error != cudaSuccess) {
      *status =
          absl::ResourceExhaustedError(std::string("cudaHostAlloc: ") + cudaGetErrorString(error));
      return nullptr;
    }
    state_->fault = new (memory) Fault;
  }
  state_->explain = std::move(explain);
  return state_->fault;
}

absl::Status RaiseGpuFaults() {
  std::lock_guard<std::mutex> lock(Mutex());
  for (void* entry : States()) {
    auto* state = static_cast<GpuFaultSlot::State*>(entry);
    if (state->fault == nullptr) continue;
    const volatile FaultKind* kind = &state->fault->kind;
    if (*kind == FaultKind::kNone) continue;
    const Fault fault = *state->fault;
    *state->fault = Fault();
    return state->explain(fault);
  }
  return absl::OkStatus();
}

}  // namespace group_embedding

#endif  // GOOGLE_CUDA
