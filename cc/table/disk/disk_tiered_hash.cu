#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "table/check_table.h"
#include "table/complete_rows.h"
#include "table/device/device_hash_kernels.h"
#include "table/disk/disk_tiered_hash.h"
#include "table/disk/insert_in_tiers.h"

namespace group_embedding {
namespace {

constexpr int64_t kShareMoved =
    16;  // at least 1 / kShareMoved of the rows in memory move to disk at once; ahead, by pieces
constexpr int64_t kMoved = 1 << 16;  // rows copied at a time
constexpr int64_t kSamples = 1 << 16;

// The priority that `share` of the sorted samples do not exceed; kHeld if there are too few
// samples.
uint64_t Quantile(const std::vector<uint64_t>& samples, double share) {
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(samples.size())));
  return count <= samples.size() ? samples[std::max<size_t>(count, 1) - 1] : kHeld;
}

// Adds the time for which it lives to what the table's batches wait.
class TimedWait {
 public:
  explicit TimedWait(DeviceUse* use) : use_(*use) {}
  ~TimedWait() {
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin_;
    use_.AddWait(waited.count());
  }
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

 private:
  DeviceUse& use_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Both as they lie on disk.
std::vector<int64_t> Without(const std::vector<int64_t>& keys, const std::vector<int64_t>& others) {
  std::vector<int64_t> left;
  std::set_difference(keys.begin(), keys.end(), others.begin(), others.end(),
                      std::back_inserter(left), IsBeforeOnDisk);
  return left;
}

// rows.keys[i] and what belongs to it, for each i of `chosen`.
KeyedRows SomeOf(const KeyedRows& rows, const std::vector<size_t>& chosen) {
  KeyedRows some;
  const size_t num_rows = rows.keys.size();
  auto copy = [&](const std::vector<char>& from, std::vector<char>* to) {
    const size_t bytes = from.size() / num_rows;
    for (const size_t i : chosen) {
      to->insert(to->end(), from.begin() + i * bytes, from.begin() + (i + 1) * bytes);
    }
  };
  for (const size_t i : chosen) {
    some.keys.push_back(rows.keys[i]);
    some.counts.push_back(rows.counts[i]);
    some.versions.push_back(rows.versions[i]);
  }
  copy(rows.values, &some.values);
  some.slots.resize(rows.slots.size());
  for (size_t s = 0; s < rows.slots.size(); ++s) copy(rows.slots[s], &some.slots[s]);
  return some;
}

}  // namespace

DiskTieredHash::DiskTieredHash(const TableOptions& options, int64_t device_bytes,
                               const DiskTierOptions& disk, const void* matrix, Status* error)
    : DeviceHash(options, {device_bytes, disk.cache_strategy, /*has_disk=*/true}, matrix, error) {
  if (error->ok()) disk_ = std::make_unique<RowsOnDisk>(options, disk, error);
  if (!error->ok()) return;
  for (size_t s = 0; s < slots_.size(); ++s) AddSlotToDisk(s);
  if (budget_ != nullptr) disk_->HandOutTo(budget_->handed_out());
}

std::unique_ptr<EmbeddingTable> MakeDiskTieredDeviceTable(const TableOptions& options,
                                                          int64_t device_bytes,
                                                          const DiskTierOptions& disk,
                                                          const void* matrix, Status* error) {
  *error = CheckOptions(options);
  if (error->ok()) *error = CheckTierBytes(options, device_bytes);
  if (error->ok()) *error = CheckTierBytes(options, disk.max_bytes);
  if (error->ok()) *error = CheckDeviceBudget(options);
  if (!error->ok()) return nullptr;
  if (device_bytes <= 0 || options.max_bytes <= 0) {
    *error =
        "table '" + options.name +
        "': expected the sizes of both memories, as it has a disk tier; give tier_bytes=[bytes "
        "on the GPU, bytes in host memory], or storage_size of a StorageOption";
    return nullptr;
  }
  auto table = std::make_unique<DiskTieredHash>(options, device_bytes, disk, matrix, error);
  if (!error->ok()) return nullptr;
  return table;
}

Status DiskTieredHash::Slot(const SlotOptions& slot, void** array) {
  const size_t num_slots = slots().size();
  Status status = DeviceHash::Slot(slot, array);
  if (slots().size() == num_slots) return status;
  const std::lock_guard<std::mutex> lock(mutex_);
  AddSlotToDisk(num_slots);
  return {};
}

// It starts as that of the first row, which no key has.
void DiskTieredHash::AddSlotToDisk(size_t s) {
  const char* array = slot_arrays_[s]->data();
  disk_->AddSlot(ToHost(array, SlotBytes(s), streams_.own()), slots_[s].name == kTimeSlot);
}

int64_t DiskTieredHash::num_keys() const {
  const Alone alone(*this);
  return State().num_keys + disk_->num_keys();
}

int64_t DiskTieredHash::memory_bytes() const {
  return DeviceHash::memory_bytes() + disk_->store().memory_bytes();
}

int64_t DiskTieredHash::host_bytes() const {
  return DeviceHash::host_bytes() + disk_->store().memory_bytes();
}

Status DiskTieredHash::Describe(const int64_t* keys, int64_t num_keys, KeyInfo* infos) const {
  const Alone alone(*this);  // no row moves between the two
  DescribeAlone(keys, num_keys, infos);
  return disk_->Describe(keys, num_keys, /*tier=*/2, infos);
}

Status DiskTieredHash::ReadAll(KeyedRows* rows) const {
  const Status status = DeviceHash::ReadAll(rows);
  return status.ok() ? disk_->ReadAll(rows) : status;
}

Status DiskTieredHash::Insert(const KeyedRowsView& given, const ParallelFor& parallel_for) {
  Status wrong = CheckCounts(options(), given);
  if (!wrong.ok()) return wrong;
  disk_->CompleteEviction();
  UpperTier memory;
  memory.find = [this](const std::vector<int64_t>& keys, int64_t* rows) {
    Find(keys.data(), static_cast<int64_t>(keys.size()), rows);
  };
  memory.space = [this] {
    const Alone alone(*this);
    const int64_t num_free = NumFree();
    return UpperTier::Space{num_free, ++clock_};  // the next snapshot of changes has these rows
  };
  memory.insert = [&](const KeyedRows& rows, const std::vector<size_t>& chosen) {
    return DeviceHash::Insert(SomeOf(rows, chosen), parallel_for);
  };
  memory.drop_counts = [this](const std::vector<int64_t>& keys) {
    if (keys.empty() || options().admission.kind != Admission::Kind::kCounter) return;
    DeviceHash::Erase(keys.data(), static_cast<int64_t>(keys.size()));
  };
  KeyedRows kept;
  Status status = CompleteRows(*this, given, &kept);
  if (status.ok() && !given.has_places) status = FitIntoBudget(&kept);
  keys_of_shares_.clear();
  return status.ok() ? InsertInTiers(*this, kept, kMoved, memory, disk_.get()) : status;
}

int64_t DiskTieredHash::Erase(const int64_t* keys, int64_t num_keys) {
  const int64_t num_erased = DeviceHash::Erase(keys, num_keys);
  keys_of_shares_.clear();
  return num_erased + disk_->EraseSome({keys, keys + num_keys}, changes_.erased());
}

int64_t DiskTieredHash::Evict(const Eviction& given, int64_t step,
                              const ParallelFor& parallel_for) {
  const Eviction eviction = AsOfNow(given);
  keys_of_shares_.clear();
  return DeviceHash::Evict(eviction, step, parallel_for) +
         disk_->Evict(eviction, step, changes_.erased());
}

void DiskTieredHash::Clear() {
  DeviceHash::Clear();
  keys_of_shares_.clear();
  disk_->Clear(changes_.erased());
}

std::unique_ptr<Snapshot> DiskTieredHash::TakeSnapshot(bool changes_only, const Eviction& given,
                                                       int64_t step, int64_t follower) {
  const Eviction eviction = AsOfNow(given);
  const int64_t since = changes_only ? changes_.MarkOf(follower).clock : 0;
  if (eviction.kind != Eviction::Kind::kNone) keys_of_shares_.clear();
  auto memory = DeviceHash::TakeSnapshot(changes_only, eviction, step, follower);
  return disk_->TakeSnapshot(std::move(memory), changes_only, since, {eviction, step, clock_},
                             &mutex_, &changes_);
}

void DiskTieredHash::PrefetchRest() {
  if (IsPrefetching()) {
    streams_.AwaitMark();  // what the device did before is no wait
    const TimedWait wait(&use_);
    while (PrefetchSome()) {
    }
  }
  ahead_ = nullptr;
}

Status DiskTieredHash::PrefetchRowsOf(const std::vector<DeviceKeys>& keys, Access access,
                                      cudaStream_t stream) {
  makes_places_ = false;
  use_.ForgetBefore();
  PrefetchRest();
  if (!disk_->failed().ok()) return disk_->failed();
  if (disk_->store().num_keys() == 0) {
    int64_t num_keys = 0;
    for (const DeviceKeys& some : keys) num_keys += some.num_keys;
    if (access == Access::kRead || FitsInMemory(num_keys)) return {};
  }
  streams_.Use(stream);  // whose keys these are
  ReleaseRetired();
  const Alone alone(*this, std::adopt_lock);
  RequireCuda(cudaStreamSynchronize(streams_.own()));  // what the device did before is no wait
  const TimedWait wait(&use_);
  ReleaseLent();
  ++clock_;
  const int64_t held_since = std::min(clock_, OldestBatchLocked());
  const JoinedKeys joined{keys, streams_.own(), streams_.own()};
  DeviceTableRef ref = RefAt(held_since);
  use_.CountBefore(&ref, streams_.own());
  const std::vector<int64_t> missing = Missing(joined, ref);
  use_.ReadBefore(streams_.own());
  FoundOnDisk found;
  Status status = disk_->FindAll(missing, &found);
  if (!status.ok()) return status;
  const auto num_found = static_cast<int64_t>(found.keys.size());
  std::vector<int64_t> new_keys;
  if (access == Access::kTrain) new_keys = Without(missing, found.keys);
  std::vector<int64_t> new_of_shares(options_.budget.shares_of_rank());
  for (const int64_t key : new_keys) ++new_of_shares[options_.budget.ShareOf(key)];
  const bool may_exceed = !new_keys.empty() && MayExceedBudget(new_of_shares, !HasFilter(options_));
  auto num_new = static_cast<int64_t>(new_keys.size()), num_lent = int64_t{0};
  if (budget_ != nullptr && num_new > budget_->max_keys()) {  // not all get a row
    if (budget_->lends()) num_lent = num_new - budget_->max_keys();
    num_new = budget_->max_keys();
  }
  status = TakeIn(found, num_found + num_new, num_lent, held_since);
  makes_places_ = may_exceed && status.ok();
  return status;
}

Status DiskTieredHash::TakeIn(const FoundOnDisk& found, int64_t num_rows, int64_t num_lent,
                              int64_t held_since) {
  Status status = disk_->EraseExpired(found);
  if (status.ok()) {
    status = MakeFree(num_rows, num_lent, static_cast<int64_t>(found.keys.size()), held_since);
  }
  return status.ok() ? MoveUp(found, held_since) : status;
}

int64_t DiskTieredHash::NumFree() const {
  const TableState state = State();
  return state.num_free + std::max<int64_t>(0, MaxRows() - state.next_row);
}

Status DiskTieredHash::MakeFree(int64_t num_rows, int64_t num_lent, int64_t num_leaving,
                                int64_t held_since) {
  const int64_t num_free = NumFree(), lacking = std::max<int64_t>(0, num_rows - num_free);
  const int64_t wanted = num_rows + num_lent - num_free;
  if (wanted <= 0) return {};
  int64_t at_once = std::max(MaxRows() / kShareMoved, wanted);
  at_once = std::min(at_once, disk_->NumFree(num_leaving));
  if (streams_.IsAfterMark(streams_.own())) at_once = std::min(at_once, RowsOnDisk::kAtOnce);
  const std::vector<int64_t> rows = RowsToMoveDown(lacking, std::max(lacking, at_once), held_since);
  const int64_t num_cold = static_cast<int64_t>(rows.size());
  if (num_cold < lacking) {
    return Named(
               ": expected a batch whose rows fit its memory beside those of batches in flight, "
               "got ") +
           std::to_string(lacking - num_cold) + " rows too many: it has " +
           std::to_string(MaxRows() - first_row()) + " rows of " + std::to_string(BytesPerRow()) +
           " bytes (dim " + std::to_string(options().dim) + ", " + std::to_string(slots_.size()) +
           " slots) in " + std::to_string(max_bytes_) +
           " bytes; give it more (tier_bytes, or storage_size of a StorageOption), or smaller "
           "batches";
  }
  const Status status = disk_->CheckSize(num_cold, num_leaving);
  return status.ok() ? MoveDown(rows) : status;
}

// Samples give the priority below which rows are to leave. Among these rows the ones with the
// highest row numbers are chosen, because they are in host memory.
std::vector<int64_t> DiskTieredHash::RowsToMoveDown(int64_t least, int64_t most,
                                                    int64_t held_since) const {
  const cudaStream_t stream = streams_.own();
  const int64_t num_rows = State().next_row;
  const int64_t num_samples = std::min(num_rows, kSamples);
  std::vector<int64_t> sampled(num_samples);
  for (int64_t i = 0; i < num_samples; ++i) sampled[i] = i * (num_rows / num_samples);
  const StreamBuffer<int64_t> device_sampled(sampled.data(), num_samples, stream);
  const StreamBuffer<uint64_t> priorities(num_samples, stream);
  RequireCuda(MeasurePriority(Ref(), device_sampled.data(), num_samples, held_since,
                              priorities.data(), stream));
  std::vector<uint64_t> samples = ToHost(priorities.data(), num_samples, stream);
  std::sort(samples.begin(), samples.end());
  const double share = static_cast<double>(most) / static_cast<double>(num_rows);
  const StreamBuffer<bool> is_cold(num_rows, stream);
  const StreamBuffer<int64_t> rows(num_rows, stream);
  int64_t num_cold = 0;
  for (const uint64_t max_priority :
       {Quantile(samples, share), Quantile(samples, 1.25 * share), kHeld}) {
    RequireCuda(ChooseCold(Ref(), num_rows, held_since, max_priority, is_cold.data(), stream));
    num_cold = SelectNumbers(is_cold.data(), num_rows, rows.data(), stream);
    if (num_cold >= least) break;
  }
  const int64_t count = std::min(most, num_cold);
  return ToHost(rows.data() + num_cold - count, count, stream);
}

Status DiskTieredHash::MoveDown(const std::vector<int64_t>& rows) {
  const cudaStream_t stream = streams_.own();
  const int64_t num_rows = static_cast<int64_t>(rows.size()), bytes = disk_->layout().bytes();
  ReserveFree(State().num_free + num_rows);
  for (int64_t begin = 0; begin < num_rows; begin += kMoved) {
    const int64_t count = std::min(kMoved, num_rows - begin);
    const StreamBuffer<int64_t> unsorted(rows.data() + begin, count, stream), keys(count, stream);
    RequireCuda(KeysOfRows(Ref(), unsorted.data(), count, keys.data(), stream));
    std::vector<std::pair<uint64_t, int64_t>> in_order;
    const std::vector<int64_t> unsorted_keys = ToHost(keys.data(), count, stream);
    for (int64_t i = 0; i < count; ++i) {
      in_order.emplace_back(static_cast<uint64_t>(unsorted_keys[i]), rows[begin + i]);
    }
    std::sort(in_order.begin(), in_order.end());
    std::vector<int64_t> host_keys, host_rows;
    for (const auto& [key, row] : in_order) {
      host_keys.push_back(static_cast<int64_t>(key));
      host_rows.push_back(row);
    }
    const StreamBuffer<int64_t> device_rows(host_rows.data(), count, stream);
    const StreamBuffer<char> records(count * bytes, stream);
    RequireCuda(PackRows(Ref(), device_rows.data(), count, bytes, records.data(), stream));
    const Status status =
        disk_->Put(host_keys, ToHost(records.data(), count * bytes, stream).data());
    if (!status.ok()) return status;
    std::vector<int64_t> left;
    try {
      left = TakeOut(keys.data(), count, device_rows.data());
    } catch (const std::exception&) {  // such as of memory for a snapshot's copies: they stay
      Require(disk_->Erase(host_keys));
      throw;
    }
    FreeRows(left);
  }
  return {};
}

// All memory is allocated before a key has its row in both places.
Status DiskTieredHash::MoveUp(const FoundOnDisk& found, int64_t held_since) {
  const cudaStream_t stream = streams_.own();
  const int64_t count = static_cast<int64_t>(found.keys.size());
  if (count == 0) return {};
  const StreamBuffer<int64_t> keys(found.keys.data(), count, stream), rows(count, stream);
  const StreamBuffer<char> records(found.records.data(), static_cast<int64_t>(found.records.size()),
                                   stream);
  const DeviceKeysToLocate request{this, keys.data(), count, rows.data()};
  const StreamBuffer<char> scratch(LocateRowsScratchBytes(&request, 1, Access::kTrain), stream);
  Status status = InsertRowsCuda(this, keys.data(), count, rows.data(), scratch.data(), stream);
  if (status.ok()) {
    cudaError_t error = UnpackRows(RefAt(held_since), records.data(), keys.data(), rows.data(),
                                   count, disk_->layout().bytes(), stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    status = CudaStatus(error);
    if (status.ok()) status = disk_->Erase(found.keys);
  }
  if (status.ok()) return status;
  std::vector<int64_t> taken = TakeOut(keys.data(), count, rows.data());  // they are still there
  taken.erase(std::remove(taken.begin(), taken.end(), kNoRow), taken.end());
  FreeRows(taken);
  return status;
}

}  // namespace group_embedding
