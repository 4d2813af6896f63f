#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/device_use.h"
#include "table/device/use_state.cuh"

namespace group_embedding {

DeviceUse::~DeviceUse() { cudaFree(state_); }

Status DeviceUse::Begin(cudaStream_t stream) {
  if (cudaMalloc(&state_, sizeof(UseState)) != cudaSuccess) {
    return NoDeviceMemory();
  }
  RequireCuda(cudaMemsetAsync(state_, 0, sizeof(UseState), stream));
  return {};
}

void DeviceUse::BeginCall(int64_t num_keys, DeviceTableRef* ref) {
  ref->found = before_.has_value() ? &state_->found_after : &state_->found;
  if (before_.has_value()) found_before_ += *before_;
  wait_nanoseconds_ += wait_before_;
  ForgetBefore();
  ref->num_admitted = &state_->num_admitted;
  num_looked_up_ += num_keys;
  const int64_t call = num_calls_++;
  if (call % kSampleEvery != 0) return;
  ref->sampled_part = static_cast<int32_t>(call / kSampleEvery % UseState::kNumParts);
  ref->sample = &state_->samples[ref->sampled_part];
}

void DeviceUse::CountBefore(DeviceTableRef* ref, cudaStream_t stream) {
  RequireCuda(cudaMemsetAsync(&state_->found_before, 0, sizeof(FoundCounts), stream));
  ref->found = &state_->found_before;
}

void DeviceUse::ReadBefore(cudaStream_t stream) {
  before_ = ToHost(&state_->found_before, 1, stream)[0];
}

UseCounts DeviceUse::Counts(cudaStream_t stream) const {
  const UseState state = ToHost(state_, 1, stream)[0];
  UseCounts counts;
  counts.num_looked_up = num_looked_up_;
  counts.num_found = {
      static_cast<int64_t>(state.found.in_first + found_before_.in_first),
      static_cast<int64_t>(state.found.below + found_before_.below),
      std::max<int64_t>(0, state.found_after.sum() - found_before_.sum()),
  };
  counts.num_admitted = static_cast<int64_t>(state.num_admitted);
  counts.expired = expired_;
  counts.wait_nanoseconds = wait_nanoseconds_;
  for (const PartSample& sample : state.samples) {
    counts.num_sampled_ids += static_cast<int64_t>(sample.num_ids);
    counts.num_sampled_keys += static_cast<int64_t>(sample.num_keys);
    const double share = static_cast<double>(sample.most) /
                         static_cast<double>(std::max<uint64_t>(1, sample.call_ids));
    counts.hottest_share = std::max(counts.hottest_share, share);
  }
  return counts;
}

}  // namespace group_embedding
