// The memory of a DeviceHash's rows: its size, growth and limits. device_hash_index.cu has the
// memory of the index.
#include <algorithm>
#include <vector>

#include "core/device_buffer.h"
#include "table/check_table.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"

namespace group_embedding {
namespace {

constexpr int64_t kLeastSlots = 1024;
constexpr int64_t kInfoBytes = sizeof(RowInfo);
// The least memory that rows grow by at once, which takes some milliseconds to allocate.
constexpr int64_t kDeviceBytesAtOnce = int64_t{1} << 30, kHostBytesAtOnce = int64_t{16} << 20;

constexpr char kWhatToGive[] =
    "; give it more memory (tier_bytes, or storage_size of a StorageOption), set a budget that "
    "evicts keys (max_keys, max_bytes), or admit fewer keys (admit_after)";

int64_t BytesOfTiers(int64_t device_bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  if (device_bytes <= 0) return static_cast<int64_t>(total);
  return PhysicalBytes() + device_bytes;
}

}  // namespace

DeviceHash::DeviceHash(const TableOptions& options, const DeviceTierOptions& tiers,
                       const void* matrix, Status* error)
    : options_(options),
      tiers_(tiers),
      max_bytes_(options.max_bytes > 0 ? options.max_bytes : BytesOfTiers(tiers.device_bytes)) {
  reserved_rows_ = max_bytes_ / (RowBytes() + kInfoBytes) + first_row();
  cudaGetDevice(&device_);
  if (tiers.device_bytes > 0) {
    moves_ = std::make_unique<RowMoves>(reserved_rows_, tiers.cache_strategy, error);
    device_rows_ = std::max(tiers.device_bytes / BytesPerRow(), first_row());
  }
  rows_ = ReserveValues(RowBytes(), device_rows_);
  infos_ = ReserveDeviceMemory(reserved_rows_ * kInfoBytes);
  free_rows_ = ReserveDeviceMemory(reserved_rows_ * static_cast<int64_t>(sizeof(int64_t)));
  if (options.budget.is_given()) {
    budget_ = std::make_unique<DeviceBudget>(options, BudgetKeys(), first_row(), reserved_rows_);
  }
  index_ = std::make_unique<GrowingIndex>(static_cast<int64_t>(reserved_rows_ * 4.0 / kMaxLoad));
  candidates_ = ReserveDeviceMemory(max_bytes_);
  free_candidates_ = ReserveDeviceMemory(max_bytes_ / 2);
  ref_.infos = reinterpret_cast<RowInfo*>(infos_->data());
  ref_.rows = rows_->data();
  ref_.free_rows = reinterpret_cast<int64_t*>(free_rows_->data());
  ref_.candidates = reinterpret_cast<Candidate*>(candidates_->data());
  ref_.free_candidates = reinterpret_cast<int64_t*>(free_candidates_->data());
  ref_.first_row = first_row();
  ref_.initial = options.initial;
  ref_.admission = options.admission;
  ref_.dtype = options.dtype;
  ref_.dim = options.dim;
  ref_.lends = LendsRows(options);
  ref_.shape = RowShape::Of(options.dim, options.dtype, 0);
  training_stream_ = streams_.own();
  if (error->ok()) *error = Begin(matrix);
}

Status DeviceHash::Begin(const void* matrix) {
  if (cudaMallocHost(&report_, sizeof(TableReport)) != cudaSuccess ||
      cudaMalloc(&ref_.state, sizeof(TableState)) != cudaSuccess) {
    return NoDeviceMemory().In(Named(": "));
  }
  *report_ = {};
  ref_.report = report_;
  Status status = use_.Begin(streams_.own()).In(Named(": "));
  if (status.ok() && budget_ != nullptr) status = budget_->Begin().In(Named(": "));
  if (status.ok()) status = CheckBudgetKeys(OwnSlots()).In(Named(": "));
  if (status.ok()) status = FitToBytes({}).In(Named(": "));
  // No rows ahead: with few bytes, there is no space for the table's slots beside them.
  if (status.ok()) status = GrowArrays(first_row()).In(Named(": "));
  if (status.ok() && options_.admission.kind == Admission::Kind::kBloom) {
    const int64_t per_word = 8 / options_.admission.counter_bytes;
    bloom_bytes_ = (options_.admission.num_counters + per_word - 1) / per_word * 8;
    bloom_ = ReserveDeviceMemory(bloom_bytes_);
    status = bloom_->Grow(bloom_bytes_).In(Named(": the counters of its filter: "));
    ref_.bloom = reinterpret_cast<unsigned long long*>(bloom_->data());
  }
  if (!status.ok()) return status;
  const cudaStream_t stream = streams_.own();
  TableState state{};
  state.next_row = first_row();
  SetState(state);
  index_->Begin(kLeastSlots);
  status = GrowIndex(GrowingIndex::Work::All(), stream).In(Named(": "));
  if (!status.ok()) return status;
  const int64_t matrix_bytes = options_.initial.matrix_rows * RowBytes();
  cudaError_t failed =
      cudaMemcpyAsync(ref_.rows, matrix, matrix_bytes, cudaMemcpyHostToDevice, stream);
  if (failed == cudaSuccess) {
    failed = FillSlotArray(
        {ref_.rows + matrix_bytes, options_.dim, options_.dtype, options_.no_row_value}, 1, stream);
  }
  if (failed == cudaSuccess) failed = cudaStreamSynchronize(stream);
  status = CudaStatus(failed).In(Named(": "));
  return status.ok() ? MakeOwnSlots() : status;
}

DeviceHash::~DeviceHash() {
  cudaDeviceSynchronize();
  cudaFree(ref_.state);
  cudaFreeHost(report_);
}

std::unique_ptr<EmbeddingTable> MakeDeviceTable(const TableOptions& options,
                                                const DeviceTierOptions& tiers, const void* matrix,
                                                Status* error) {
  *error = CheckOptions(options);
  if (error->ok()) *error = CheckTierBytes(options, tiers.device_bytes);
  if (error->ok()) *error = CheckDeviceBudget(options);
  if (!error->ok()) return nullptr;
  auto table = std::make_unique<DeviceHash>(options, tiers, matrix, error);
  if (!error->ok()) return nullptr;
  return table;
}

std::unique_ptr<DeviceMemory> DeviceHash::ReserveValues(int64_t row_bytes,
                                                        int64_t device_rows) const {
  const int64_t bytes = reserved_rows_ * row_bytes;
  return moves_ != nullptr ? ReserveTieredMemory(device_rows * row_bytes, bytes)
                           : ReserveDeviceMemory(bytes);
}

void DeviceHash::LimitDeviceRows(int64_t device_rows) {
  if (moves_ == nullptr) return;
  device_rows_ = device_rows;
  rows_->LimitDevice(device_rows_ * RowBytes());
  for (size_t s = 0; s < slots_.size(); ++s) {
    slot_arrays_[s]->LimitDevice(device_rows_ * SlotBytes(s));
  }
}

int64_t DeviceHash::BytesPerRow() const {
  int64_t bytes = RowBytes() + kInfoBytes + (moves_ == nullptr ? 0 : RowMoves::kUseBytes);
  for (size_t s = 0; s < slots_.size(); ++s) bytes += SlotBytes(s);
  return bytes;
}

int64_t DeviceHash::MaxRows(const std::vector<SlotOptions>& more) const {
  const int64_t bytes = BytesPerRow() + BytesOfNewSlots(slots_, more);
  const int64_t most = std::min(first_row() + max_bytes_ / bytes, reserved_rows_);
  // With a disk memory is the limit: there rows of keys that go wait for the call's own batch, too.
  const bool is_limited = budget_ != nullptr && (HasBudgetOfBytes() || !has_tier_below());
  return is_limited ? std::min(most, first_row() + budget_->max_rows()) : most;
}

std::string DeviceHash::FullError(const std::string& why) const {
  return Named(" is full at ") + std::to_string(usable_rows_ - first_row()) + " rows: " + why +
         kWhatToGive;
}

// The error of a call that finds no memory for what it needs beside rows.
Status DeviceHash::NoMemory(const Status& status) const {
  return status.ok() ? status : Status(Named(": ") + status.message() + kWhatToGive);
}

DeviceTableRef DeviceHash::Ref() const {
  DeviceTableRef ref = ref_;
  ref.index = index_->ref();
  ref.usable_rows = usable_rows_;
  ref.clock = clock_;
  ref.enqueued = enqueued_;
  ref.copies = snapshot_ == nullptr ? nullptr : snapshot_->ref();
  if (moves_ != nullptr) ref.moves = moves_->ref(device_rows_, BytesPerRow());
  if (tier_prefetcher_ != nullptr) tier_prefetcher_->Complete(&ref.moves);
  ref.num_slot_arrays = static_cast<int32_t>(slots_.size());
  for (size_t s = 0; s < slots_.size(); ++s) {
    ref.slot_arrays[s] = {slot_arrays_[s]->data(), slots_[s].width, slots_[s].dtype,
                          slots_[s].initial};
  }
  const auto own = [this](int slot) { return slot < 0 ? nullptr : slot_arrays_[slot]->data(); };
  ref.scores = reinterpret_cast<const float*>(own(score_slot_));
  ref.born = reinterpret_cast<uint32_t*>(own(born_slot_));
  ref.minutes = reinterpret_cast<uint32_t*>(own(time_slot_));
  ref.minute = options_.KeepsTime() ? static_cast<uint32_t>(Minute()) : 0;
  ref.decay_steps = options_.budget.decay_steps;
  return ref;
}

TableState DeviceHash::State() const {
  TableState state;
  streams_.BeginAlone(streams_.own());
  RequireCuda(
      cudaMemcpyAsync(&state, ref_.state, sizeof(state), cudaMemcpyDeviceToHost, streams_.own()));
  RequireCuda(cudaStreamSynchronize(streams_.own()));
  return state;
}

void DeviceHash::SetState(const TableState& state) {
  RequireCuda(
      cudaMemcpyAsync(ref_.state, &state, sizeof(state), cudaMemcpyHostToDevice, streams_.own()));
  RequireCuda(cudaStreamSynchronize(streams_.own()));
  *report_ = {enqueued_, state};
  rebuilt_at_ = -1;
  if (budget_ != nullptr) budget_->ForgetShares(streams_.own());
}

TableState DeviceHash::Reported(int64_t* enqueued_since) const {
  const volatile int64_t* enqueued = &report_->enqueued;
  *enqueued_since = enqueued_ - *enqueued;  // before the state, which may be newer
  std::atomic_thread_fence(std::memory_order_acquire);
  return report_->state;
}

Status DeviceHash::Prepare(int64_t num_keys, Access access, bool admits_all, int64_t step,
                           cudaStream_t stream, const std::vector<int64_t>& own_batches) {
  if (moves_ != nullptr || budget_ != nullptr) ++clock_;  // every call that locates has a number
  const bool is_ahead = streams_.IsAfterMark(stream);     // of a batch: its rows come from disk
  if (access == Access::kTrain && batches_.empty() && !is_ahead) MoveRows();
  streams_.Use(stream);
  if (access == Access::kRead) return {};
  CountStep(step);
  if (tier_prefetcher_ != nullptr && !is_ahead) RequireCuda(tier_prefetcher_->ForgetNext(stream));
  streams_.Follow(&training_stream_, stream);
  if (!is_ahead) ReleaseRetired();
  if (budget_ != nullptr) budget_->SetBatches(batches_, own_batches);
  Status status = NoMemory(MakeSpace(num_keys, stream));
  if (status.ok() && budget_ != nullptr) {
    status = PreparePlaces(num_keys, admits_all).In(Named(": "));
  }
  if (places_.has_value()) streams_.BeginAlone(stream);  // rows change hands beside no reader
  enqueued_ += num_keys;
  if (status.ok() && snapshot_ != nullptr) {
    status = snapshot_->MakeSpace(num_keys).In(Named(": no memory for rows that are saved: "));
  }
  return status;
}

Status DeviceHash::MakeSpace(int64_t num_keys, cudaStream_t stream) {
  int64_t since = 0;
  TableState state = Reported(&since);
  auto rows_needed = [&] {
    const int64_t rows = state.RowsWith(since + num_keys);
    return budget_ == nullptr ? rows : std::min(rows, MaxRows());
  };
  if (rows_needed() > MaxRows() && since > 0) {
    state = State();
    since = 0;
  }
  may_be_full_ = false;
  if (rows_needed() > usable_rows_) {
    full_because_ = GrowRows(rows_needed());
    may_be_full_ = !full_because_.ok();
  }
  Status status;
  most_of_call_ = std::max(most_of_call_, num_keys);
  status = GrowCandidates(MostCounted(state, since + num_keys));
  if (!status.ok()) return status;
  const bool is_rebuilt = enqueued_ - since <= rebuilt_at_;  // after what was reported
  return MakeIndexSpace(state, since + num_keys, is_rebuilt, num_keys, stream);
}

// What a call needs that may exceed the budget.
Status DeviceHash::PreparePlaces(int64_t num_keys, bool admits_all) {
  places_.reset();
  int64_t since = 0;
  const TableState state = Reported(&since);
  const int64_t more = since + num_keys;
  const bool is_one = options_.budget.shares_of_rank() == 1;  // else it counts keys of shares
  const bool halves_counts =
      !admits_all &&  // keys that are given are not counted
      options_.admission.kind == Admission::Kind::kCounter &&
      state.next_candidate - state.num_free_candidates + since > budget_->least_keys_of_share();
  if (has_tier_below()) {
    if (halves_counts) places_ = budget_->ArgsOfCall(num_keys, clock_, OldestBatchLocked());
    if (halves_counts) places_->halves_counts = true;
    return {};
  }
  if (is_one && !halves_counts && state.num_keys + more <= budget_->max_keys() &&
      state.RowsWith(more) <= usable_rows_) {
    return {};
  }
  Status status = budget_->ListEvicted();
  if (!status.ok()) return status;
  if (budget_->lends() && !admits_all) {
    budget_->LendTo(num_keys);
    // Without memory for all of these, fewer are lent.
    static_cast<void>(GrowRows(std::min(state.RowsWith(more), MaxRows())));
  }
  places_ = budget_->ArgsOfCall(num_keys, clock_, OldestBatchLocked());
  places_->halves_counts = halves_counts;
  status = free_rows_->Grow(places_->max_free * static_cast<int64_t>(sizeof(int64_t)));
  if (status.ok() && snapshot_ != nullptr) {
    status = snapshot_->MakeSpace(budget_->MostToGo(num_keys));
  }
  return status;
}

Status DeviceHash::GrowRows(int64_t num_rows) {
  if (num_rows <= usable_rows_) return {};
  const int64_t max_rows = MaxRows(), least = std::min(num_rows, max_rows);
  const bool on_host = moves_ != nullptr && usable_rows_ >= device_rows_;
  const int64_t at_once = on_host ? kHostBytesAtOnce : kDeviceBytesAtOnce;
  const int64_t more = std::min(usable_rows_ / 16, at_once / BytesPerRow());
  const int64_t ahead = std::min(max_rows, std::max(num_rows + 1024, usable_rows_ + more));
  // Where memory for rows ahead is not left, that for the rows which are needed may be.
  const bool has_space = on_host || (ahead - usable_rows_) * BytesPerRow() <= DeviceBytesLeft();
  Status status = GrowArrays(has_space ? ahead : least);
  if (!status.ok() && has_space) status = GrowArrays(least);
  if (status.ok() && num_rows > max_rows) {
    status = std::to_string(max_rows - first_row()) + " rows of " + std::to_string(BytesPerRow()) +
             " bytes (dim " + std::to_string(options_.dim) + ", " + std::to_string(slots_.size()) +
             " slots) fill the " + std::to_string(max_bytes_) + " bytes it may use";
  }
  return status;
}

// Where an array cannot grow, those before it keep their new memory: the next call needs it.
Status DeviceHash::GrowArrays(int64_t num_rows) {
  if (num_rows <= usable_rows_) return {};
  Status status = rows_->Grow(num_rows * RowBytes());
  if (status.ok()) status = infos_->Grow(num_rows * kInfoBytes);
  if (status.ok() && moves_ != nullptr) status = moves_->Grow(num_rows);
  if (status.ok() && budget_ != nullptr) status = budget_->Grow(num_rows);
  for (size_t s = 0; s < slots_.size() && status.ok(); ++s) {
    status = slot_arrays_[s]->Grow(num_rows * SlotBytes(s));
  }
  if (!status.ok()) {
    return status.In("for " + std::to_string(num_rows - usable_rows_) + " rows more of " +
                     std::to_string(BytesPerRow()) + " bytes ");
  }
  status = MarkUnused(usable_rows_, num_rows);
  if (status.ok()) usable_rows_ = num_rows;
  return status;
}

// No row that was never used is a key's. On a stream of its own, waiting for this alone.
Status DeviceHash::MarkUnused(int64_t begin, int64_t end) const {
  cudaStream_t stream;
  cudaError_t failed = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (failed == cudaSuccess) {
    failed = cudaMemsetAsync(ref_.infos + begin, 0xFF, (end - begin) * kInfoBytes, stream);
    if (failed == cudaSuccess) failed = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  return CudaStatus(failed);
}

Status DeviceHash::GrowCandidates(int64_t num_candidates) {
  if (num_candidates <= usable_candidates_) return {};
  const auto grow = [this](int64_t count) {
    Status status = candidates_->Grow(count * static_cast<int64_t>(sizeof(Candidate)));
    if (!status.ok()) return status;
    return free_candidates_->Grow(count * static_cast<int64_t>(sizeof(int64_t)));
  };
  int64_t count = std::max(num_candidates + 1024, usable_candidates_ / 4 * 5);
  Status status = grow(count);
  if (!status.ok()) status = grow(count = num_candidates);
  if (status.ok()) usable_candidates_ = count;
  return status;
}

// Rows of erased keys become free once no batch holds them.
void DeviceHash::ReleaseRetired() {
  const int64_t oldest = OldestBatchLocked();
  std::vector<int64_t> rows;
  auto end = retired_.begin();
  for (; end != retired_.end() && end->clock < oldest; ++end) rows.push_back(end->row);
  if (rows.empty()) return;
  FreeRows(rows);
  retired_.erase(retired_.begin(), end);
}

void DeviceHash::ReserveFree(int64_t num_free) {
  const Status status = free_rows_->Grow(num_free * static_cast<int64_t>(sizeof(int64_t)));
  Require(status.In(Named(": ")));
}

void DeviceHash::FreeRows(const std::vector<int64_t>& rows) {
  const Alone alone(*this, std::adopt_lock);
  TableState state = State();
  const int64_t num_free = state.num_free + static_cast<int64_t>(rows.size());
  ReserveFree(num_free);
  RequireCuda(cudaMemcpyAsync(ref_.free_rows + state.num_free, rows.data(),
                              rows.size() * sizeof(int64_t), cudaMemcpyHostToDevice,
                              streams_.own()));
  state.num_free = num_free;
  SetState(state);
}

Status DeviceHash::CheckFull(cudaStream_t stream) {
  if (places_.has_value()) streams_.EndAlone(stream);
  if (!may_be_full_) return {};
  const Status status = CudaStatus(cudaStreamSynchronize(stream));
  if (!status.ok()) return status.In(Named(": "));
  return report_->state.is_full ? FullError(full_because_.message()) : Status();
}

}  // namespace group_embedding
