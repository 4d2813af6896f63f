// BloomCounters (bloom_counters.h) on the device, with the same counters at the same indices.
#pragma once

#include "table/device/device_table_ref.cuh"

namespace group_embedding {

class DeviceBloom {
 public:
  __device__ DeviceBloom(unsigned long long* words, const Admission& admission)
      : words_(words), admission_(admission) {}

  // Counts `times` occurrences of a key; other threads may do so for other keys.
  __device__ void Add(uint64_t hash, int64_t times) const {
    for (int32_t h = 0; h < admission_.num_hashes; ++h) {
      const int64_t counter = Counter(hash, h);
      bool is_repeated = false;  // counters that several hashes name are counted once
      for (int32_t g = 0; g < h; ++g) is_repeated |= Counter(hash, g) == counter;
      if (!is_repeated) Raise(counter, times);
    }
  }

  // How often a key was seen, or more.
  __device__ int64_t Count(uint64_t hash) const {
    uint64_t least = ~uint64_t{0} >> 1;
    for (int32_t h = 0; h < admission_.num_hashes; ++h) {
      const int64_t counter = Counter(hash, h);
      const uint64_t count = __ldcg(Word(counter)) >> Shift(counter) & Max();
      least = min(least, count);
    }
    return static_cast<int64_t>(least);
  }

 private:
  __device__ int64_t Counter(uint64_t hash, int32_t h) const {
    const uint64_t other = MixBits(hash + 0x9e3779b97f4a7c15ULL) | 1;
    return static_cast<int64_t>((hash + h * other) %
                                static_cast<uint64_t>(admission_.num_counters));
  }
  __device__ uint64_t Max() const { return ~uint64_t{0} >> (64 - 8 * admission_.counter_bytes); }
  __device__ int Shift(int64_t counter) const {
    return static_cast<int>(counter % (8 / admission_.counter_bytes)) * 8 *
           admission_.counter_bytes;
  }
  __device__ unsigned long long* Word(int64_t counter) const {
    return words_ + counter / (8 / admission_.counter_bytes);
  }
  __device__ void Raise(int64_t counter, int64_t times) const {
    unsigned long long* word = Word(counter);
    unsigned long long old = __ldcg(word), seen;
    do {
      seen = old;
      const uint64_t count = seen >> Shift(counter) & Max();
      const uint64_t raised = min(Max() - count, static_cast<uint64_t>(times));
      if (raised == 0) return;
      old = atomicCAS(word, seen, seen + (raised << Shift(counter)));
    } while (old != seen);
  }

  unsigned long long* const words_;
  const Admission& admission_;
};

}  // namespace group_embedding
