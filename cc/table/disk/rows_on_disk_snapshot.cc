// The content of one instant of a table whose rows are in memory and on disk.
#include <algorithm>
#include <mutex>
#include <utility>

#include "table/disk/rows_on_disk.h"

namespace group_embedding {

// Rows in memory, and then those on disk, in the order of their keys.
class RowsOnDisk::TieredSnapshot : public Snapshot {
 public:
  TieredSnapshot(std::unique_ptr<Snapshot> memory, RowsOnDisk* rows, bool changes_only,
                 int64_t changed_since, std::mutex* moves, ChangeLog* changes)
      : memory_(std::move(memory)),
        rows_(*rows),
        disk_(rows->store_->TakeSnapshot()),
        changes_only_(changes_only),
        changed_since_(changed_since),
        layout_(rows->layout_),
        eviction_(rows->eviction()),
        moves_(moves),
        changes_(changes),
        error_(rows->failed_) {}

  ~TieredSnapshot() override {
    if (eviction_ == nullptr) return;
    for (KeyedRows nobodys; !IsRead() && error_.ok(); nobodys = {}) ReadDisk(kAtOnce, &nobodys);
    if (error_.ok()) {
      rows_.SetEviction(nullptr);
    } else {
      rows_.CompleteEviction();
    }
    const bool is_full_save = is_kept_ && !changes_only_;
    if (is_full_save && !changes_->HasPublishers()) return;
    std::vector<int64_t>* erased = changes_->erased();
    erased->insert(erased->end(), evicted_.begin(), evicted_.end());
  }

  const EmbeddingTable& table() const override { return memory_->table(); }
  int64_t num_rows() const override { return memory_->num_rows() + disk_->num_keys(); }
  const AdmissionState& admission() override { return memory_->admission(); }
  const std::vector<int64_t>& erased() const override { return memory_->erased(); }
  std::vector<int64_t> evicted() const override {
    std::vector<int64_t> keys = memory_->evicted();
    std::lock_guard<std::mutex> lock(mutex_);
    keys.insert(keys.end(), evicted_.begin(), evicted_.end());
    return keys;
  }
  void Keep() override {
    memory_->Keep();
    is_kept_ = true;
  }
  const ChangeMark& mark() const override { return memory_->mark(); }
  Status status() const override {
    const Status of_memory = memory_->status();
    std::lock_guard<std::mutex> lock(mutex_);
    return of_memory.ok() ? error_ : of_memory;
  }

  // Rows on disk have no numbers: a call returns the next end - begin rows.
  void Read(int64_t begin, int64_t end, KeyedRows* rows) override {
    memory_->Read(begin, std::min(end, memory_->num_rows()), rows);
    begin = std::max(begin, memory_->num_rows());
    std::lock_guard<std::mutex> lock(mutex_);
    for (; begin < end && error_.ok(); begin += kAtOnce) {
      ReadDisk(std::min(kAtOnce, end - begin), rows);
    }
  }

 private:
  // Whether all rows on disk were read.
  bool IsRead() const { return num_read_ >= disk_->num_keys(); }

  // Reads the next `count` rows on disk. Who moves rows holds his lock for most of a step, so keys
  // that go are forgotten many at a time.
  void ReadDisk(int64_t count, KeyedRows* rows) {
    FoundOnDisk found;
    error_ = disk_->Next(count, &found.keys, &found.records);
    num_read_ += static_cast<int64_t>(found.keys.empty() ? count : found.keys.size());
    for (size_t i = 0; i < found.keys.size(); ++i) {
      const char* record = found.records.data() + i * layout_.bytes();
      if (rows_.IsEvicted(record, eviction_.get())) {
        evicted_.push_back(found.keys[i]);
      } else if (RecordLayout::Head(record).clock >= changed_since_) {
        layout_.Append(record, found.keys[i], rows);
      }
    }
    const auto num_evicted = static_cast<int64_t>(evicted_.size());
    const bool are_many = num_evicted - num_forgotten_ >= kAtOnce;
    if (!error_.ok() || num_evicted == num_forgotten_ || !(are_many || IsRead())) return;
    std::lock_guard<std::mutex> lock(*moves_);
    error_ = rows_.Forget({evicted_.begin() + num_forgotten_, evicted_.end()});
    num_forgotten_ = num_evicted;
  }

  const std::unique_ptr<Snapshot> memory_;
  RowsOnDisk& rows_;
  const std::unique_ptr<DiskSnapshot> disk_;
  const bool changes_only_;
  const int64_t changed_since_;
  const RecordLayout layout_;  // as records were
  const std::shared_ptr<const DiskEviction> eviction_;
  std::mutex* const moves_;
  ChangeLog* const changes_;
  bool is_kept_ = false;
  mutable std::mutex mutex_;
  int64_t num_read_ = 0;  // of the rows on disk
  std::vector<int64_t> evicted_;
  int64_t num_forgotten_ = 0;  // of them
  Status error_;
};

std::unique_ptr<Snapshot> RowsOnDisk::TakeSnapshot(std::unique_ptr<Snapshot> memory,
                                                   bool changes_only, int64_t changed_since,
                                                   const DiskEviction& eviction, std::mutex* moves,
                                                   ChangeLog* changes) {
  if (eviction.eviction.kind != Eviction::Kind::kNone) {
    SetEviction(std::make_shared<DiskEviction>(eviction));
  }
  return std::make_unique<TieredSnapshot>(std::move(memory), this, changes_only, changed_since,
                                          moves, changes);
}

}  // namespace group_embedding
