#include <algorithm>
#include <mutex>
#include <set>
#include <tuple>

#include "core/device_buffer.h"
#include "exchange/transport/peer_memory.h"

namespace group_embedding {
namespace {

// Peers read memory in smaller pages a third as fast, at random addresses.
constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// Memory that other processes may have open, and so is never freed: unused blocks are kept for
// later calls.
class ExportedMemory {
 public:
  static ExportedMemory& OfProcess() {
    static auto* memory = new ExportedMemory;  // never freed: the CUDA context may end first
    return *memory;
  }

  // Memory of the current device, a multiple of kLargePageBytes; null if it has too little.
  char* Take(int64_t bytes) {
    int device;
    RequireCuda(cudaGetDevice(&device));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto fits = free_.lower_bound({device, bytes, nullptr});
    Block block{device, bytes, nullptr};
    if (fits != free_.end() && fits->device == device && fits->bytes <= 2 * bytes) {
      block = *fits;
      free_.erase(fits);
    } else if (cudaMalloc(&block.data, bytes) != cudaSuccess) {
      cudaGetLastError();  // clears the error, which a later call would return
      return nullptr;
    }
    taken_.push_back(block);
    return block.data;
  }

  void Give(char* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = std::find_if(taken_.begin(), taken_.end(),
                                    [=](const Block& block) { return block.data == data; });
    if (taken == taken_.end()) return;
    free_.insert(*taken);
    taken_.erase(taken);
  }

 private:
  struct Block {
    int device;
    int64_t bytes;
    char* data;
    bool operator<(const Block& other) const {
      return std::tie(device, bytes, data) < std::tie(other.device, other.bytes, other.data);
    }
  };
  std::mutex mutex_;
  std::set<Block> free_;
  std::vector<Block> taken_;
};

// The values of all ranks, in their order.
template <typename T>
std::vector<T> AllGather(const T& mine, Communicator* communicator, cudaStream_t stream) {
  const int64_t num_ranks = communicator->num_ranks();
  const std::vector<T> copies(num_ranks, mine);
  DeviceBuffer<T> send(copies.data(), num_ranks, stream), receive(num_ranks);
  Require(ExchangeEqual(communicator, send.data(), receive.data(), sizeof(T), stream));
  Require(communicator->Wait(stream));
  return ToHost(receive.data(), num_ranks, stream);
}

// Its size is a multiple of 8 bytes, the smallest unit that NCCL reads.
struct Offer {
  int64_t has_memory;
  cudaIpcMemHandle_t handle;
};
static_assert(sizeof(Offer) % sizeof(int64_t) == 0);

// An error that names the first rank for which `found` is false.
Status FirstWithout(const std::vector<bool>& found, const std::string& what) {
  const auto first = std::find(found.begin(), found.end(), false);
  if (first == found.end()) return {};
  return "rank " + std::to_string(first - found.begin()) + " " + what;
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::Make(Communicator* communicator, int64_t bytes,
                                             cudaStream_t stream, Status* why_not) {
  const int rank = communicator->rank(), num_ranks = communicator->num_ranks();
  bytes = (std::max<int64_t>(bytes, 1) + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
  std::unique_ptr<PeerMemory> memory(new PeerMemory(rank, num_ranks, bytes));
  char* own = memory->data_[rank] = ExportedMemory::OfProcess().Take(bytes);
  Offer mine = {};
  mine.has_memory = own != nullptr && cudaMemsetAsync(own, 0, bytes, stream) == cudaSuccess &&
                    cudaIpcGetMemHandle(&mine.handle, own) == cudaSuccess;
  const std::vector<Offer> offers = AllGather(mine, communicator, stream);

  std::vector<bool> has_memory, reaches;
  for (const Offer& offer : offers) has_memory.push_back(offer.has_memory);
  *why_not = FirstWithout(has_memory, "has no " + std::to_string(bytes) + " bytes for its peers");
  if (!why_not->ok()) return nullptr;
  bool opened = true;
  for (int n = 0; n < num_ranks; ++n) {
    if (n == rank) continue;
    void* data = nullptr;
    opened &= cudaIpcOpenMemHandle(&data, offers[n].handle, cudaIpcMemLazyEnablePeerAccess) ==
              cudaSuccess;
    memory->data_[n] = static_cast<char*>(data);
  }
  cudaGetLastError();
  for (const int64_t of_rank : AllGather(int64_t{opened}, communicator, stream)) {
    reaches.push_back(of_rank != 0);
  }
  *why_not = FirstWithout(reaches, "cannot reach the memory of its peers");
  return why_not->ok() ? std::move(memory) : nullptr;
}

PeerMemory::~PeerMemory() {
  for (size_t n = 0; n < data_.size(); ++n) {
    if (static_cast<int>(n) != rank_ && data_[n] != nullptr) cudaIpcCloseMemHandle(data_[n]);
  }
  if (data_[rank_] != nullptr) ExportedMemory::OfProcess().Give(data_[rank_]);
}

}  // namespace group_embedding
