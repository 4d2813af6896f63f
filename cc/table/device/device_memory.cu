#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "core/device_buffer.h"
#include "table/device/device_memory.h"
#include "table/memory_left.h"

namespace group_embedding {
namespace {

// The driver's functions; null where there is none.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_addresses;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuGetErrorString) error_string;

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }
  bool complete() const {
    return reserve && free_addresses && create && release && map && unmap && set_access &&
           granularity && error_string;
  }
  std::string Text(CUresult result) const {
    const char* text = nullptr;
    error_string(result, &text);
    return text == nullptr ? "unknown error" : text;
  }

 private:
  Driver() {
    Find("cuMemAddressReserve", &reserve);
    Find("cuMemAddressFree", &free_addresses);
    Find("cuMemCreate", &create);
    Find("cuMemRelease", &release);
    Find("cuMemMap", &map);
    Find("cuMemUnmap", &unmap);
    Find("cuMemSetAccess", &set_access);
    Find("cuMemGetAllocationGranularity", &granularity);
    Find("cuGetErrorString", &error_string);
  }

  template <typename Function>
  static void Find(const char* name, Function* function) {
    void* found = nullptr;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault);
#else
    cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
    *function = reinterpret_cast<Function>(found);
  }
};

CUmemLocation Location(CUmemLocationType type, int id) {
  CUmemLocation location = {};
  location.type = type;
  location.id = id;
  return location;
}

CUmemAllocationProp Properties(CUmemLocation location) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location;
  return properties;
}

class MappedMemory : public DeviceMemory {
 public:
  MappedMemory(int64_t device_bytes, int64_t max_bytes) : driver_(Driver::Get()) {
    cudaFree(nullptr);  // makes the device's context, if nothing has
    if (cudaGetDevice(&device_) != cudaSuccess || !driver_.complete()) return;
    for (const CUmemLocation location : {OnDevice(), OnHost()}) {
      const CUmemAllocationProp properties = Properties(location);
      size_t bytes = 0;
      if (driver_.granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
          CUDA_SUCCESS) {
        piece_bytes_ = std::max<int64_t>(piece_bytes_, bytes);
      }
    }
    device_bytes_ = device_bytes > 0 ? RoundUp(device_bytes) : 0;
    // Addresses run out long before memory does where many tables reserve all of it.
    CUdeviceptr at = 0;
    reserved_ = RoundUp(max_bytes);
    while (driver_.reserve(&at, reserved_, 0, 0, 0) != CUDA_SUCCESS) {
      if (reserved_ == piece_bytes_) return;
      reserved_ = RoundUp(reserved_ / 2);
    }
    data_ = reinterpret_cast<char*>(at);
  }

  ~MappedMemory() override {
    if (data_ == nullptr) return;
    cudaDeviceSynchronize();
    for (const Piece& piece : pieces_) {
      driver_.unmap(piece.at, piece.bytes);
      driver_.release(piece.handle);
    }
    driver_.free_addresses(reinterpret_cast<CUdeviceptr>(data_), reserved_);
  }

  void LimitDevice(int64_t device_bytes) override {
    device_bytes_ = std::min(device_bytes_, std::max(bytes_, RoundUp(device_bytes)));
  }

  void Release(int64_t bytes) override {
    for (; bytes > 0 && !pieces_.empty(); pieces_.pop_back()) {
      const Piece& piece = pieces_.back();
      driver_.unmap(piece.at, piece.bytes);
      driver_.release(piece.handle);
      bytes_ -= static_cast<int64_t>(piece.bytes);
      bytes -= static_cast<int64_t>(piece.bytes);
    }
  }

  Status Grow(int64_t bytes) override {
    if (bytes <= bytes_) return {};
    if (data_ == nullptr) return "the device or its driver has no virtual memory management";
    if (bytes > reserved_) {
      return "it wants " + std::to_string(bytes) + " bytes, and has addresses for " +
             std::to_string(reserved_);
    }
    const int64_t wanted = RoundUp(bytes);
    while (bytes_ < wanted) {
      const int64_t begin = bytes_;
      const bool on_device = begin < device_bytes_;
      const int64_t tier_end = on_device ? device_bytes_ : reserved_;
      const int64_t end = std::min({wanted, tier_end, begin + kMostPieceBytes});
      const CUresult result = Map(begin, end - begin);
      if (result != CUDA_SUCCESS) return WhatIsLeft(end - begin, on_device, result);
      bytes_ = end;
      Status status = Clear(begin, end);
      if (!status.ok()) return status;
    }
    return {};
  }

 private:
  static constexpr int64_t kMostPieceBytes = int64_t{512} << 20;

  struct Piece {
    CUdeviceptr at;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
  };

  CUmemLocation OnDevice() const { return Location(CU_MEM_LOCATION_TYPE_DEVICE, device_); }
  CUmemLocation OnHost() const {
    int node = 0;
#if CUDA_VERSION >= 12020
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device_) != cudaSuccess) node = 0;
    return Location(CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0));
#else
    return Location(CU_MEM_LOCATION_TYPE_INVALID, node);
#endif
  }
  int64_t RoundUp(int64_t bytes) const {
    return (std::max<int64_t>(bytes, 1) + piece_bytes_ - 1) / piece_bytes_ * piece_bytes_;
  }

  Status WhatIsLeft(int64_t more, bool on_device, CUresult result) const {
    const std::string wants =
        "it wants " + std::to_string(more) + " bytes beside " + std::to_string(bytes_);
    if (!on_device) {
      return wants + " of the host's memory, page-locked, and " + FindHostMemoryLeft().InWords() +
             " (" + driver_.Text(result) + ")";
    }
    return wants + ", and " + std::to_string(DeviceBytesLeft()) +
           " bytes of the GPU's memory are left (" + driver_.Text(result) + ")";
  }

  // One piece at [begin, begin + bytes), of one tier. The driver gives no error where the host has
  // too little memory: the kernel ends a process.
  CUresult Map(int64_t begin, int64_t bytes) {
    const bool on_device = begin < device_bytes_;
    if (!on_device && !HasMemoryFor(bytes, FindHostMemoryLeft())) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUmemAllocationProp properties = Properties(on_device ? OnDevice() : OnHost());
    Piece piece = {reinterpret_cast<CUdeviceptr>(data_) + begin, static_cast<size_t>(bytes), 0};
    CUresult result = driver_.create(&piece.handle, piece.bytes, &properties, 0);
    if (result == CUDA_SUCCESS) {
      result = driver_.map(piece.at, piece.bytes, 0, piece.handle, 0);
      if (result == CUDA_SUCCESS) {
        result = Allow(piece, on_device);
        if (result != CUDA_SUCCESS) driver_.unmap(piece.at, piece.bytes);
      }
      if (result != CUDA_SUCCESS) driver_.release(piece.handle);
    }
    if (result == CUDA_SUCCESS) pieces_.push_back(piece);
    return result;
  }

  CUresult Allow(const Piece& piece, bool on_device) const {
    CUmemAccessDesc access[2] = {};
    access[0] = {OnDevice(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access[1] = {OnHost(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver_.set_access(piece.at, piece.bytes, access, on_device ? 1 : 2);
  }

  // On a stream of its own: nothing waits but for the new memory.
  Status Clear(int64_t begin, int64_t end) const {
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
      error = cudaMemsetAsync(data_ + begin, 0, end - begin, stream);
      if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    return CudaStatus(error);
  }

  const Driver& driver_;
  int device_ = 0;
  int64_t piece_bytes_ = int64_t{2} << 20;
  int64_t device_bytes_ = 0, reserved_ = 0;
  std::vector<Piece> pieces_;
};

template <typename Word>
__global__ void CopyKernel(const Word* from, Word* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
}

}  // namespace

cudaError_t CopyTieredMemory(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 4096;
  const char* const source = static_cast<const char*>(from);
  char* const target = static_cast<char*>(to);
  const auto copy = [&](auto word, int64_t begin, int64_t end) {
    using Word = decltype(word);
    const int64_t count = (end - begin) / static_cast<int64_t>(sizeof(Word));
    const int64_t blocks = std::clamp<int64_t>((count + kThreads - 1) / kThreads, 0, kMostBlocks);
    if (blocks == 0) return;
    CopyKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        reinterpret_cast<const Word*>(source + begin), reinterpret_cast<Word*>(target + begin),
        count);
  };
  constexpr int64_t kWordBytes = sizeof(uint4);
  const auto starts = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  const int64_t in_words = starts % kWordBytes == 0 ? bytes / kWordBytes * kWordBytes : 0;
  copy(uint4{}, 0, in_words);
  copy(uint8_t{}, in_words, bytes);
  return cudaGetLastError();
}

std::unique_ptr<DeviceMemory> ReserveDeviceMemory(int64_t max_bytes) {
  return std::make_unique<MappedMemory>(max_bytes, max_bytes);
}

std::unique_ptr<DeviceMemory> ReserveTieredMemory(int64_t device_bytes, int64_t max_bytes) {
  return std::make_unique<MappedMemory>(device_bytes, max_bytes);
}

}  // namespace group_embedding
