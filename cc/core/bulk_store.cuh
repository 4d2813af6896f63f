// BulkStores: asynchronous copies of many bytes from shared memory to global memory, made by a
// multiprocessor's copy engine (PTX ISA, cp.async.bulk). From Hopper on. A warp collects rows in
// shared memory, starts the copy and goes on with the next rows.
//
// Stores of single words to another GPU wait in a queue of the multiprocessor, which delays all its
// other reads and writes. Bulk copies do not use that queue.
#pragma once

#include <cstdint>

#include "core/descriptors.cuh"

namespace group_embedding {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkStores = true;
#else
inline constexpr bool kHasBulkStores = false;
#endif

// Whether the code of `kernel` that this device runs has bulk stores.
inline bool HasBulkStores(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

// A warp's ring of kPieces pieces of shared memory, [kPieces, kBytes], aligned to 16 bytes.
template <int kPieces, int kBytes>
class BulkStores {
 public:
  static constexpr int kBytesOfWarp = kPieces * kBytes;

  __device__ BulkStores(char* shared, int lane) : shared_(shared), lane_(lane) {}

  // Waits until the copy from the next piece is complete, and returns the piece for the warp to
  // fill.
  __device__ char* Next() {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPieces - 1) : "memory");
#endif
    __syncwarp();
    piece_ = (piece_ + 1) % kPieces;
    return shared_ + piece_ * kBytes;
  }

  // Starts the copy of the first num_bytes bytes of the piece to `to`; both multiples of 16.
  __device__ void Store(void* to, int num_bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane_ != 0) return;
    const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_ + piece_ * kBytes));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(num_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
  }

  // Waits until all copies are complete and visible to the warp's first lane.
  __device__ void Finish() const {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    __syncwarp();
  }

 private:
  char* const shared_;
  const int lane_;
  int piece_ = 0;
};

}  // namespace group_embedding
