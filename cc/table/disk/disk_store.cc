#include "table/disk/disk_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "table/disk/disk_folder.h"
#include "table/disk/rocksdb_handles.h"
#include "table/memory_left.h"

namespace group_embedding {
namespace {

constexpr size_t kKeyBytes = sizeof(int64_t);

// Big-endian: RocksDB's order of bytes is then that of the numbers.
void EncodeKey(int64_t key, char* bytes) {
  const uint64_t swapped = __builtin_bswap64(static_cast<uint64_t>(key));
  std::memcpy(bytes, &swapped, kKeyBytes);
}

int64_t DecodeKey(const char* bytes) {
  uint64_t swapped;
  std::memcpy(&swapped, bytes, kKeyBytes);
  return static_cast<int64_t>(__builtin_bswap64(swapped));
}

// Appends the record at which an iterator is; `newest`: as RocksdbStore::newest_.
void AppendRecord(const RocksdbApi& api, const RocksdbApi::Iterator* at,
                  const std::vector<char>& newest, std::vector<char>* records) {
  size_t bytes;
  const char* record = api.iter_value(at, &bytes);
  records->insert(records->end(), record, record + bytes);
  records->insert(records->end(), newest.begin() + static_cast<int64_t>(bytes), newest.end());
}

// Why an iterator is no longer valid, where that is not the end.
Status FailureOf(const RocksdbApi& api, const RocksdbApi::Iterator* at, const std::string& where) {
  char* message = nullptr;
  api.iter_get_error(at, &message);
  if (message == nullptr) return {};
  return where + TakeMessage(api, message) + "; restore the table from its last checkpoint";
}

using Db = Owned<RocksdbApi::Db>;
using ReadOptions = Owned<RocksdbApi::ReadOptions>;

class RocksdbSnapshot : public DiskSnapshot {
 public:
  RocksdbSnapshot(const RocksdbApi& api, RocksdbApi::Db* db, const HomeProcess& home,
                  const std::string& where, int64_t num_keys, std::vector<char> newest)
      : api_(api),
        db_(db),
        home_(home),
        where_(where),
        num_keys_(num_keys),
        newest_(std::move(newest)),
        snapshot_(home.IsHere() ? api.create_snapshot(db) : nullptr),
        options_(MakeReadOptions(api)),
        iterator_(nullptr, api.iter_destroy) {
    if (snapshot_ != nullptr) api.readoptions_set_snapshot(options_.get(), snapshot_);
    api.readoptions_set_fill_cache(options_.get(), 0);
  }
  ~RocksdbSnapshot() override {
    if (!home_.IsHere()) {
      iterator_.release();
      return;
    }
    iterator_.reset();
    api_.release_snapshot(db_, snapshot_);
  }

  int64_t num_keys() const override { return num_keys_; }

  Status Next(int64_t count, std::vector<int64_t>* keys, std::vector<char>* records) override {
    const Status elsewhere = home_.Check();
    if (!elsewhere.ok()) return elsewhere.In(where_);
    if (iterator_ == nullptr) {
      iterator_.reset(api_.create_iterator(db_, options_.get()));
      api_.iter_seek_to_first(iterator_.get());
    }
    for (; count > 0 && api_.iter_valid(iterator_.get()); --count) {
      size_t bytes;
      keys->push_back(DecodeKey(api_.iter_key(iterator_.get(), &bytes)));
      AppendRecord(api_, iterator_.get(), newest_, records);
      api_.iter_next(iterator_.get());
    }
    return FailureOf(api_, iterator_.get(), where_);
  }

 private:
  const RocksdbApi& api_;
  RocksdbApi::Db* const db_;
  const HomeProcess& home_;
  const std::string where_;
  const int64_t num_keys_;
  const std::vector<char> newest_;  // as RocksdbStore::newest_
  const RocksdbApi::Snapshot* const snapshot_;
  const ReadOptions options_;
  Owned<RocksdbApi::Iterator> iterator_;
};

class RocksdbStore : public DiskStore {
 public:
  RocksdbStore(const RocksdbApi& api, const DiskStoreOptions& options)
      : api_(api),
        table_(options.table),
        newest_(options.record_bytes),
        db_(nullptr, api.close),
        read_(MakeReadOptions(api)),
        write_(api.writeoptions_create(), api.writeoptions_destroy) {
    api.writeoptions_disable_WAL(write_.get(), 1);
  }
  ~RocksdbStore() override {
    if (!home_.IsHere()) db_.release();  // to close it would be to wait for threads
  }

  Status Open(const DiskStoreOptions& options) {
    if (AddressesAreLimited() && !HasMemoryFor(kLeastAddresses)) {
      return "table '" + table_ + "': its disk tier wants " + std::to_string(kLeastAddresses) +
             " bytes for RocksDB and its threads, and " + FindMemoryLeft().InWords();
    }
    const Status failed = folder_.Make(options.path, options.table);
    if (!failed.ok()) {
      return Where() + "the folder cannot be made: " + failed.message() +
             "; name another (disk_folder, or storage_path of a StorageOption)";
    }
    Status status;
    db_ = OpenRocksdb(api_, path(), options.memory_bytes, Lifetime::kUntilClosed, &status);
    if (status.ok()) return {};
    return Where() + status.message() +
           "; name a folder that can be written to (disk_folder, or storage_path of a "
           "StorageOption)";
  }

  const std::string& path() const override { return folder_.path(); }
  int64_t record_bytes() const override { return static_cast<int64_t>(newest_.size()); }
  int64_t num_keys() const override { return num_keys_.load(std::memory_order_relaxed); }
  int64_t disk_bytes() const override { return Property("rocksdb.total-sst-files-size"); }
  int64_t memory_bytes() const override {
    return Property("rocksdb.cur-size-all-mem-tables") +
           Property("rocksdb.estimate-table-readers-mem") + Property("rocksdb.block-cache-usage");
  }

  Status Put(const int64_t* keys, int64_t num_keys, const char* records) override {
    Owned<RocksdbApi::WriteBatch> batch = MakeBatch();
    char key[kKeyBytes];
    for (int64_t i = 0; i < num_keys; ++i) {
      EncodeKey(keys[i], key);
      api_.writebatch_put(batch.get(), key, kKeyBytes, records + i * record_bytes(),
                          record_bytes());
    }
    return Write(batch.get(), num_keys);
  }

  Status Get(const int64_t* keys, int64_t num_keys, bool* found, char* records) const override {
    const Status elsewhere = home_.Check();
    if (!elsewhere.ok()) return elsewhere.In(Where());
    for (int64_t begin = 0; begin < num_keys; begin += kGetAtOnce) {
      const int64_t count = std::min(kGetAtOnce, num_keys - begin);
      const Status status =
          GetSome(keys + begin, count, found + begin, records + begin * record_bytes());
      if (!status.ok()) return status;
    }
    return {};
  }

  Status Sample(int64_t count, std::vector<char>* records) const override {
    const Status elsewhere = home_.Check();
    if (!elsewhere.ok()) return elsewhere.In(Where());
    const Owned<RocksdbApi::Iterator> at(api_.create_iterator(db_.get(), read_.get()),
                                         api_.iter_destroy);
    const int64_t num_runs = num_keys() <= count ? 1 : kSampledRuns;
    const auto key_at = [&] {
      size_t bytes;
      return static_cast<uint64_t>(DecodeKey(api_.iter_key(at.get(), &bytes)));
    };
    api_.iter_seek_to_last(at.get());
    const uint64_t last = api_.iter_valid(at.get()) ? key_at() : 0;
    api_.iter_seek_to_first(at.get());
    const uint64_t first = api_.iter_valid(at.get()) ? key_at() : 0;
    for (int64_t run = 0; run < num_runs; ++run) {
      char key[kKeyBytes];
      EncodeKey(static_cast<int64_t>(first + (last - first) / num_runs * run), key);
      api_.iter_seek(at.get(), key, kKeyBytes);
      for (int64_t i = 0; i < count / num_runs && api_.iter_valid(at.get()); ++i) {
        AppendRecord(api_, at.get(), newest_, records);
        api_.iter_next(at.get());
      }
    }
    return FailureOf(api_, at.get(), Where());
  }

  Status Erase(const int64_t* keys, int64_t num_keys) override {
    Owned<RocksdbApi::WriteBatch> batch = MakeBatch();
    char key[kKeyBytes];
    for (int64_t i = 0; i < num_keys; ++i) {
      EncodeKey(keys[i], key);
      api_.writebatch_delete(batch.get(), key, kKeyBytes);
    }
    return Write(batch.get(), -num_keys);
  }

  Status Clear() override {
    if (num_keys() == 0) return {};
    Owned<RocksdbApi::WriteBatch> batch = MakeBatch();
    char first[kKeyBytes], end[kKeyBytes + 1] = {};  // longer than the last key: behind it
    EncodeKey(0, first);
    EncodeKey(-1, end);
    api_.writebatch_delete_range(batch.get(), first, kKeyBytes, end, sizeof(end));
    Status status = Write(batch.get(), -num_keys());
    if (status.ok()) api_.compact_range(db_.get(), nullptr, 0, nullptr, 0);
    return status;
  }

  void Extend(const std::vector<char>& tail) override {
    newest_.insert(newest_.end(), tail.begin(), tail.end());
  }

  std::unique_ptr<DiskSnapshot> TakeSnapshot() const override {
    return std::make_unique<RocksdbSnapshot>(api_, db_.get(), home_, Where(), num_keys(), newest_);
  }

 private:
  static constexpr int64_t kGetAtOnce = 256, kSampledRuns = 64;
  // Where address space is limited: a thread takes 8 MB of it, and 128 MB for what the thread
  // allocates. RocksDB ends a process in which its threads cannot start.
  static constexpr int64_t kLeastAddresses = int64_t{640} << 20;

  std::string Where() const { return "table '" + table_ + "', disk tier in '" + path() + "': "; }

  Owned<RocksdbApi::WriteBatch> MakeBatch() const {
    return {api_.writebatch_create(), api_.writebatch_destroy};
  }

  Status Write(RocksdbApi::WriteBatch* batch, int64_t more_keys) {
    const Status elsewhere = home_.Check();
    if (!elsewhere.ok()) return elsewhere.In(Where());
    char* message = nullptr;
    api_.write(db_.get(), write_.get(), batch, &message);
    if (message != nullptr) {
      return Where() + TakeMessage(api_, message) +
             "; is the disk full? RocksDB writes no more from then on: save the table, free space "
             "or "
             "name a folder on another disk (disk_folder, or storage_path of a StorageOption), and "
             "restore it in a new process";
    }
    num_keys_.fetch_add(more_keys, std::memory_order_relaxed);
    return {};
  }

  Status GetSome(const int64_t* keys, int64_t num_keys, bool* found, char* records) const {
    char bytes[kGetAtOnce][kKeyBytes];
    const char* starts[kGetAtOnce] = {};
    size_t key_bytes[kGetAtOnce] = {}, value_bytes[kGetAtOnce] = {};
    char* values[kGetAtOnce] = {};
    char* messages[kGetAtOnce] = {};
    for (int64_t i = 0; i < num_keys; ++i) {
      EncodeKey(keys[i], bytes[i]);
      starts[i] = bytes[i];
      key_bytes[i] = kKeyBytes;
    }
    api_.multi_get(db_.get(), read_.get(), num_keys, starts, key_bytes, values, value_bytes,
                   messages);
    Status failed;
    for (int64_t i = 0; i < num_keys; ++i) {
      if (messages[i] != nullptr) failed = TakeMessage(api_, messages[i]);
      found[i] = values[i] != nullptr;
      if (!found[i]) continue;
      char* record = records + i * record_bytes();
      std::memcpy(record, values[i], value_bytes[i]);
      std::copy(newest_.begin() + value_bytes[i], newest_.end(), record + value_bytes[i]);
      api_.free_memory(values[i]);
    }
    if (failed.ok()) return {};
    return failed.In(Where()).message() + "; restore the table from its last checkpoint";
  }

  int64_t Property(const char* name) const {
    uint64_t value = 0;
    if (!home_.IsHere()) return 0;
    return api_.property_int(db_.get(), name, &value) == 0 ? static_cast<int64_t>(value) : 0;
  }

  const RocksdbApi& api_;
  const HomeProcess home_;
  const std::string table_;
  DiskFolder folder_;  // outlives the database in it
  // As long as the newest records. Older ones are shorter, and end as this does.
  std::vector<char> newest_;
  Db db_;
  const ReadOptions read_;
  const Owned<RocksdbApi::WriteOptions> write_;
  std::atomic<int64_t> num_keys_{0};
};

}  // namespace

std::unique_ptr<DiskStore> OpenDiskStore(const DiskStoreOptions& options, Status* error) {
  const RocksdbApi* api = LoadRocksdb(error);
  if (api == nullptr) {
    *error = error->In("table '" + options.table + "': its disk tier needs RocksDB: ");
    return nullptr;
  }
  auto store = std::make_unique<RocksdbStore>(*api, options);
  *error = store->Open(options);
  if (!error->ok()) return nullptr;
  return store;
}

}  // namespace group_embedding
