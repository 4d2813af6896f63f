#include "table/rows_on_disk.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "table/eviction.h"

namespace group_embedding {
namespace {

// Rows in memory, and then those on disk, in the order of their keys.
class TieredSnapshot : public Snapshot {
 public:
  TieredSnapshot(std::unique_ptr<Snapshot> memory, const RecordLayout& layout,
                 std::unique_ptr<DiskSnapshot> disk, int64_t changed_since, std::string error)
      : memory_(std::move(memory)),
        layout_(layout),
        disk_(std::move(disk)),
        changed_since_(changed_since),
        error_(std::move(error)) {}

  const EmbeddingTable& table() const override { return memory_->table(); }
  int64_t num_rows() const override { return memory_->num_rows() + disk_->num_keys(); }
  const AdmissionState& admission() override { return memory_->admission(); }
  const std::vector<int64_t>& erased() const override { return memory_->erased(); }
  void Keep() override { memory_->Keep(); }
  std::string error() const override {
    const std::string of_memory = memory_->error();
    std::lock_guard<std::mutex> lock(mutex_);
    return of_memory.empty() ? error_ : of_memory;
  }

  // Which number a row on disk has is nobody's business: whoever asks for so many gets the next.
  void Read(int64_t begin, int64_t end, KeyedRows* rows) override {
    memory_->Read(begin, std::min(end, memory_->num_rows()), rows);
    begin = std::max(begin, memory_->num_rows());
    std::lock_guard<std::mutex> lock(mutex_);
    for (; begin < end && error_.empty(); begin += RowsOnDisk::kAtOnce) {
      FoundOnDisk found;
      error_ = disk_->Next(std::min(RowsOnDisk::kAtOnce, end - begin), &found.keys, &found.records);
      for (size_t i = 0; i < found.keys.size(); ++i) {
        const char* record = found.records.data() + i * layout_.bytes();
        const bool is_wanted = RecordLayout::Head(record).clock >= changed_since_;
        if (is_wanted) layout_.Append(record, found.keys[i], rows);
      }
    }
  }

 private:
  const std::unique_ptr<Snapshot> memory_;
  const RecordLayout layout_;
  mutable std::mutex mutex_;
  const std::unique_ptr<DiskSnapshot> disk_;
  const int64_t changed_since_;
  std::string error_;
};

}  // namespace

RowsOnDisk::RowsOnDisk(const TableOptions& options, const DiskTierOptions& disk, std::string* error)
    : options_(options), disk_(disk), layout_(options.dim * SizeOf(options.dtype)) {
  DiskStoreOptions store_options;
  store_options.table = options.name;
  store_options.path = disk.path;
  store_options.record_bytes = layout_.bytes();
  store_ = OpenDiskStore(store_options, error);
}

void RowsOnDisk::AddSlot(std::vector<char> start) {
  store_->Extend(start);
  layout_.AddSlot(std::move(start));
}

std::string RowsOnDisk::Find(const int64_t* keys, int64_t num_keys, FoundOnDisk* found) const {
  if (store_->num_keys() == 0) return "";
  const int64_t bytes = layout_.bytes();
  const std::unique_ptr<bool[]> is_there(new bool[num_keys]);
  found->records.resize(num_keys * bytes);
  std::string error = store_->Get(keys, num_keys, is_there.get(), found->records.data());
  if (!error.empty()) return error;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (!is_there[i]) continue;
    char* to = found->records.data() + static_cast<int64_t>(found->keys.size()) * bytes;
    std::memmove(to, found->records.data() + i * bytes, bytes);
    found->keys.push_back(keys[i]);
  }
  found->records.resize(static_cast<int64_t>(found->keys.size()) * bytes);
  return "";
}

std::string RowsOnDisk::Put(const std::vector<int64_t>& keys, const char* records) {
  return store_->Put(keys.data(), static_cast<int64_t>(keys.size()), records);
}

std::string RowsOnDisk::Erase(const std::vector<int64_t>& keys) {
  return store_->Erase(keys.data(), static_cast<int64_t>(keys.size()));
}

std::string RowsOnDisk::CheckSize(int64_t more, int64_t leaving) const {
  if (more <= std::max(leaving, NumFree(leaving))) return "";
  const int64_t bytes = BytesPerRow(), num_rows = store_->num_keys() - leaving + more;
  return "table '" + options_.name + "' is full: expected at most " +
         std::to_string(disk_.max_bytes) + " bytes on disk, in '" + store_->path() + "', got " +
         std::to_string(num_rows) + " rows of " + std::to_string(bytes) +
         " bytes; give it more by StorageOption(storage_size=[..., disk]), or admit fewer keys or "
         "evict some (filter_option, evict_option)";
}

std::string RowsOnDisk::Insert(const KeyedRows& rows, const std::vector<size_t>& chosen,
                               int64_t clock) {
  std::vector<int64_t> keys;
  std::vector<char> records(chosen.size() * layout_.bytes());
  for (const size_t i : chosen) {
    layout_.Pack(rows, i, clock, records.data() + keys.size() * layout_.bytes());
    keys.push_back(rows.keys[i]);
  }
  return Put(keys, records.data());
}

int64_t RowsOnDisk::EraseSome(std::vector<int64_t> keys, std::vector<int64_t>* erased) {
  std::sort(keys.begin(), keys.end(), IsBeforeOnDisk);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  int64_t num_erased = 0;
  const int64_t num_keys = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < num_keys && failed_.empty(); begin += kAtOnce) {
    FoundOnDisk found;
    failed_ = Find(keys.data() + begin, std::min(kAtOnce, num_keys - begin), &found);
    if (failed_.empty()) failed_ = Erase(found.keys);
    if (!failed_.empty()) break;
    num_erased += static_cast<int64_t>(found.keys.size());
    erased->insert(erased->end(), found.keys.begin(), found.keys.end());
  }
  return num_erased;
}

template <typename Body>
std::string RowsOnDisk::ForEach(const Body& body) const {
  const std::unique_ptr<DiskSnapshot> all = store_->TakeSnapshot();
  for (;;) {
    FoundOnDisk found;
    std::string error = all->Next(kAtOnce, &found.keys, &found.records);
    if (!error.empty() || found.keys.empty()) return error;
    for (size_t i = 0; i < found.keys.size(); ++i) {
      body(found.keys[i], found.records.data() + i * layout_.bytes());
    }
  }
}

std::vector<int64_t> RowsOnDisk::ToEvict(const Eviction& eviction, int64_t step) {
  std::vector<int64_t> keys;
  std::vector<char> values(options_.dim * SizeOf(options_.dtype));  // aligned, as records are not
  const std::string error = ForEach([&](int64_t key, const char* record) {
    std::memcpy(values.data(), RecordLayout::Values(record), values.size());
    const int64_t version = RecordLayout::Head(record).version;
    if (IsToEvict(options_, eviction, step, version, values.data())) keys.push_back(key);
  });
  if (failed_.empty()) failed_ = error;
  return keys;
}

void RowsOnDisk::Clear(std::vector<int64_t>* erased) {
  failed_ = ForEach([&](int64_t key, const char*) { erased->push_back(key); });
  if (failed_.empty()) failed_ = store_->Clear();
}

std::string RowsOnDisk::ReadAll(KeyedRows* rows) const {
  if (!failed_.empty()) return failed_;
  return ForEach([&](int64_t key, const char* record) { layout_.Append(record, key, rows); });
}

std::string RowsOnDisk::Describe(const int64_t* keys, int64_t num_keys, int32_t tier,
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
  const std::string error = Find(missing.data(), static_cast<int64_t>(missing.size()), &found);
  for (size_t f = 0; f < found.keys.size(); ++f) {
    const RecordHead head = RecordLayout::Head(found.records.data() + f * layout_.bytes());
    for (const int64_t i : below[found.keys[f]]) infos[i] = {tier, head.count, head.version};
  }
  return error;
}

std::unique_ptr<Snapshot> RowsOnDisk::TakeSnapshot(std::unique_ptr<Snapshot> memory,
                                                   int64_t changed_since) const {
  return std::make_unique<TieredSnapshot>(std::move(memory), layout_, store_->TakeSnapshot(),
                                          changed_since, failed_);
}

}  // namespace group_embedding
