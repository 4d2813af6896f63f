#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/device_budget.h"
#include "table/device/make_places.h"
#include "table/device/places_state.cuh"

namespace group_embedding {

Status CheckDeviceBudget(const TableOptions& options) {
  const Budget& budget = options.budget;
  if (!budget.is_given()) return {};
  const bool is_of_rank = budget.max_keys > 0 && budget.num_shares == 0;
  const bool is_known =
      budget.first == EvictFirst::kLeastRecent || budget.first == EvictFirst::kLeastFrequent;
  const bool is_plain = budget.safe_steps == 0 && budget.hands_out == HandsOut::kNothing;
  const bool has_matrix = options.initial.matrix_rows > 0;
  if (is_of_rank && is_known && is_plain && has_matrix && !HasFilter(options)) return {};
  return "table '" + options.name +
         "': expected, in GPU memory, a budget of keys of its rank, of " +
         "which the least recent or least frequent go, without safe steps, without keys handed " +
         "out, without a filter, and with rows of a matrix as initial values, got another one; " +
         "use host memory, or such a budget";
}

DeviceBudget::DeviceBudget(const TableOptions& options, int64_t first_row, int64_t reserved_rows)
    : budget_(options.budget), first_row_(first_row) {
  const int64_t bits_bytes = reserved_rows / 8 + 64;
  for (auto* bits : {&tied_, &free_, &gone_}) *bits = ReserveDeviceMemory(bits_bytes);
  evicted_ = ReserveDeviceMemory(EvictedSize() * static_cast<int64_t>(sizeof(int64_t)));
}

DeviceBudget::~DeviceBudget() {
  cudaFree(state_);
  cudaFree(num_free_of_blocks_);
  cudaFree(num_gone_of_blocks_);
}

Status DeviceBudget::Begin() {
  num_blocks_ = NumPlacesBlocks();
  const auto bytes_of_blocks = num_blocks_ * sizeof(int64_t);
  auto state = std::make_unique<PlacesState>();
  for (NarrowState::Sample& sample : state->narrow.samples) sample.lowest = ~0ULL;
  if (cudaMalloc(&num_free_of_blocks_, bytes_of_blocks) != cudaSuccess ||
      cudaMalloc(&num_gone_of_blocks_, bytes_of_blocks) != cudaSuccess ||
      cudaMalloc(&state_, sizeof(PlacesState)) != cudaSuccess ||
      cudaMemcpy(state_, state.get(), sizeof(PlacesState), cudaMemcpyHostToDevice) != cudaSuccess) {
    return "there is no GPU, or it has no memory";
  }
  return evicted_->Grow(EvictedSize() * static_cast<int64_t>(sizeof(int64_t)));
}

Status DeviceBudget::Grow(int64_t num_rows) {
  Status status;
  for (auto* bits : {&tied_, &free_, &gone_}) {
    if (status.ok()) status = (*bits)->Grow((num_rows + 31) / 32 * 4);
  }
  return status;
}

int64_t DeviceBudget::bytes() const {
  return static_cast<int64_t>(sizeof(PlacesState)) + tied_->bytes() + free_->bytes() +
         gone_->bytes() + evicted_->bytes();
}

// Followers that are further behind read the whole table.
int64_t DeviceBudget::EvictedSize() const {
  return std::max<int64_t>(1 << 14, budget_.max_keys / 4);
}

void DeviceBudget::SetBatches(const std::multiset<int64_t>& batches,
                              const std::vector<int64_t>& own) {
  const auto other = std::find_if(batches.begin(), batches.end(), [&](int64_t batch) {
    return std::find(own.begin(), own.end(), batch) == own.end();
  });
  oldest_other_ = other == batches.end() ? 0 : *other;
  is_shared_ = is_shared_ || oldest_other_ != 0;
}

PlacesArgs DeviceBudget::ArgsOfCall(int64_t num_keys, int64_t clock, int64_t oldest_batch) const {
  PlacesArgs args{};
  args.max_keys = max_keys();
  args.low_keys = budget_.NumKept(max_keys(), 0);
  args.first = budget_.first;
  args.held_from = std::min(oldest_batch, clock);
  args.reuse_from = oldest_other_ == 0 ? clock + 1 : oldest_other_;
  args.state = state_;
  args.num_blocks = num_blocks_;
  args.num_free_of_blocks = num_free_of_blocks_;
  args.num_gone_of_blocks = num_gone_of_blocks_;
  args.tied = reinterpret_cast<uint32_t*>(tied_->data());
  args.free = reinterpret_cast<uint32_t*>(free_->data());
  args.gone = reinterpret_cast<uint32_t*>(gone_->data());
  args.max_free = MostFree(num_keys);
  args.evicted = reinterpret_cast<int64_t*>(evicted_->data());
  args.evicted_size = EvictedSize();
  return args;
}

BudgetCounts DeviceBudget::Counts(cudaStream_t stream) const {
  const int64_t num_evicted = ToHost(&state_->num_evicted, 1, stream)[0];
  return {max_keys(), num_evicted, ToHost(&state_->num_without_place, 1, stream)[0], 0};
}

void DeviceBudget::ReadEvicted(ChangeLog* changes, cudaStream_t stream) {
  const int64_t end = ToHost(&state_->num_evicted, 1, stream)[0], size = EvictedSize();
  const int64_t begin = std::max(num_read_, end - size);
  changes->Miss(begin - num_read_);
  const auto* keys = reinterpret_cast<const int64_t*>(evicted_->data());
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(end - at, size - at % size);
    const std::vector<int64_t> some = ToHost(keys + at % size, count, stream);
    changes->erased()->insert(changes->erased()->end(), some.begin(), some.end());
    at += count;
  }
  num_read_ = end;
  changes->Limit(size);
}

}  // namespace group_embedding
