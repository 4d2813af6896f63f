// JoinedKeys: keys of several requests of one table, in one array. KeysAhead: those of the next
// batch, whose rows are brought from disk while the device computes this one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device_buffer.h"
#include "table/device/device_hash.h"

namespace group_embedding {

class JoinedKeys {
 public:
  // In memory of the stream `own`, copied on `stream`, which waits for that memory.
  JoinedKeys(const std::vector<DeviceKeys>& keys, cudaStream_t own, cudaStream_t stream)
      : num_keys_(Count(keys)), all_(num_keys_, own) {
    int64_t* to = all_.data();
    for (const DeviceKeys& some : keys) {
      RequireCuda(cudaMemcpyAsync(to, some.keys, some.num_keys * sizeof(int64_t),
                                  cudaMemcpyDeviceToDevice, stream));
      to += some.num_keys;
    }
  }

  const int64_t* data() const { return all_.data(); }
  int64_t num_keys() const { return num_keys_; }

 private:
  static int64_t Count(const std::vector<DeviceKeys>& keys) {
    int64_t count = 0;
    for (const DeviceKeys& some : keys) count += some.num_keys;
    return count;
  }

  const int64_t num_keys_;
  const StreamBuffer<int64_t> all_;
};

struct KeysAhead {
  JoinedKeys keys;
  int64_t held_since;  // rows located in a call since then stay in memory
  bool is_sought = false;
  std::vector<int64_t> missing;  // once sought: keys without a row in memory, as they lie on disk
  size_t num_prefetched = 0;     // of these, or not on disk either
};

}  // namespace group_embedding
