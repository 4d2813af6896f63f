#include <algorithm>
#include <stdexcept>

#include "core/descriptors.cuh"
#include "core/device_buffer.h"
#include "core/status.h"
#include "serving/device/copy_row.cuh"
#include "serving/device/resident_rows.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;

// Warps copy the rows of a list, one after the other.
__global__ void __launch_bounds__(kThreads)
    CopyRowsKernel(const char* from, char* to, int64_t row_bytes, const int64_t* rows,
                   int64_t num_rows) {
  const int64_t num_warps = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t i = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; i < num_rows;
       i += num_warps) {
    const int64_t at = rows[i] * row_bytes;
    CopyRow(from + at, to + at, row_bytes, threadIdx.x % kWarpSize);
  }
}

}  // namespace

int64_t ResidentRows::BytesFor(int64_t row_bytes, int64_t num_rows) {
  constexpr int64_t kPageBytes = int64_t{2} << 20;  // the device's
  const int64_t bytes = (num_rows + num_rows / 4) * row_bytes;
  return std::max<int64_t>((bytes + kPageBytes - 1) / kPageBytes, 1) * kPageBytes;
}

ResidentRows::ResidentRows(const char* rows, int64_t row_bytes, int64_t num_rows,
                           int64_t device_bytes)
    : source_(rows), row_bytes_(row_bytes) {
  RequireCuda(cudaGetDevice(&device_));
  memory_ = ReserveTieredMemory(device_bytes, device_bytes + PhysicalBytes());
  Require(memory_->Grow(num_rows * row_bytes));
  RequireCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  RequireCuda(CopyTieredMemory(rows, memory_->data(), num_rows * row_bytes, stream_));
  RequireCuda(cudaStreamSynchronize(stream_));
}

ResidentRows::~ResidentRows() {
  const OnDevice on_device(device_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void ResidentRows::Refresh(const int64_t* rows, int64_t num_rows) {
  if (num_rows == 0 || is_broken_) return;
  const OnDevice on_device(device_);
  try {
    const int64_t last = *std::max_element(rows, rows + num_rows);
    Require(memory_->Grow((last + 1) * row_bytes_));
    const DeviceBuffer<int64_t> list(rows, num_rows, stream_);
    const int64_t blocks = std::min((num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock,
                                    NumMultiprocessors() * int64_t{8});
    CopyRowsKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(
        source_, memory_->data(), row_bytes_, list.data(), num_rows);
    RequireCuda(cudaGetLastError());
    RequireCuda(cudaStreamSynchronize(stream_));
  } catch (const std::runtime_error&) {
    is_broken_ = true;
  }
}

}  // namespace group_embedding
