// Counts how often keys come in a call, of the parts of its tables that the call samples
// (device_use.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace group_embedding {

struct LocateArgs;

// A slot of a hash table with the keys of the samples. It has four slots for each key that these
// are expected to have; keys that find none are not counted.
struct SampledKey {
  unsigned long long first;  // the position of one of its ids, + 1; 0: the slot is empty
  unsigned long long count;  // ids
};

// How many slots a call with so many ids has.
inline int64_t NumSampleSlots(int64_t num_positions) { return 256 + num_positions / 16; }

// Before the ids are located, as rows may be written over them.
cudaError_t SampleKeys(const LocateArgs& args, int64_t num_blocks, SampledKey* slots,
                       int64_t num_slots, cudaStream_t stream);

}  // namespace group_embedding
