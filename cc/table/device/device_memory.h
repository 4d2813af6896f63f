// DeviceMemory: GPU memory that grows without moving (memory.h), by CUDA's virtual memory
// management. Its functions are found at run time, so that no library links the driver.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "table/memory.h"

namespace group_embedding {

class DeviceMemory : public Memory {
 public:
  // From now on only the first `device_bytes` are to be the device's memory; what is there stays.
  virtual void LimitDevice(int64_t device_bytes) = 0;
  // Gives back memory from the end, about so many bytes, that nothing on the device uses any more.
  virtual void Release(int64_t bytes) = 0;
};

// At most `max_bytes` of the memory of the device that is current.
std::unique_ptr<DeviceMemory> ReserveDeviceMemory(int64_t max_bytes);

// The first `device_bytes` are the current device's memory, what follows is the host's,
// page-locked: kernels read and write both in place, the latter over the bus. The host can use the
// latter alone; with no bytes of the device, all of it.
std::unique_ptr<DeviceMemory> ReserveTieredMemory(int64_t device_bytes, int64_t max_bytes);

// Copies by a kernel. CUDA's own copies take a whole range for what its first byte is, and crash
// where one goes on in the other tier.
cudaError_t CopyTieredMemory(const void* from, void* to, int64_t bytes, cudaStream_t stream);

}  // namespace group_embedding
