#include <algorithm>
#include <cstring>

#include "table/device/device_memory.h"
#include "table/device/device_snapshot.h"
#include "table/device/row_copies.cuh"
#include "table/device/thread_each.cuh"

namespace group_embedding {
namespace {

// A thread has one row; a warp copies together.
__global__ void CopyRowsKernel(const RowCopiesRef* copies, const int64_t* rows, int64_t count) {
  const int64_t i = ThreadIndex();
  CopyForSnapshot(*copies, i < count ? rows[i] : kNoRow);
}

__global__ void ReportCopiesKernel(const unsigned long long* num_copies, int64_t enqueued,
                                   volatile int64_t* reported) {
  reported[1] = static_cast<int64_t>(*num_copies);
  __threadfence_system();
  reported[0] = enqueued;
}

// A thread has one row; a warp together copies those of its rows that belong to the snapshot.
__global__ void GatherRowsKernel(const RowCopiesRef* ref, int64_t begin, int64_t end) {
  const RowCopiesRef& copies = *ref;
  const int64_t row = begin + ThreadIndex();
  const int lane = threadIdx.x % kWarpSize;
  bool is_wanted = false;
  uint32_t state = RowCopiesRef::kUntouched;
  if (row < end) {
    state = copies.states[row];
    is_wanted = state >= RowCopiesRef::kFirstCopy ||
                (state == RowCopiesRef::kUntouched && copies.IsWanted(row));
    copies.states[row] = RowCopiesRef::kDone;
  }
  const unsigned votes = __ballot_sync(kFullWarp, is_wanted);
  unsigned long long first = 0;
  if (lane == 0 && votes != 0) first = atomicAdd(copies.num_out, __popc(votes));
  first = __shfl_sync(kFullWarp, first, 0);
  for (unsigned left = votes; left != 0; left &= left - 1, ++first) {
    const int from = __ffs(left) - 1;
    const int64_t its_row = __shfl_sync(kFullWarp, row, from);
    const uint32_t its_state = __shfl_sync(kFullWarp, state, from);
    for (int p = 0; p < copies.num_arrays; ++p) {
      const RowArray& array = copies.arrays[p];
      const char* source =
          its_state == RowCopiesRef::kUntouched
              ? array.live + its_row * array.bytes
              : array.copies + int64_t{its_state - RowCopiesRef::kFirstCopy} * array.bytes;
      CopyBytes(source, array.out + first * array.bytes, array.bytes, lane);
    }
  }
}

}  // namespace

RowCopies::RowCopies(const std::vector<RowArray>& arrays, int64_t first_row, int64_t num_rows,
                     int64_t changed_since, cudaStream_t stream, Status* error)
    : num_rows_(num_rows) {
  RowCopiesRef ref{};
  ref.num_arrays = static_cast<int32_t>(arrays.size());
  ref.first_row = first_row;
  ref.num_rows = num_rows;
  ref.changed_since = changed_since;
  const int64_t read_rows = std::min(num_rows, kRowsPerRead);
  for (size_t p = 0; p < arrays.size() && error->ok(); ++p) {
    array_bytes_.push_back(arrays[p].bytes);
    copies_.push_back(ReserveDeviceMemory(num_rows * arrays[p].bytes));
    out_.push_back(ReserveDeviceMemory(read_rows * arrays[p].bytes));
    *error = out_[p]->Grow(read_rows * arrays[p].bytes);
    ref.arrays[p] = {arrays[p].live, copies_[p]->data(), out_[p]->data(), arrays[p].bytes};
  }
  states_ = ReserveDeviceMemory(num_rows * static_cast<int64_t>(sizeof(uint32_t)));
  small_ = ReserveDeviceMemory(sizeof(RowCopiesRef) + kScratchAlignment);
  if (error->ok()) *error = states_->Grow(num_rows * static_cast<int64_t>(sizeof(uint32_t)));
  if (error->ok()) *error = small_->Grow(sizeof(RowCopiesRef) + kScratchAlignment);
  if (!error->ok()) return;
  counters_ = reinterpret_cast<unsigned long long*>(small_->data());
  ref_ = reinterpret_cast<RowCopiesRef*>(small_->data() + kScratchAlignment);
  ref.states = reinterpret_cast<uint32_t*>(states_->data());
  ref.num_copies = counters_;
  ref.num_out = counters_ + 1;
  cudaError_t failed = cudaMemcpyAsync(ref_, &ref, sizeof(ref), cudaMemcpyHostToDevice, stream);
  if (failed == cudaSuccess) failed = cudaMallocHost(&reported_, sizeof(Counts));
  if (failed == cudaSuccess) failed = cudaStreamSynchronize(stream);
  *error = CudaStatus(failed);
  if (error->ok()) *reported_ = {};
}

RowCopies::~RowCopies() {
  cudaDeviceSynchronize();
  cudaFreeHost(reported_);
}

Status RowCopies::MakeSpace(int64_t num_rows) {
  enqueued_ += num_rows;
  const volatile Counts* reported = reported_;
  const int64_t since = enqueued_ - reported->enqueued;  // before num_copies, which may be newer
  const int64_t rows = std::min(num_rows_, reported->num_copies + since);
  for (size_t p = 0; p < copies_.size(); ++p) {
    const Status status = copies_[p]->Grow(rows * array_bytes_[p]);
    if (!status.ok()) return status;
  }
  return {};
}

cudaError_t RowCopies::Put(const int64_t* rows, int64_t num_rows, cudaStream_t stream) const {
  CopyRowsKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(ref_, rows, num_rows);
  return Report(stream);
}

cudaError_t RowCopies::Report(cudaStream_t stream) const {
  ReportCopiesKernel<<<1, 1, 0, stream>>>(counters_, enqueued_,
                                          reinterpret_cast<int64_t*>(reported_));
  return cudaGetLastError();
}

cudaError_t RowCopies::Gather(int64_t begin, int64_t end, cudaStream_t stream) const {
  const cudaError_t error = cudaMemsetAsync(counters_ + 1, 0, sizeof(unsigned long long), stream);
  if (error != cudaSuccess) return error;
  GatherRowsKernel<<<BlocksFor(end - begin), kThreads, 0, stream>>>(ref_, begin, end);
  return cudaGetLastError();
}

Status RowCopies::CopyOut(cudaStream_t stream, KeyedRows* rows) const {
  unsigned long long count = 0;
  cudaError_t error =
      cudaMemcpyAsync(&count, counters_ + 1, sizeof(count), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  std::vector<RowInfo> infos(error == cudaSuccess ? count : 0);
  rows->slots.resize(num_slots());
  for (size_t p = 0; p < out_.size() && error == cudaSuccess; ++p) {
    const size_t bytes = count * array_bytes_[p];
    char* to = reinterpret_cast<char*>(infos.data());
    if (p > 0) {
      std::vector<char>& array = p == 1 ? rows->values : rows->slots[p - 2];
      array.resize(array.size() + bytes);
      to = array.data() + array.size() - bytes;
    }
    error = cudaMemcpyAsync(to, out_[p]->data(), bytes, cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  const Status status = CudaStatus(error);
  if (!status.ok()) return status;
  for (const RowInfo& info : infos) {
    rows->keys.push_back(info.key);
    rows->counts.push_back(info.count);
    rows->versions.push_back(info.version);
  }
  return {};
}

}  // namespace group_embedding
