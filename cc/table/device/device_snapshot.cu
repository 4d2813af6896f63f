#include <algorithm>
#include <cstring>

#include "table/device/device_memory.h"
#include "table/device/device_snapshot.h"
#include "table/device/row_aside.cuh"
#include "table/device/thread_each.cuh"

namespace group_embedding {
namespace {

// A thread has one row; a warp copies together.
__global__ void PutRowsAsideKernel(const AsideRef* aside, const int64_t* rows, int64_t count) {
  const int64_t i = ThreadIndex();
  PutAside(*aside, i < count ? rows[i] : kNoRow);
}

__global__ void ReportAsideKernel(const unsigned long long* num_aside, int64_t enqueued,
                                  volatile int64_t* reported) {
  reported[1] = static_cast<int64_t>(*num_aside);
  __threadfence_system();
  reported[0] = enqueued;
}

// A thread has one row; a warp together copies those of its rows that belong to the snapshot.
__global__ void GatherRowsKernel(const AsideRef* ref, int64_t begin, int64_t end) {
  const AsideRef& aside = *ref;
  const int64_t row = begin + ThreadIndex();
  const int lane = threadIdx.x % kWarpSize;
  bool is_wanted = false;
  uint32_t state = AsideRef::kUntouched;
  if (row < end) {
    state = aside.states[row];
    is_wanted =
        state >= AsideRef::kFirstAside || (state == AsideRef::kUntouched && aside.IsWanted(row));
    aside.states[row] = AsideRef::kDone;
  }
  const unsigned votes = __ballot_sync(kFullWarp, is_wanted);
  unsigned long long first = 0;
  if (lane == 0 && votes != 0) first = atomicAdd(aside.num_out, __popc(votes));
  first = __shfl_sync(kFullWarp, first, 0);
  for (unsigned left = votes; left != 0; left &= left - 1, ++first) {
    const int from = __ffs(left) - 1;
    const int64_t its_row = __shfl_sync(kFullWarp, row, from);
    const uint32_t its_state = __shfl_sync(kFullWarp, state, from);
    for (int p = 0; p < aside.num_parts; ++p) {
      const RowPart& part = aside.parts[p];
      const char* source =
          its_state == AsideRef::kUntouched
              ? part.live + its_row * part.bytes
              : part.aside + int64_t{its_state - AsideRef::kFirstAside} * part.bytes;
      CopyBytes(source, part.out + first * part.bytes, part.bytes, lane);
    }
  }
}

}  // namespace

RowAside::RowAside(const std::vector<RowPart>& parts, int64_t first_row, int64_t num_rows,
                   int64_t changed_since, cudaStream_t stream, std::string* error)
    : num_rows_(num_rows) {
  AsideRef ref{};
  ref.num_parts = static_cast<int32_t>(parts.size());
  ref.first_row = first_row;
  ref.num_rows = num_rows;
  ref.changed_since = changed_since;
  const int64_t read_rows = std::min(num_rows, kRowsPerRead);
  for (size_t p = 0; p < parts.size() && error->empty(); ++p) {
    part_bytes_.push_back(parts[p].bytes);
    aside_.push_back(ReserveDeviceMemory(num_rows * parts[p].bytes));
    out_.push_back(ReserveDeviceMemory(read_rows * parts[p].bytes));
    *error = out_[p]->Grow(read_rows * parts[p].bytes);
    ref.parts[p] = {parts[p].live, aside_[p]->data(), out_[p]->data(), parts[p].bytes};
  }
  states_ = ReserveDeviceMemory(num_rows * static_cast<int64_t>(sizeof(uint32_t)));
  small_ = ReserveDeviceMemory(sizeof(AsideRef) + kScratchAlignment);
  if (error->empty()) *error = states_->Grow(num_rows * static_cast<int64_t>(sizeof(uint32_t)));
  if (error->empty()) *error = small_->Grow(sizeof(AsideRef) + kScratchAlignment);
  if (!error->empty()) return;
  counters_ = reinterpret_cast<unsigned long long*>(small_->data());
  ref_ = reinterpret_cast<AsideRef*>(small_->data() + kScratchAlignment);
  ref.states = reinterpret_cast<uint32_t*>(states_->data());
  ref.num_aside = counters_;
  ref.num_out = counters_ + 1;
  cudaError_t failed = cudaMemcpyAsync(ref_, &ref, sizeof(ref), cudaMemcpyHostToDevice, stream);
  if (failed == cudaSuccess) failed = cudaMallocHost(&reported_, sizeof(Counts));
  if (failed == cudaSuccess) failed = cudaStreamSynchronize(stream);
  if (failed != cudaSuccess) {
    *error = std::string("CUDA: ") + cudaGetErrorString(failed);
    return;
  }
  *reported_ = {};
}

RowAside::~RowAside() {
  cudaDeviceSynchronize();
  cudaFreeHost(reported_);
}

std::string RowAside::MakeSpace(int64_t num_rows) {
  enqueued_ += num_rows;
  const volatile Counts* reported = reported_;
  const int64_t since = enqueued_ - reported->enqueued;  // before num_aside, which may be newer
  const int64_t rows = std::min(num_rows_, reported->num_aside + since);
  for (size_t p = 0; p < aside_.size(); ++p) {
    const std::string error = aside_[p]->Grow(rows * part_bytes_[p]);
    if (!error.empty()) return error;
  }
  return "";
}

cudaError_t RowAside::Put(const int64_t* rows, int64_t num_rows, cudaStream_t stream) const {
  PutRowsAsideKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(ref_, rows, num_rows);
  return Report(stream);
}

cudaError_t RowAside::Report(cudaStream_t stream) const {
  ReportAsideKernel<<<1, 1, 0, stream>>>(counters_, enqueued_,
                                         reinterpret_cast<int64_t*>(reported_));
  return cudaGetLastError();
}

cudaError_t RowAside::Gather(int64_t begin, int64_t end, cudaStream_t stream) const {
  const cudaError_t error = cudaMemsetAsync(counters_ + 1, 0, sizeof(unsigned long long), stream);
  if (error != cudaSuccess) return error;
  GatherRowsKernel<<<BlocksFor(end - begin), kThreads, 0, stream>>>(ref_, begin, end);
  return cudaGetLastError();
}

std::string RowAside::CopyOut(cudaStream_t stream, KeyedRows* rows) const {
  unsigned long long count = 0;
  cudaError_t error =
      cudaMemcpyAsync(&count, counters_ + 1, sizeof(count), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  std::vector<RowInfo> infos(error == cudaSuccess ? count : 0);
  rows->slots.resize(num_slots());
  for (size_t p = 0; p < out_.size() && error == cudaSuccess; ++p) {
    const size_t bytes = count * part_bytes_[p];
    char* to = reinterpret_cast<char*>(infos.data());
    if (p > 0) {
      std::vector<char>& array = p == 1 ? rows->values : rows->slots[p - 2];
      array.resize(array.size() + bytes);
      to = array.data() + array.size() - bytes;
    }
    error = cudaMemcpyAsync(to, out_[p]->data(), bytes, cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return std::string("CUDA: ") + cudaGetErrorString(error);
  for (const RowInfo& info : infos) {
    rows->keys.push_back(info.key);
    rows->counts.push_back(info.count);
    rows->versions.push_back(info.version);
  }
  return "";
}

}  // namespace group_embedding
