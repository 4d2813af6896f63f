// What DeviceHash does alone: slots, find, erase, evict, clear. Given rows come in by
// device_hash_insert.cu; its memory is in device_hash_memory.cu, its snapshots in
// device_hash_snapshot.cu.
#include <algorithm>

#include "core/device_buffer.h"
#include "table/device/device_hash.h"
#include "table/device/device_hash_kernels.h"

namespace group_embedding {

Status DeviceHash::Slot(const SlotOptions& slot, void** array) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string where = Named(", slot '" + slot.name + "': ");
  for (size_t s = 0; s < slots_.size(); ++s) {
    const SlotOptions& present = slots_[s];
    if (present.name != slot.name) continue;
    if (present.width != slot.width || present.dtype != slot.dtype) {
      return where + "expected " + std::to_string(present.width) + " columns of " +
             std::to_string(SizeOf(present.dtype)) + " bytes, as it has, got " +
             std::to_string(slot.width) + " of " + std::to_string(SizeOf(slot.dtype));
    }
    *array = slot_arrays_[s]->data();
    return {};
  }
  // Every update asks for its slots, and waits for the device only where it makes one.
  const Alone alone(*this, std::adopt_lock);
  if (slots_.size() == kMaxSlotArrays) {
    return where + "expected at most " + std::to_string(kMaxSlotArrays) + " slots";
  }
  Status status = FitToBytes({slot});
  if (!status.ok()) return status.In(where);
  const int64_t bytes = slot.width * SizeOf(slot.dtype);
  const int64_t device_rows = std::max(tiers_.device_bytes / (BytesPerRow() + bytes), first_row());
  auto memory = ReserveValues(bytes, device_rows);
  status = memory->Grow(usable_rows_ * bytes);
  if (!status.ok()) {
    const Status restored = FitToBytes({});  // to as many keys as without it
    if (!restored.ok()) return restored.In(where);
    return where + status.message() +
           "; give the table more memory or fewer keys (max_keys, max_bytes)";
  }
  LimitDeviceRows(device_rows);
  RequireCuda(FillSlotArray({memory->data(), slot.width, slot.dtype, slot.initial},
                            State().next_row, streams_.own()));
  *array = memory->data();
  slots_.push_back(slot);
  slot_arrays_.push_back(std::move(memory));
  return {};
}

// Without waiting: also rows that are there and were never used.
Table DeviceHash::rows() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {ref_.rows, usable_rows_, options_.dim, 0, moves_ == nullptr ? -1 : device_rows_};
}

int64_t DeviceHash::num_rows() const {
  const Alone alone(*this);
  return State().next_row;
}

int64_t NumRowsInUse(const DeviceHash& table) { return table.num_rows(); }

const RowInfo* RowInfos(const DeviceHash& table) { return table.infos(); }

int64_t DeviceHash::num_keys() const {
  const Alone alone(*this);
  return State().num_keys;
}

int64_t DeviceHash::memory_bytes() const {
  const Alone alone(*this);
  return State().next_row * BytesPerRow() + index_->bytes() +
         usable_candidates_ * static_cast<int64_t>(sizeof(Candidate) + sizeof(int64_t)) +
         bloom_bytes_ + (budget_ == nullptr ? 0 : budget_->bytes() + free_rows_->bytes());
}

int64_t DeviceHash::host_bytes() const {
  if (moves_ == nullptr) return 0;
  const Alone alone(*this);
  int64_t bytes = RowBytes();
  for (size_t s = 0; s < slots_.size(); ++s) bytes += SlotBytes(s);
  return std::max<int64_t>(0, State().next_row - device_rows_) * bytes;
}

float DeviceHash::load_factor() const {
  const Alone alone(*this);
  return static_cast<float>(State().used_slots) / static_cast<float>(index_->num_slots());
}

void DeviceHash::Find(const int64_t* keys, int64_t num_keys, int64_t* rows) const {
  const Alone alone(*this);
  const cudaStream_t stream = streams_.own();
  DeviceBuffer<int64_t> device_keys(keys, num_keys, stream), device_rows(num_keys);
  RequireCuda(FindKeys(Ref(), device_keys.data(), num_keys, device_rows.data(), stream));
  RequireCuda(cudaMemcpyAsync(rows, device_rows.data(), num_keys * sizeof(int64_t),
                              cudaMemcpyDeviceToHost, stream));
  RequireCuda(cudaStreamSynchronize(stream));
}

void DeviceHash::ReadInitialRows(void* rows) const {
  const Alone alone(*this);
  const cudaStream_t stream = streams_.own();
  RequireCuda(cudaMemcpyAsync(rows, ref_.rows, options_.initial.matrix_rows * RowBytes(),
                              cudaMemcpyDeviceToHost, stream));
  RequireCuda(cudaStreamSynchronize(stream));
}

void DeviceHash::WriteInitialRows(const void* rows) {
  const Alone alone(*this);
  const cudaStream_t stream = streams_.own();
  RequireCuda(cudaMemcpyAsync(ref_.rows, rows, options_.initial.matrix_rows * RowBytes(),
                              cudaMemcpyHostToDevice, stream));
  RequireCuda(cudaStreamSynchronize(stream));
}

RowInfo DeviceHash::Info(int64_t row) const {
  const Alone alone(*this);
  return ToHost(ref_.infos + row, 1, streams_.own())[0];
}

Status DeviceHash::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* described) const {
  const Alone alone(*this);
  DescribeAlone(keys, num_keys, described);
  return {};
}

// Tier 0 is device memory, 1 the host's. Memory is in pages: some rows said to be in 1 may be in 0.
void DeviceHash::DescribeAlone(const int64_t* keys, int64_t num_keys, KeyInfo* described) const {
  const cudaStream_t stream = streams_.own();
  const DeviceBuffer<int64_t> device_keys(keys, num_keys, stream), device_rows(num_keys);
  const DeviceBuffer<RowInfo> device_infos(num_keys);
  RequireCuda(FindKeys(Ref(), device_keys.data(), num_keys, device_rows.data(), stream));
  RequireCuda(InfosOfRows(Ref(), device_rows.data(), num_keys, device_infos.data(), stream));
  RequireCuda(CountsOfCandidates(Ref(), device_keys.data(), device_rows.data(), num_keys,
                                 device_infos.data(), stream));
  const std::vector<int64_t> rows = ToHost(device_rows.data(), num_keys, stream);
  const std::vector<RowInfo> infos = ToHost(device_infos.data(), num_keys, stream);
  for (int64_t i = 0; i < num_keys; ++i) {
    const int32_t tier = moves_ != nullptr && rows[i] >= device_rows_ ? 1 : 0;
    described[i] = {rows[i] == kNoRow ? kNoTier : tier, infos[i].count, infos[i].version};
  }
}

int64_t DeviceHash::Erase(const int64_t* keys, int64_t num_keys) {
  const Alone alone(*this);
  const DeviceBuffer<int64_t> device_keys(keys, num_keys, streams_.own()), rows(num_keys);
  return EraseKeys(device_keys.data(), num_keys, rows.data());
}

int64_t DeviceHash::EraseKeys(const int64_t* keys, int64_t num_keys, int64_t* device_rows) {
  const std::vector<int64_t> rows = TakeOut(keys, num_keys, device_rows);
  const std::vector<int64_t> host_keys = ToHost(keys, num_keys, streams_.own());
  ReadEvicted();  // keys that were erased before these
  const bool uses_retired = budget_ == nullptr || has_tier_below();  // else PlaceMaker finds them
  for (int64_t i = 0; i < num_keys; ++i) {
    if (rows[i] == kNoRow) continue;
    changes_.erased()->push_back(host_keys[i]);
    if (uses_retired) retired_.push_back({rows[i], clock_});
  }
  // Sorted, so that the order does not depend on which occurrence of a key has the row.
  const auto by_row = [](const Retired& a, const Retired& b) { return a.row < b.row; };
  const auto is_row = [](int64_t row) { return row != kNoRow; };
  const int64_t num_erased = std::count_if(rows.begin(), rows.end(), is_row);
  if (uses_retired) std::sort(retired_.end() - num_erased, retired_.end(), by_row);
  return num_erased;
}

std::vector<int64_t> DeviceHash::TakeOut(const int64_t* keys, int64_t num_keys, int64_t* rows) {
  const cudaStream_t stream = streams_.own();
  if (snapshot_ != nullptr) {
    RequireCuda(FindKeys(Ref(), keys, num_keys, rows, stream));
    const Status status = CopyForSnapshot(rows, num_keys, stream);
    Require(status.In(Named(": ")));
  }
  RequireCuda(TakeOutKeys(Ref(), keys, num_keys, rows, stream));
  std::vector<int64_t> host_rows = ToHost(rows, num_keys, stream);
  TableState state = State();
  state.num_keys -= num_keys - std::count(host_rows.begin(), host_rows.end(), kNoRow);
  SetState(state);
  return host_rows;
}

int64_t DeviceHash::Evict(const Eviction& eviction, int64_t step, const ParallelFor&) {
  if (eviction.kind == Eviction::Kind::kNone) return 0;
  const Alone alone(*this);
  return EraseChosen(eviction, step);
}

int64_t DeviceHash::EraseChosen(const Eviction& eviction, int64_t step) {
  const cudaStream_t stream = streams_.own();
  const int64_t num_rows = State().next_row;
  DeviceBuffer<bool> flags(num_rows);
  const ExpiredCounts none;
  const DeviceBuffer<ExpiredCounts> expired(&none, 1, stream);
  RequireCuda(ChooseEvicted(Ref(), AsOfNow(eviction), step, num_rows, flags.data(), expired.data(),
                            stream));
  DeviceBuffer<int64_t> rows(num_rows);
  const int64_t count = SelectNumbers(flags.data(), num_rows, rows.data(), stream);
  DeviceBuffer<int64_t> keys(count), erased(count);
  RequireCuda(KeysOfRows(Ref(), rows.data(), count, keys.data(), stream));
  if (eviction.kind != Eviction::Kind::kNone) {
    MakePlaceForEvicted(count);
    HandOut(rows.data(), count);
  }
  const int64_t num_erased = EraseKeys(keys.data(), count, erased.data());
  use_.AddExpired(ToHost(expired.data(), 1, stream)[0]);
  return num_erased;
}

UseCounts DeviceHash::use_counts() const {
  const Alone alone(*this);
  const cudaStream_t stream = streams_.own();
  UseCounts counts = use_.Counts(stream);
  const int64_t num_rows = State().next_row, stride = 1 + (num_rows - first_row()) / kMostLookedAt;
  std::vector<int64_t> rows;
  for (int64_t row = first_row(); row < num_rows; row += stride) rows.push_back(row);
  const auto count = static_cast<int64_t>(rows.size());
  const StreamBuffer<int64_t> device_rows(rows.data(), count, stream);
  const StreamBuffer<RowInfo> infos(count, stream);
  RequireCuda(InfosOfRows(Ref(), device_rows.data(), count, infos.data(), stream));
  for (const RowInfo& info : ToHost(infos.data(), count, stream)) {
    if (info.count >= 0) counts.AddAge(last_step(), info.version);  // else it is no key's
  }
  return counts;
}

void DeviceHash::Clear() {
  const Alone alone(*this);
  EraseChosen({}, 0);
  TableState state = State();
  state.next_candidate = state.num_free_candidates = 0;
  SetState(state);
  const cudaStream_t stream = streams_.own();
  RequireCuda(cudaMemsetAsync(ref_.candidates, 0, usable_candidates_ * sizeof(Candidate), stream));
  if (bloom_ != nullptr) {
    RequireCuda(cudaMemsetAsync(bloom_->data(), 0, bloom_bytes_, stream));
  }
  RebuildIndex(stream);
}

void DeviceHash::SetAdmissionState(const AdmissionState& admission) {
  std::vector<int64_t> rows(admission.keys.size());
  Find(admission.keys.data(), static_cast<int64_t>(rows.size()), rows.data());
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNoRow) candidates.push_back({admission.keys[i], admission.counts[i]});
  }
  const Alone alone(*this);
  const cudaStream_t stream = streams_.own();
  const TableState former = State();
  TableState state = former;
  state.next_candidate = static_cast<int64_t>(candidates.size());
  state.num_free_candidates = 0;
  SetState(state);
  const Status status = MakeSpace(0, stream);
  if (!status.ok()) SetState(former);
  Require(NoMemory(status));
  RequireCuda(cudaMemsetAsync(ref_.candidates, 0, usable_candidates_ * sizeof(Candidate), stream));
  RequireCuda(cudaMemcpyAsync(ref_.candidates, candidates.data(),
                              candidates.size() * sizeof(Candidate), cudaMemcpyHostToDevice,
                              stream));
  if (bloom_ != nullptr) {
    RequireCuda(cudaMemsetAsync(bloom_->data(), 0, bloom_bytes_, stream));
    RequireCuda(cudaMemcpyAsync(bloom_->data(), admission.counters.data(),
                                std::min<size_t>(bloom_bytes_, admission.counters.size()),
                                cudaMemcpyHostToDevice, stream));
  }
  RebuildIndex(stream);
  RequireCuda(cudaStreamSynchronize(stream));
}

}  // namespace group_embedding
