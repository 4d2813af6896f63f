// Stores of many bytes at once, which the multiprocessor's copy engine does: rows are put together
// in shared memory, and leave from there while the warp reads the next. From Hopper on.
//
// A warp that stores to another GPU word by word holds up whatever else its multiprocessor reads
// and writes, as all wait in the same queue; these do not stand in it.
//
// From the PTX ISA, cp.async.bulk.
#pragma once

#include <cstdint>

#include "core/descriptors.cuh"

namespace group_embedding {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkStores = true;
#else
inline constexpr bool kHasBulkStores = false;
#endif

// Of the code that the device runs.
inline bool HasBulkStores(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

// A warp's pieces of shared memory, used in turn: [kPieces, kBytes], aligned to 16 bytes.
template <int kPieces, int kBytes>
class BulkStores {
 public:
  static constexpr int kBytesOfWarp = kPieces * kBytes;

  __device__ BulkStores(char* shared, int lane) : shared_(shared), lane_(lane) {}

  // The warp may write a piece from here on: what was stored from there has left.
  __device__ char* Next() {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPieces - 1) : "memory");
#endif
    __syncwarp();
    piece_ = (piece_ + 1) % kPieces;
    return shared_ + piece_ * kBytes;
  }

  // The warp has written so many bytes of that piece. to, num_bytes: multiples of 16.
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

  // All is where it goes, and the warp's first lane sees it there.
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
