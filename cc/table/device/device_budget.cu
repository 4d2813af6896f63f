#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/device_budget.h"
#include "table/device/device_budget_bytes.h"
#include "table/device/make_places.h"
#include "table/device/places_state.cuh"

namespace group_embedding {

Status CheckDeviceBudget(const TableOptions& options) {
  const Budget& budget = options.budget;
  if (!budget.is_given()) return {};
  if (budget.max_bytes == 0 && budget.max_keys < budget.num_shares) {
    return "table '" + options.name + "': expected a budget for at least " +
           std::to_string(budget.num_shares) + " keys, got one for " +
           std::to_string(budget.max_keys);
  }
  return {};
}

bool LendsRows(const TableOptions& options) {
  return options.budget.is_given() && options.initial.matrix_rows == 0 &&
         options.admission.kind == Admission::Kind::kAll;
}

DeviceBudget::DeviceBudget(const TableOptions& options, int64_t max_keys, int64_t first_row,
                           int64_t reserved_rows)
    : budget_(options.budget),
      lends_(LendsRows(options)),
      max_keys_(max_keys),
      first_row_(first_row),
      row_bytes_(options.dim * SizeOf(options.dtype)) {
  const int64_t bits_bytes = reserved_rows / 8 + 64;
  for (auto* bits : {&tied_, &free_, &gone_}) *bits = ReserveDeviceMemory(bits_bytes);
  const auto reserve = [this](int64_t bytes) { return ReserveDeviceMemory(EvictedSize() * bytes); };
  evicted_.keys = reserve(sizeof(int64_t));
  if (budget_.hands_out == HandsOut::kNothing) return;
  evicted_.counts = reserve(sizeof(int64_t));
  evicted_.versions = reserve(sizeof(int64_t));
  if (budget_.hands_out == HandsOut::kRows) evicted_.rows = reserve(row_bytes_);
  handed_out_ = std::make_unique<EvictedRows>(evicted_.rows == nullptr ? 0 : row_bytes_);
  handed_out_->SetLimit(EvictedSize());
}

DeviceBudget::~DeviceBudget() {
  cudaFree(state_);
  cudaFree(num_free_of_blocks_);
  cudaFree(num_gone_of_blocks_);
  cudaFree(of_shares_);
  cudaFree(keys_of_share_);
  cudaFree(limits_);
}

std::vector<std::pair<DeviceMemory*, int64_t>> DeviceBudget::EvictedMemory() const {
  constexpr int64_t kBytes = sizeof(int64_t);
  return {{evicted_.keys.get(), kBytes},
          {evicted_.counts.get(), kBytes},
          {evicted_.versions.get(), kBytes},
          {evicted_.rows.get(), row_bytes_}};
}

Status DeviceBudget::Begin() {
  num_blocks_ = NumPlacesBlocks();
  const int64_t num_shares = budget_.shares_of_rank();
  const auto bytes_of_blocks = num_blocks_ * sizeof(int64_t);
  const auto bytes_of_shares = num_shares * sizeof(int64_t);
  auto state = std::make_unique<PlacesState>();
  for (NarrowState::Sample& sample : state->narrow.samples) sample.lowest = ~0ULL;
  const std::vector<ShareLimit> limits = Limits();
  const size_t limits_bytes = limits.size() * sizeof(ShareLimit);
  if (cudaMalloc(&num_free_of_blocks_, bytes_of_blocks) != cudaSuccess ||
      cudaMalloc(&num_gone_of_blocks_, bytes_of_blocks) != cudaSuccess ||
      cudaMalloc(&of_shares_, 2 * bytes_of_shares) != cudaSuccess ||
      cudaMalloc(&keys_of_share_, bytes_of_shares) != cudaSuccess ||
      cudaMalloc(&limits_, limits_bytes) != cudaSuccess ||
      cudaMalloc(&state_, sizeof(PlacesState)) != cudaSuccess ||
      cudaMemcpy(limits_, limits.data(), limits_bytes, cudaMemcpyHostToDevice) != cudaSuccess ||
      cudaMemcpy(state_, state.get(), sizeof(PlacesState), cudaMemcpyHostToDevice) != cudaSuccess) {
    return NoDeviceMemory();
  }
  return {};
}

// Followers that are further behind read the whole table; keys that waited longer are missed.
int64_t DeviceBudget::EvictedSize() const {
  return evicted_size_ > 0 ? evicted_size_ : DeviceBudgetBytes::EvictedSize(budget_, max_keys());
}

Status DeviceBudget::ListEvicted() {
  const int64_t size = EvictedSize();
  Status status;
  for (const auto& [memory, bytes] : EvictedMemory()) {
    if (status.ok() && memory != nullptr) status = memory->Grow(size * bytes);
  }
  if (status.ok()) evicted_size_ = size;
  return status;
}

bool DeviceBudget::CanHave(int64_t max_keys) const {
  return evicted_size_ <= DeviceBudgetBytes::EvictedSize(budget_, max_keys);
}

Status DeviceBudget::Grow(int64_t num_rows) {
  Status status;
  for (auto* bits : {&tied_, &free_, &gone_}) {
    if (status.ok()) status = (*bits)->Grow((num_rows + 31) / 32 * 4);
  }
  return status;
}

int64_t DeviceBudget::bytes() const {
  int64_t bytes =
      static_cast<int64_t>(sizeof(PlacesState)) + tied_->bytes() + free_->bytes() + gone_->bytes();
  for (const auto& [memory, of_key] : EvictedMemory()) {
    if (memory != nullptr) bytes += memory->bytes();
  }
  return bytes;
}

int64_t DeviceBudget::MaxRowsWith(int64_t max_keys) const {
  if (budget_.max_bytes == 0) return (max_keys + most_lent_) * (is_shared_ ? 2 : 1);
  return static_cast<int64_t>(DeviceBudgetBytes::RowsPerKey(budget_) *
                              static_cast<double>(max_keys));
}

std::vector<ShareLimit> DeviceBudget::Limits() const {
  std::vector<ShareLimit> limits;
  for (int64_t s = 0; s < budget_.shares_of_rank(); ++s) {
    limits.push_back({MaxKeysOfShare(s), budget_.NumKept(MaxKeysOfShare(s), 0)});
  }
  return limits;
}

Status DeviceBudget::SetMaxKeys(int64_t max_keys) {
  max_keys_ = max_keys;
  if (handed_out_ != nullptr) handed_out_->SetLimit(EvictedSize());
  const std::vector<ShareLimit> limits = Limits();
  return CudaStatus(cudaMemcpy(limits_, limits.data(), limits.size() * sizeof(ShareLimit),
                               cudaMemcpyHostToDevice));
}

// Each share may have all of the new keys, but all shares together have them once.
int64_t DeviceBudget::MostToGo(int64_t num_new) const {
  int64_t for_any = 0, for_none = 0;
  for (int64_t s = 0; s < budget_.shares_of_rank(); ++s) {
    for_any += MaxKeysOfShare(s) - budget_.NumKept(MaxKeysOfShare(s), num_new);
    for_none += MaxKeysOfShare(s) - budget_.NumKept(MaxKeysOfShare(s), 0);
  }
  return std::min(for_any, for_none + num_new);
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
  args.first = budget_.first;
  args.decay_steps = budget_.decay_steps;
  args.safe_steps = budget_.safe_steps;
  const int64_t num_shares = budget_.shares_of_rank();
  args.shares = {num_shares, budget_.rank * num_shares, budget_.num_shares, limits_};
  args.new_of_share = of_shares_;
  args.gone_of_share = of_shares_ + num_shares;
  args.keys_of_share = keys_of_share_;
  args.lends = lends_;
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
  args.evicted_size = EvictedSize();
  args.evicted = reinterpret_cast<int64_t*>(evicted_.keys->data());
  if (evicted_.counts == nullptr) return args;
  args.evicted_counts = reinterpret_cast<int64_t*>(evicted_.counts->data());
  args.evicted_versions = reinterpret_cast<int64_t*>(evicted_.versions->data());
  if (evicted_.rows != nullptr) args.evicted_rows = evicted_.rows->data();
  return args;
}

void DeviceBudget::ForgetShares(cudaStream_t stream) {
  RequireCuda(cudaMemsetAsync(&state_->are_counted, 0, sizeof(state_->are_counted), stream));
}

void DeviceBudget::CountOnHost(int64_t num_evicted, int64_t num_without_place) {
  num_evicted_on_host_ += num_evicted;
  num_without_place_on_host_ += num_without_place;
}

BudgetCounts DeviceBudget::Counts(cudaStream_t stream) const {
  const int64_t num_evicted = ToHost(&state_->num_evicted, 1, stream)[0];
  const int64_t num_without_place = ToHost(&state_->num_without_place, 1, stream)[0];
  const int64_t num_missed = handed_out_ == nullptr ? 0 : num_missed_ + handed_out_->num_missed();
  return {max_keys(), num_evicted + num_evicted_on_host_,
          num_without_place + num_without_place_on_host_, num_missed};
}

template <typename T>
std::vector<T> DeviceBudget::ToHostFrom(const DeviceMemory& memory, int64_t n, int64_t width,
                                        cudaStream_t stream) const {
  const int64_t end = ToHost(&state_->num_evicted, 1, stream)[0], size = EvictedSize();
  std::vector<T> all;
  while (n < end) {
    const int64_t count = std::min(end - n, size - n % size);
    const T* from = reinterpret_cast<const T*>(memory.data()) + n % size * width;
    const std::vector<T> some = ToHost(from, count * width, stream);
    all.insert(all.end(), some.begin(), some.end());
    n += count;
  }
  return all;
}

// Keys that wait are missed where they would be too many with these.
void DeviceBudget::MakePlaceForEvicted(int64_t num_keys) {
  if (handed_out_ == nullptr) return;
  handed_out_->MakePlace(EvictedSize() - num_keys, num_keys);
}

void DeviceBudget::ReadEvicted(ChangeLog* changes, cudaStream_t stream) {
  const int64_t end = ToHost(&state_->num_evicted, 1, stream)[0];
  const int64_t begin = std::max(num_read_, end - EvictedSize());
  changes->Miss(begin - num_read_);
  const auto keys = ToHostFrom<int64_t>(*evicted_.keys, begin, 1, stream);
  changes->erased()->insert(changes->erased()->end(), keys.begin(), keys.end());
  if (handed_out_ != nullptr) {
    num_missed_ += begin - num_read_;
    const auto counts = ToHostFrom<int64_t>(*evicted_.counts, begin, 1, stream);
    const auto versions = ToHostFrom<int64_t>(*evicted_.versions, begin, 1, stream);
    std::vector<char> rows;
    if (evicted_.rows != nullptr) {
      rows = ToHostFrom<char>(*evicted_.rows, begin, row_bytes_, stream);
    }
    const auto num_keys = static_cast<int64_t>(keys.size());
    if (num_keys > 0) MakePlaceForEvicted(num_keys);
    for (int64_t i = 0; i < num_keys; ++i) {
      handed_out_->Add(keys[i], counts[i], versions[i], rows.data() + i * row_bytes_);
    }
  }
  num_read_ = end;
  changes->Limit(EvictedSize());
}

}  // namespace group_embedding
