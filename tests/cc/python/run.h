// What running the core from Python takes on either device: threads, scratch memory, faults.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <string>

#include "core/fault.h"
#include "core/parallel.h"

#if GROUP_EMBEDDING_CUDA
#include <cuda_runtime_api.h>
#endif

namespace group_embedding {

// A ParallelFor with threads of its own, started for each call.
ParallelFor ThreadedFor(int num_threads);

// Pieces of memory that the caller's library gives, kept until the end.
class Scratch {
 public:
  // `allocate`: num_bytes -> array of at least so many bytes; None on the host.
  Scratch(pybind11::object allocate, bool on_gpu);
  // The piece of that name; a later call with the same name gives the same piece.
  void* Get(const std::string& name, int64_t bytes);

 private:
  struct Piece {
    pybind11::object owner;
    void* data = nullptr;
    int64_t bytes = 0;
  };
  pybind11::object allocate_;
  bool on_gpu_;
  std::map<std::string, Piece> pieces_;
};

// RuntimeError with the word `what` in it, unless `error` is success.
#if GROUP_EMBEDDING_CUDA
void CheckCuda(cudaError_t error, const char* what);
#endif

// Where CUDA threads leave a fault.
class DeviceFault {
 public:
  explicit DeviceFault(Scratch* scratch);
  Fault* pointer() const { return fault_; }
  // Waits for `stream`, returns the fault and clears it.
  Fault Take(uintptr_t stream);

 private:
  Fault* fault_;
};

}  // namespace group_embedding
