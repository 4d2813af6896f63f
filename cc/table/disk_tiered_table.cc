#include "table/disk_tiered_table.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "table/disk_tiered_shards.h"

namespace group_embedding {
namespace {

constexpr int64_t kAtOnce = 4096;  // records in memory

// Rows in memory, and then those on disk, in the order of their keys.
class TieredSnapshot : public Snapshot {
 public:
  TieredSnapshot(std::unique_ptr<Snapshot> memory, const RowStore& store,
                 std::unique_ptr<DiskSnapshot> disk, int64_t changed_since, std::string error)
      : memory_(std::move(memory)),
        records_(store),
        disk_(std::move(disk)),
        changed_since_(changed_since),
        error_(std::move(error)) {}

  const EmbeddingTable& table() const override { return memory_->table(); }
  int64_t num_rows() const override { return memory_->num_rows() + disk_->num_keys(); }
  const AdmissionState& admission() override { return memory_->admission(); }
  const std::vector<int64_t>& erased() const override { return memory_->erased(); }
  void Keep() override { memory_->Keep(); }
  std::string error() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

  // Which number a row on disk has is nobody's business: whoever asks for so many gets the next.
  void Read(int64_t begin, int64_t end, KeyedRows* rows) override {
    memory_->Read(begin, std::min(end, memory_->num_rows()), rows);
    begin = std::max(begin, memory_->num_rows());
    std::lock_guard<std::mutex> lock(mutex_);
    for (; begin < end && error_.empty(); begin += kAtOnce) {
      std::vector<int64_t> keys;
      std::vector<char> records;
      error_ = disk_->Next(std::min(kAtOnce, end - begin), &keys, &records);
      for (size_t i = 0; i < keys.size(); ++i) {
        const char* record = records.data() + i * records_.bytes();
        const bool is_wanted = RowRecords::Head(record).clock >= changed_since_;
        if (is_wanted) records_.Append(record, keys[i], rows);
      }
    }
  }

 private:
  const std::unique_ptr<Snapshot> memory_;
  const RowRecords records_;
  mutable std::mutex mutex_;
  const std::unique_ptr<DiskSnapshot> disk_;
  const int64_t changed_since_;
  std::string error_;
};

}  // namespace

DiskTieredShards::DiskTieredShards(const TableOptions& options, const DiskTierOptions& disk,
                                   const void* matrix, std::string* error)
    : HostShards(options, matrix, error), disk_options_(disk) {
  if (!error->empty()) return;
  const int64_t bytes = (first_row() + store().max_rows()) * static_cast<int64_t>(sizeof(RowUse));
  uses_ = ReserveHostMemory(bytes);
  *error = uses_->Grow(bytes);
  if (!error->empty()) *error = "table '" + options.name + "': " + *error;
  if (!error->empty()) return;
  DiskStoreOptions store_options;
  store_options.table = options.name;
  store_options.path = disk.path;
  store_options.record_bytes = RowRecords(store()).bytes();
  disk_ = OpenDiskStore(store_options, error);
}

std::string DiskTieredShards::Slot(const SlotOptions& slot, void** array) {
  const size_t num_slots = slots().size();
  std::string error = HostShards::Slot(slot, array);
  if (slots().size() == num_slots) return error;
  const char* start = RowRecords::SlotStart(store(), num_slots);
  disk_->Extend({start, start + store().slot_row_bytes(num_slots)});
  return "";
}

int64_t DiskTieredShards::max_keys(const std::vector<SlotOptions>& slots) const {
  if (disk_options_.max_bytes == 0) return std::numeric_limits<int64_t>::max();
  const int64_t bytes = DiskBytesPerRow() + BytesOfNewSlots(this->slots(), slots);
  return HostShards::max_keys(slots) + disk_options_.max_bytes / bytes;
}

int64_t DiskTieredShards::memory_bytes() const {
  return HostShards::memory_bytes() + rows().num_rows * static_cast<int64_t>(sizeof(RowUse)) +
         disk_->memory_bytes();
}

std::string DiskTieredShards::Describe(const int64_t* keys, int64_t num_keys,
                                       KeyInfo* infos) const {
  std::lock_guard<std::mutex> lock(locating_);
  std::string error = HostShards::Describe(keys, num_keys, infos);
  std::unordered_map<int64_t, std::vector<int64_t>> below;  // places of keys not in memory
  std::vector<int64_t> missing;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (infos[i].tier != kNoTier) continue;
    std::vector<int64_t>& places = below[keys[i]];
    if (places.empty()) missing.push_back(keys[i]);
    places.push_back(i);
  }
  Found found;
  if (error.empty()) {
    error = FindOnDisk(missing.data(), static_cast<int64_t>(missing.size()), &found);
  }
  for (size_t f = 0; f < found.keys.size(); ++f) {
    const RecordHead head = RowRecords::Head(found.records.data() + f * disk_->record_bytes());
    for (const int64_t i : below[found.keys[f]]) infos[i] = {1, head.count, head.version};
  }
  return error;
}

std::string DiskTieredShards::Insert(const KeyedRows& given, const ParallelFor&) {
  KeyedRows rows = given;
  std::string error = CompleteRows(*this, &rows);
  if (error.empty()) error = failed_;
  const int64_t batch = BeginBatch();  // as HostShards::Insert
  for (size_t begin = 0; begin < rows.keys.size() && error.empty(); begin += kAtOnce) {
    error = InsertSome(rows, begin, std::min<size_t>(begin + kAtOnce, rows.keys.size()));
  }
  EndBatch(batch);
  return error;
}

std::string DiskTieredShards::InsertSome(const KeyedRows& rows, size_t begin, size_t end) {
  std::unordered_map<int64_t, size_t> last;  // of a key that comes twice, the last holds
  for (size_t i = begin; i < end; ++i) last[rows.keys[i]] = i;
  std::vector<int64_t> keys;
  for (size_t i = begin; i < end; ++i) {
    if (last[rows.keys[i]] == i) keys.push_back(rows.keys[i]);
  }
  std::sort(keys.begin(), keys.end(), IsBeforeOnDisk);
  Found former;
  std::string error = FindOnDisk(keys.data(), static_cast<int64_t>(keys.size()), &former);
  if (error.empty()) {
    error = disk_->Erase(former.keys.data(), static_cast<int64_t>(former.keys.size()));
  }
  std::vector<int64_t> in_memory(keys.size());
  Find(keys.data(), static_cast<int64_t>(keys.size()), in_memory.data());
  const RowRecords layout(store());
  Found below;
  int64_t num_free = store().NumFree();
  for (size_t k = 0; k < keys.size() && error.empty(); ++k) {
    const size_t i = last[keys[k]];
    if (in_memory[k] != kNoRow || num_free > 0) {
      num_free -= in_memory[k] == kNoRow;
      error = InsertOne(rows, i);
    } else {
      below.keys.push_back(keys[k]);
      below.records.resize(below.keys.size() * layout.bytes());
      char* record = below.records.data() + below.records.size() - layout.bytes();
      layout.Pack(rows, i, store().clock(), record);
    }
  }
  const int64_t num_below = static_cast<int64_t>(below.keys.size());
  if (error.empty()) error = CheckDiskSize(num_below);
  if (error.empty()) error = disk_->Put(below.keys.data(), num_below, below.records.data());
  return error;
}

int64_t DiskTieredShards::Erase(const int64_t* keys, int64_t num_keys) {
  const int64_t num_erased = HostShards::Erase(keys, num_keys);
  std::vector<int64_t> distinct(keys, keys + num_keys);
  std::sort(distinct.begin(), distinct.end(), IsBeforeOnDisk);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return num_erased + EraseOnDisk(distinct);
}

int64_t DiskTieredShards::EraseOnDisk(const std::vector<int64_t>& keys) {
  int64_t num_erased = 0;
  const int64_t num_keys = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < num_keys && failed_.empty(); begin += kAtOnce) {
    Found found;
    failed_ = FindOnDisk(keys.data() + begin, std::min(kAtOnce, num_keys - begin), &found);
    const int64_t num_found = static_cast<int64_t>(found.keys.size());
    if (failed_.empty()) failed_ = disk_->Erase(found.keys.data(), num_found);
    if (!failed_.empty()) break;
    num_erased += num_found;
    erased_.insert(erased_.end(), found.keys.begin(), found.keys.end());
  }
  return num_erased;
}

template <typename Body>
std::string DiskTieredShards::ForEachOnDisk(const Body& body) const {
  const std::unique_ptr<DiskSnapshot> all = disk_->TakeSnapshot();
  for (;;) {
    Found found;
    std::string error = all->Next(kAtOnce, &found.keys, &found.records);
    if (!error.empty() || found.keys.empty()) return error;
    for (size_t i = 0; i < found.keys.size(); ++i) {
      body(found.keys[i], found.records.data() + i * disk_->record_bytes());
    }
  }
}

std::string DiskTieredShards::ReadAll(KeyedRows* rows) const {
  if (!failed_.empty()) return failed_;
  const RowRecords records(store());
  HostShards::ReadAll(rows);
  return ForEachOnDisk([&](int64_t key, const char* record) { records.Append(record, key, rows); });
}

int64_t DiskTieredShards::Evict(const Eviction& eviction, int64_t step) {
  std::vector<int64_t> keys;
  std::vector<char> values(store().row_bytes());  // aligned, as records are not
  const std::string error = ForEachOnDisk([&](int64_t key, const char* record) {
    std::memcpy(values.data(), RowRecords::Values(record), values.size());
    const int64_t version = RowRecords::Head(record).version;
    if (IsToEvict(eviction, step, version, values.data())) keys.push_back(key);
  });
  if (failed_.empty()) failed_ = error;
  return HostShards::Evict(eviction, step) + EraseOnDisk(keys);
}

void DiskTieredShards::Clear() {
  HostShards::Clear();
  failed_ = ForEachOnDisk([&](int64_t key, const char*) { erased_.push_back(key); });
  if (failed_.empty()) failed_ = disk_->Clear();
}

std::unique_ptr<Snapshot> DiskTieredShards::TakeSnapshot(bool changes_only) {
  return std::make_unique<TieredSnapshot>(HostShards::TakeSnapshot(changes_only), store(),
                                          disk_->TakeSnapshot(), changes_only ? kept_clock_ : 0,
                                          failed_);
}

std::unique_ptr<HostTable> MakeDiskTieredTable(const TableOptions& options,
                                               const DiskTierOptions& disk, const void* matrix,
                                               std::string* error) {
  if (options.max_bytes <= 0) {
    *error = "table '" + options.name +
             "': expected the size of its memory, as it has a disk "
             "tier, got " +
             std::to_string(options.max_bytes) +
             " bytes; give StorageOption(storage_size=[bytes in memory, bytes on disk])";
    return nullptr;
  }
  auto table = std::make_unique<DiskTieredShards>(options, disk, matrix, error);
  if (!error->empty()) return nullptr;
  return table;
}

}  // namespace group_embedding
