#include "table/disk/disk_store.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "table/disk/disk_folder.h"
#include "table/disk/rocksdb_api.h"

namespace group_embedding {
namespace {

constexpr size_t kKeyBytes = sizeof(int64_t);
constexpr double kFilterBitsPerKey =
    10;  // a key that is not there is looked for on disk 1 % of times
// A block holds a few records. Requested keys are scattered, and reading one checks its whole
// block.
constexpr size_t kBlockBytes = 1024;
constexpr int kNoCompression = 0, kLogErrors = 3;

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

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// A message of RocksDB, which is freed.
std::string TakeMessage(const RocksdbApi& api, char* message) {
  if (message == nullptr) return "";
  std::string text = message;
  api.free_memory(message);
  return text;
}

using Db = Owned<RocksdbApi::Db>;
using ReadOptions = Owned<RocksdbApi::ReadOptions>;

ReadOptions MakeReadOptions(const RocksdbApi& api) {
  ReadOptions options(api.readoptions_create(), api.readoptions_destroy);
  api.readoptions_set_verify_checksums(options.get(), 1);
  return options;
}

// The process that has RocksDB's threads, in which locks are let go that they hold.
class HomeProcess {
 public:
  bool IsHere() const { return getpid() == id_; }
  // Why nothing can be done here, or nothing.
  Status Check() const {
    if (IsHere()) return {};
    return "expected the process that made it, got one that was forked from that, where no thread "
           "of it runs; make the table in the forked process";
  }

 private:
  const pid_t id_ = getpid();
};

// When a forked process exits, RocksDB waits for the threads that it had before. So it ends here;
// whatever was to be run earlier has been run.
void EndForkedProcess(int status, void* home) {
  if (static_cast<const HomeProcess*>(home)->IsHere()) return;
  std::fflush(nullptr);
  _exit(status);
}

// Once RocksDB has been used: it says what it does in the end when it is used first, and what was
// said last is done first.
void EndForkedProcessesEarly() {
  static HomeProcess home;
  static std::once_flag once;
  std::call_once(once, [] { on_exit(EndForkedProcess, &home); });
}

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
      const char* record = api_.iter_value(iterator_.get(), &bytes);
      records->insert(records->end(), record, record + bytes);
      records->insert(records->end(), newest_.begin() + bytes, newest_.end());
      api_.iter_next(iterator_.get());
    }
    char* message = nullptr;
    api_.iter_get_error(iterator_.get(), &message);
    if (message == nullptr) return {};
    return where_ + TakeMessage(api_, message) + "; restore the table from its last checkpoint";
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
    const Status failed = folder_.Make(options.path, options.table);
    if (!failed.ok()) {
      return Where() + "the folder cannot be made: " + failed.message() +
             "; name another by StorageOption(storage_path=...)";
    }
    Owned<RocksdbApi::Options> settings = Settings(options.memory_bytes);
    char* message = nullptr;
    db_.reset(api_.open(settings.get(), path().c_str(), &message));
    EndForkedProcessesEarly();
    if (message == nullptr) return {};
    return Where() + TakeMessage(api_, message) +
           "; name a folder that can be written to by StorageOption(storage_path=...)";
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
  static constexpr int64_t kGetAtOnce = 256;

  std::string Where() const { return "table '" + table_ + "', disk tier in '" + path() + "': "; }

  Owned<RocksdbApi::WriteBatch> MakeBatch() const {
    return {api_.writebatch_create(), api_.writebatch_destroy};
  }

  Owned<RocksdbApi::Options> Settings(int64_t memory_bytes) const {
    Owned<RocksdbApi::Options> settings(api_.options_create(), api_.options_destroy);
    api_.options_set_create_if_missing(settings.get(), 1);
    api_.options_set_compression(settings.get(), kNoCompression);  // trained numbers are noise
    api_.options_set_info_log_level(settings.get(), kLogErrors);
    api_.options_set_keep_log_file_num(settings.get(), 1);
    // Half for blocks that were read; two buffers, of which one is filled and one is written.
    api_.options_set_write_buffer_size(settings.get(), memory_bytes / 4);
    Owned<RocksdbApi::TableFormat> format(api_.block_based_options_create(),
                                          api_.block_based_options_destroy);
    api_.block_based_options_set_block_size(format.get(), kBlockBytes);
    Owned<RocksdbApi::Cache> cache(api_.cache_create_lru(memory_bytes / 2), api_.cache_destroy);
    api_.block_based_options_set_block_cache(format.get(), cache.get());
    api_.block_based_options_set_filter_policy(format.get(),
                                               api_.filterpolicy_create_bloom(kFilterBitsPerKey));
    api_.options_set_block_based_table_factory(settings.get(), format.get());
    return settings;
  }

  Status Write(RocksdbApi::WriteBatch* batch, int64_t more_keys) {
    const Status elsewhere = home_.Check();
    if (!elsewhere.ok()) return elsewhere.In(Where());
    char* message = nullptr;
    api_.write(db_.get(), write_.get(), batch, &message);
    if (message != nullptr) {
      return Where() + TakeMessage(api_, message) +
             "; is the disk full? Name a folder on another by StorageOption(storage_path=...)";
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
