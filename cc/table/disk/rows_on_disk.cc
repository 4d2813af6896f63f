#include "table/disk/rows_on_disk.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "table/eviction.h"

namespace group_embedding {

RowsOnDisk::RowsOnDisk(const TableOptions& options, const DiskTierOptions& disk, Status* error)
    : options_(options), disk_(disk), layout_(options.dim * SizeOf(options.dtype)) {
  DiskStoreOptions store_options;
  store_options.table = options.name;
  store_options.path = disk.path;
  store_options.record_bytes = layout_.bytes();
  store_options.memory_bytes = MemoryOfStore(options.budget);
  store_ = OpenDiskStore(store_options, error);
}

void RowsOnDisk::AddSlot(std::vector<char> start, bool is_time) {
  if (is_time) minute_at_ = layout_.bytes();
  store_->Extend(start);
  layout_.AddSlot(std::move(start));
}

Status RowsOnDisk::Find(const int64_t* keys, int64_t num_keys, FoundOnDisk* found) const {
  if (store_->num_keys() == 0) return {};
  const int64_t bytes = layout_.bytes();
  const std::unique_ptr<bool[]> is_there(new bool[num_keys]);
  found->records.resize(num_keys * bytes);
  Status status = store_->Get(keys, num_keys, is_there.get(), found->records.data());
  if (!status.ok()) return status;
  const std::shared_ptr<const DiskEviction> eviction = this->eviction();
  for (int64_t i = 0; i < num_keys; ++i) {
    if (!is_there[i]) continue;
    const auto policy = RemovedBy(found->records.data() + i * bytes, eviction.get());
    if (policy != Eviction::Kind::kNone) {
      found->evicted.push_back(keys[i]);
      Count(policy, &found->expired);
      continue;
    }
    char* to = found->records.data() + static_cast<int64_t>(found->keys.size()) * bytes;
    std::memmove(to, found->records.data() + i * bytes, bytes);
    found->keys.push_back(keys[i]);
  }
  found->records.resize(static_cast<int64_t>(found->keys.size()) * bytes);
  return {};
}

Status RowsOnDisk::FindAll(const std::vector<int64_t>& keys, FoundOnDisk* found) const {
  const int64_t num_keys = static_cast<int64_t>(keys.size());
  Status status;
  for (int64_t begin = 0; begin < num_keys && status.ok(); begin += kAtOnce) {
    FoundOnDisk some;
    status = Find(keys.data() + begin, std::min(kAtOnce, num_keys - begin), &some);
    found->keys.insert(found->keys.end(), some.keys.begin(), some.keys.end());
    found->records.insert(found->records.end(), some.records.begin(), some.records.end());
    found->evicted.insert(found->evicted.end(), some.evicted.begin(), some.evicted.end());
    found->expired += some.expired;
  }
  return status;
}

Status RowsOnDisk::Put(const std::vector<int64_t>& keys, char* records) {
  if (const auto eviction = this->eviction(); eviction != nullptr) {
    for (size_t i = 0; i < keys.size(); ++i) {  // they are not those that it chooses from
      char* record = records + i * layout_.bytes();
      RecordHead head = RecordLayout::Head(record);
      head.clock = std::max(head.clock, eviction->clock + 1);
      RecordLayout::SetHead(head, record);
    }
  }
  return store_->Put(keys.data(), static_cast<int64_t>(keys.size()), records);
}

Status RowsOnDisk::Erase(const std::vector<int64_t>& keys) {
  if (keys.empty()) return {};
  return store_->Erase(keys.data(), static_cast<int64_t>(keys.size()));
}

Status RowsOnDisk::CheckSize(int64_t more, int64_t leaving) {
  if (more <= std::max(leaving, NumFree(leaving))) return {};
  if (CompleteEviction() > 0) return CheckSize(more, leaving);
  const int64_t bytes = BytesPerRow(), num_rows = store_->num_keys() - leaving + more;
  return "table '" + options_.name + "' is full: expected at most " +
         std::to_string(disk_.max_bytes) + " bytes on disk, in '" + store_->path() + "', got " +
         std::to_string(num_rows) + " rows of " + std::to_string(bytes) +
         " bytes; give it more (tier_bytes, or storage_size of a StorageOption), set a budget that "
         "evicts keys (max_keys, max_bytes), or admit fewer keys (admit_after)";
}

Status RowsOnDisk::Insert(const KeyedRows& rows, const std::vector<size_t>& chosen, int64_t clock) {
  std::vector<int64_t> keys;
  std::vector<char> records(chosen.size() * layout_.bytes());
  for (const size_t i : chosen) {
    layout_.Pack(rows, i, clock, records.data() + keys.size() * layout_.bytes());
    keys.push_back(rows.keys[i]);
  }
  return Put(keys, records.data());
}

Status RowsOnDisk::EraseExpired(const FoundOnDisk& found) {
  {
    std::lock_guard<std::mutex> lock(counting_);
    expired_ += found.expired;
  }
  return EraseEvicted(found.evicted);
}

ExpiredCounts RowsOnDisk::expired() const {
  std::lock_guard<std::mutex> lock(counting_);
  return expired_;
}

Eviction::Kind RowsOnDisk::RemovedBy(const char* record, const DiskEviction* eviction) const {
  if (eviction == nullptr) return Eviction::Kind::kNone;
  const RecordHead head = RecordLayout::Head(record);
  if (head.clock > eviction->clock) return Eviction::Kind::kNone;
  std::vector<char> values(options_.dim * SizeOf(options_.dtype));  // aligned, as records are not
  std::memcpy(values.data(), RecordLayout::Values(record), values.size());
  uint32_t minute = 0;
  if (minute_at_ > 0) std::memcpy(&minute, record + minute_at_, sizeof(minute));
  return EvictedBy(options_, eviction->eviction, eviction->step, head.version, values.data(),
                   minute);
}

Status RowsOnDisk::Forget(const std::vector<int64_t>& keys) {
  std::lock_guard<std::mutex> lock(evicting_);
  FoundOnDisk found;
  const Status status = Find(keys.data(), static_cast<int64_t>(keys.size()), &found);
  return status.ok() ? EraseExpired(found) : status;
}

int64_t RowsOnDisk::EarliestStep() const {
  std::vector<char> records;
  int64_t earliest = -1;
  if (!store_->Sample(kSampled, &records).ok()) return earliest;
  const std::shared_ptr<const DiskEviction> eviction = this->eviction();
  for (size_t at = 0; at < records.size(); at += layout_.bytes()) {
    const int64_t version = RecordLayout::Head(&records[at]).version;
    if (version < 0 || IsEvicted(&records[at], eviction.get())) continue;
    earliest = earliest < 0 ? version : std::min(earliest, version);
  }
  return earliest;
}

int64_t RowsOnDisk::CompleteEviction(std::vector<int64_t>* erased) {
  std::lock_guard<std::mutex> lock(evicting_);
  const std::shared_ptr<const DiskEviction> eviction = this->eviction();
  if (eviction == nullptr) return 0;
  const std::unique_ptr<DiskSnapshot> all = store_->TakeSnapshot();
  int64_t num_evicted = 0;
  for (Status status; status.ok();) {
    FoundOnDisk found;
    status = all->Next(kAtOnce, &found.keys, &found.records);
    if (status.ok() && found.keys.empty()) break;
    for (size_t i = 0; i < found.keys.size(); ++i) {
      const auto policy = RemovedBy(found.records.data() + i * layout_.bytes(), eviction.get());
      if (policy == Eviction::Kind::kNone) continue;
      found.evicted.push_back(found.keys[i]);
      Count(policy, &found.expired);
    }
    if (status.ok()) status = EraseExpired(found);
    if (failed_.ok()) failed_ = status;
    num_evicted += static_cast<int64_t>(found.evicted.size());
    if (erased == nullptr) continue;
    erased->insert(erased->end(), found.evicted.begin(), found.evicted.end());
  }
  SetEviction(nullptr);
  return num_evicted;
}

int64_t RowsOnDisk::EraseSome(std::vector<int64_t> keys, std::vector<int64_t>* erased) {
  CompleteEviction();
  std::sort(keys.begin(), keys.end(), IsBeforeOnDisk);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  int64_t num_erased = 0;
  const int64_t num_keys = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < num_keys && failed_.ok(); begin += kAtOnce) {
    FoundOnDisk found;
    failed_ = Find(keys.data() + begin, std::min(kAtOnce, num_keys - begin), &found);
    if (failed_.ok()) failed_ = Erase(found.keys);
    if (!failed_.ok()) break;
    num_erased += static_cast<int64_t>(found.keys.size());
    erased->insert(erased->end(), found.keys.begin(), found.keys.end());
  }
  return num_erased;
}

template <typename Body>
Status RowsOnDisk::ForEach(const Body& body) const {
  const std::unique_ptr<DiskSnapshot> all = store_->TakeSnapshot();
  for (;;) {
    FoundOnDisk found;
    Status status = all->Next(kAtOnce, &found.keys, &found.records);
    if (!status.ok() || found.keys.empty()) return status;
    for (size_t i = 0; i < found.keys.size(); ++i) {
      body(found.keys[i], found.records.data() + i * layout_.bytes());
    }
  }
}

Status RowsOnDisk::Visit(
    const std::function<void(int64_t, const RecordHead&, const char*, const char*)>& visit) const {
  std::vector<char> row(layout_.bytes() - RecordLayout::kHeadBytes);
  const int64_t value_bytes = options_.dim * SizeOf(options_.dtype);
  return ForEach([&](int64_t key, const char* record) {
    std::memcpy(row.data(), RecordLayout::Values(record), row.size());
    visit(key, RecordLayout::Head(record), row.data(), row.data() + value_bytes);
  });
}

Status RowsOnDisk::EraseEvicted(std::vector<int64_t> keys) {
  std::sort(keys.begin(), keys.end(), IsBeforeOnDisk);
  Status status;
  for (size_t begin = 0; begin < keys.size() && status.ok(); begin += kAtOnce) {
    const size_t end = std::min(keys.size(), begin + static_cast<size_t>(kAtOnce));
    const std::vector<int64_t> some(keys.begin() + begin, keys.begin() + end);
    const bool hands_out = handed_out_ != nullptr;
    const auto lock = hands_out ? std::unique_lock(handing_out_) : std::unique_lock<std::mutex>();
    if (hands_out) status = HandOut(some);
    if (status.ok()) status = Erase(some);
  }
  return status;
}

Status RowsOnDisk::HandOut(const std::vector<int64_t>& keys) {
  const auto num_keys = static_cast<int64_t>(keys.size());
  const std::unique_ptr<bool[]> is_there(new bool[num_keys]);
  std::vector<char> records(num_keys * layout_.bytes());
  const Status status = store_->Get(keys.data(), num_keys, is_there.get(), records.data());
  for (int64_t i = 0; i < num_keys && status.ok(); ++i) {
    if (!is_there[i]) continue;
    const char* record = records.data() + i * layout_.bytes();
    const RecordHead head = RecordLayout::Head(record);
    handed_out_->Add(keys[i], head.count, head.version, RecordLayout::Values(record));
  }
  return status;
}

int64_t RowsOnDisk::Evict(const Eviction& eviction, int64_t step, std::vector<int64_t>* erased) {
  CompleteEviction();
  constexpr int64_t kAnyClock = std::numeric_limits<int64_t>::max();
  SetEviction(std::make_shared<DiskEviction>(DiskEviction{eviction, step, kAnyClock}));
  return CompleteEviction(erased);
}

void RowsOnDisk::Clear(std::vector<int64_t>* erased) {
  CompleteEviction();
  failed_ = ForEach([&](int64_t key, const char*) { erased->push_back(key); });
  if (failed_.ok()) failed_ = store_->Clear();
}

Status RowsOnDisk::ReadAll(KeyedRows* rows) const {
  if (!failed_.ok()) return failed_;
  const std::shared_ptr<const DiskEviction> eviction = this->eviction();
  return ForEach([&](int64_t key, const char* record) {
    if (!IsEvicted(record, eviction.get())) layout_.Append(record, key, rows);
  });
}

Status RowsOnDisk::Describe(const int64_t* keys, int64_t num_keys, int32_t tier,
                            KeyInfo* infos) const {
  std::unordered_map<int64_t, std::vector<int64_t>> below;  // places of keys not in memory
  std::vector<int64_t> missing;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (infos[i].tier != kNoTier) continue;
    std::vector<int64_t>& places = below[keys[i]];
    if (places.empty()) missing.push_back(keys[i]);
    places.push_back(i);
  }
  FoundOnDisk found;
  const Status status = Find(missing.data(), static_cast<int64_t>(missing.size()), &found);
  for (size_t f = 0; f < found.keys.size(); ++f) {
    const RecordHead head = RecordLayout::Head(found.records.data() + f * layout_.bytes());
    for (const int64_t i : below[found.keys[f]]) infos[i] = {tier, head.count, head.version};
  }
  return status;
}

}  // namespace group_embedding
