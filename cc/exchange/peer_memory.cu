#include <cstring>
#include <stdexcept>

#include "exchange/peer_memory.h"
#include "table/device_buffer.h"

namespace group_embedding {
namespace {

constexpr int64_t kPageBytes = int64_t{2} << 20;

struct BarrierArgs {
  uint64_t* flags[PeerMemory::kMaxRanks];  // of each rank: [num_ranks] the last barrier of each
  int rank, num_ranks;
  uint64_t epoch;
  uint64_t timeout_ns;
  int* failed;
  int64_t* late;
};

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Thread n tells rank n that this rank has come, and waits until rank n has said the same.
__global__ void BarrierKernel(const BarrierArgs args) {
  const int peer = threadIdx.x;
  if (peer >= args.num_ranks || peer == args.rank) return;
  if (*static_cast<volatile int*>(args.failed) != 0) return;
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.flags[peer] + args.rank),
               "l"(args.epoch)
               : "memory");
  const uint64_t* flag = args.flags[args.rank] + peer;
  const uint64_t start = Nanoseconds();
  for (;;) {
    uint64_t seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
    if (seen >= args.epoch) break;
    if (Nanoseconds() - start > args.timeout_ns) {
      *static_cast<volatile int*>(args.failed) = 1;
      *static_cast<volatile int64_t*>(args.late) = 1 + peer;
      break;
    }
  }
  __threadfence_system();
}

}  // namespace

// Whole pages of the largest size: of others, peers' random reads were a third as fast.
PeerMemory::PeerMemory(int64_t bytes)
    : bytes_((std::max(bytes, kReservedBytes) + kPageBytes - 1) / kPageBytes * kPageBytes) {
  RequireCuda(cudaMalloc(&data_, bytes_));
  RequireCuda(cudaMemset(data_, 0, bytes_));
  RequireCuda(cudaDeviceSynchronize());
}

PeerMemory::~PeerMemory() { cudaFree(data_); }

std::string PeerMemory::Handle() const {
  cudaIpcMemHandle_t handle;
  RequireCuda(cudaIpcGetMemHandle(&handle, data_));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

PeerRanks::PeerRanks(int rank, const PeerMemory* memory, const std::vector<std::string>& handles,
                     double timeout_seconds)
    : rank_(rank), timeout_seconds_(timeout_seconds), data_(handles.size(), nullptr) {
  const int num_ranks = static_cast<int>(handles.size());
  if (rank < 0 || rank >= num_ranks || num_ranks > PeerMemory::kMaxRanks) {
    throw std::runtime_error("peer memory: expected a rank of at most " +
                             std::to_string(PeerMemory::kMaxRanks) + ", got rank " +
                             std::to_string(rank) + " of " + std::to_string(num_ranks));
  }
  for (int n = 0; n < num_ranks; ++n) {
    if (n == rank) {
      data_[n] = memory->data();
      continue;
    }
    cudaIpcMemHandle_t handle;
    if (handles[n].size() != sizeof(handle)) {
      throw std::runtime_error("peer memory: the handle of rank " + std::to_string(n) + " has " +
                               std::to_string(handles[n].size()) + " bytes, expected " +
                               std::to_string(sizeof(handle)));
    }
    std::memcpy(&handle, handles[n].data(), sizeof(handle));
    void* data = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      throw std::runtime_error("peer memory: rank " + std::to_string(rank) +
                               " cannot reach the memory of rank " + std::to_string(n) +
                               ": CUDA: " + cudaGetErrorString(error));
    }
    data_[n] = static_cast<char*>(data);
  }
  RequireCuda(cudaMalloc(&failed_, sizeof(int)));
  RequireCuda(cudaMemset(failed_, 0, sizeof(int)));
  RequireCuda(cudaHostAlloc(&late_, sizeof(int64_t), cudaHostAllocMapped));
  *late_ = 0;
  RequireCuda(cudaDeviceSynchronize());
}

PeerRanks::~PeerRanks() {
  cudaDeviceSynchronize();
  for (int n = 0; n < num_ranks(); ++n) {
    if (n != rank_ && data_[n] != nullptr) cudaIpcCloseMemHandle(data_[n]);
  }
  cudaFree(failed_);
  cudaFreeHost(late_);
}

cudaError_t PeerRanks::EnqueueBarrier(cudaStream_t stream) {
  BarrierArgs args = {};
  for (int n = 0; n < num_ranks(); ++n) args.flags[n] = reinterpret_cast<uint64_t*>(data_[n]);
  args.rank = rank_;
  args.num_ranks = num_ranks();
  args.epoch = ++epoch_;
  args.timeout_ns = static_cast<uint64_t>(timeout_seconds_ * 1e9);
  args.failed = failed_;
  args.late = late_;
  BarrierKernel<<<1, PeerMemory::kMaxRanks, 0, stream>>>(args);
  return cudaGetLastError();
}

std::string PeerRanks::Error() const {
  const int64_t late = *static_cast<volatile int64_t*>(late_);
  if (late == 0) return "";
  return "rank " + std::to_string(rank_) + " of " + std::to_string(num_ranks()) +
         ": waited for rank " + std::to_string(late - 1) + " longer than " +
         std::to_string(timeout_seconds_) + " s, which hangs or is gone";
}

}  // namespace group_embedding
