// RocksDB below host memory.
//
//   content, key                 -> a row: both numbers in big-endian order
//   0, content                   -> the mark of complete rows: Mark, the table's name
//   0, content, "initial"        -> initial values
//
// Rows are written without a log, flushed to files, and marked last, in a write that is synced. A
// process that is killed leaves rows without a mark, which the next one writes again.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "serving/lower_rows.h"
#include "table/disk/rocksdb_handles.h"

namespace group_embedding {
namespace {

constexpr int64_t kMemoryBytes = int64_t{256} << 20;  // of buffers and of blocks that were read
constexpr int64_t kReadAtOnce = 256;                  // between two looks at the clock
constexpr uint64_t kMarks = 0;                        // the content of no rows
constexpr char kInitial[] = "initial";

struct Mark {
  int64_t num_rows = 0;
  int64_t sequence = 0;  // rises with each content
  int64_t format = 0;
};

struct Key {
  char bytes[16];
  Key(uint64_t content, uint64_t key) {
    const uint64_t swapped[2] = {__builtin_bswap64(content), __builtin_bswap64(key)};
    std::memcpy(bytes, swapped, sizeof(bytes));
  }
};

class RocksdbTier : public LowerTier, public std::enable_shared_from_this<RocksdbTier> {
 public:
  RocksdbTier(const RocksdbApi& api, std::string folder)
      : api_(api),
        folder_(std::move(folder)),
        db_(nullptr, api.close),
        read_(MakeReadOptions(api)),
        unlogged_(api.writeoptions_create(), api.writeoptions_destroy),
        synced_(api.writeoptions_create(), api.writeoptions_destroy) {
    api.writeoptions_disable_WAL(unlogged_.get(), 1);
    api.writeoptions_set_sync(synced_.get(), 1);
  }
  ~RocksdbTier() override {
    if (!home_.IsHere()) db_.release();  // to close it would be to wait for threads
  }

  Status Open() {
    Status status;
    db_ = OpenRocksdb(api_, folder_, kMemoryBytes, &status);
    return status.In(Where());
  }

  std::unique_ptr<LowerRows> Find(const LowerRowsId& id, int64_t dim, const Deadline& deadline,
                                  Status* error) override;
  std::unique_ptr<LowerRows> Make(const LowerRowsId& id, RowFormat format, int64_t dim) override;

  std::string Name() const { return "rocksdb=" + folder_; }
  std::string Where() const { return "tier " + Name() + ": "; }

  // One value; false: there is none.
  Status Get(const std::string& key, bool* found, std::string* value) const {
    const char* start = key.data();
    const size_t bytes = key.size();
    char* got = nullptr;
    char* message = nullptr;
    size_t got_bytes = 0;
    Status status = home_.Check();
    if (!status.ok()) return status.In(Where());
    api_.multi_get(db_.get(), read_.get(), 1, &start, &bytes, &got, &got_bytes, &message);
    *found = got != nullptr;
    if (*found) value->assign(got, got_bytes);
    if (*found) api_.free_memory(got);
    return Status(TakeMessage(api_, message)).In(Where());
  }

  // Each row is copied from where RocksDB has it: MultiGet would copy it into memory of its own
  // first.
  // The keys of [begin, end).
  Status GetRows(uint64_t content, const int64_t* keys, int64_t begin, int64_t end, bool* found,
                 const RowPlaces& rows) const {
    Status status = home_.Check();
    for (int64_t i = begin; i < end && status.ok(); ++i) {
      const Key key(content, keys[i]);
      char* message = nullptr;
      const Owned<RocksdbApi::Pinned> row(
          api_.get_pinned(db_.get(), read_.get(), key.bytes, sizeof(key), &message),
          api_.pinned_destroy);
      status = TakeMessage(api_, message);
      found[i] = row != nullptr;
      if (!found[i]) continue;
      size_t bytes = 0;
      const char* values = api_.pinned_value(row.get(), &bytes);
      if (bytes != static_cast<size_t>(rows.row_bytes)) {
        status = "expected a row of " + std::to_string(rows.row_bytes) + " bytes, got " +
                 std::to_string(bytes);
      } else {
        std::memcpy(rows[i], values, rows.row_bytes);
      }
    }
    return status.In(Where());
  }

  Owned<RocksdbApi::WriteBatch> MakeBatch() const {
    return {api_.writebatch_create(), api_.writebatch_destroy};
  }
  Status Write(RocksdbApi::WriteBatch* batch, bool synced) const {
    Status status = home_.Check();
    if (!status.ok()) return status.In(Where());
    char* message = nullptr;
    api_.write(db_.get(), synced ? synced_.get() : unlogged_.get(), batch, &message);
    if (message == nullptr) return {};
    return Where() + TakeMessage(api_, message) + "; is the disk full?";
  }
  Status Flush() const {
    Owned<RocksdbApi::FlushOptions> options(api_.flushoptions_create(), api_.flushoptions_destroy);
    char* message = nullptr;
    api_.flush(db_.get(), options.get(), &message);
    return Status(TakeMessage(api_, message)).In(Where());
  }

  // {content: mark} of the complete rows of a table.
  Status Marks(const std::string& table, std::map<uint64_t, Mark>* marks) const {
    Owned<RocksdbApi::Iterator> at(api_.create_iterator(db_.get(), read_.get()), api_.iter_destroy);
    const Key first(kMarks, 0);
    for (api_.iter_seek(at.get(), first.bytes, sizeof(first)); api_.iter_valid(at.get());
         api_.iter_next(at.get())) {
      size_t key_bytes, value_bytes;
      const char* key = api_.iter_key(at.get(), &key_bytes);
      const char* value = api_.iter_value(at.get(), &value_bytes);
      if (std::memcmp(key, first.bytes, sizeof(uint64_t)) != 0) break;
      if (key_bytes != sizeof(Key) || value_bytes < sizeof(Mark)) continue;
      if (std::string(value + sizeof(Mark), value_bytes - sizeof(Mark)) != table) continue;
      uint64_t content;
      std::memcpy(&content, key + sizeof(uint64_t), sizeof(content));
      std::memcpy(&(*marks)[__builtin_bswap64(content)], value, sizeof(Mark));
    }
    char* message = nullptr;
    api_.iter_get_error(at.get(), &message);
    return Status(TakeMessage(api_, message)).In(Where());
  }

  // Which contents are open: their rows are not removed.
  void CountIn(uint64_t content) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++open_[content];
  }
  void CountOut(uint64_t content) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--open_[content] == 0) open_.erase(content);
  }
  bool IsOpen(uint64_t content) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return open_.count(content) > 0;
  }

  // Removes rows, their mark first.
  Status Remove(uint64_t content) const {
    Owned<RocksdbApi::WriteBatch> mark = MakeBatch(), rows = MakeBatch();
    const Key begin(kMarks, content), first(content, 0), end(content + 1, 0);
    const std::string initial = std::string(begin.bytes, sizeof(begin)) + kInitial;
    api_.writebatch_delete(mark.get(), begin.bytes, sizeof(begin));
    api_.writebatch_delete(mark.get(), initial.data(), initial.size());
    api_.writebatch_delete_range(rows.get(), first.bytes, sizeof(first), end.bytes, sizeof(end));
    Status status = Write(mark.get(), true);
    if (status.ok()) status = Write(rows.get(), false);
    return status;
  }

  const RocksdbApi& api() const { return api_; }

 private:
  const RocksdbApi& api_;
  const HomeProcess home_;
  const std::string folder_;
  Owned<RocksdbApi::Db> db_;
  const Owned<RocksdbApi::ReadOptions> read_;
  const Owned<RocksdbApi::WriteOptions> unlogged_, synced_;
  mutable std::mutex mutex_;  // of open_
  mutable std::map<uint64_t, int64_t> open_;
};

class RocksdbRows : public LowerRows {
 public:
  RocksdbRows(std::shared_ptr<const RocksdbTier> tier, const LowerRowsId& id, Mark mark,
              int64_t dim)
      : tier_(std::move(tier)),
        id_(id),
        mark_(mark),
        row_bytes_(RowBytes(static_cast<RowFormat>(mark.format), dim)) {
    tier_->CountIn(id_.content);
  }
  ~RocksdbRows() override { tier_->CountOut(id_.content); }

  std::string tier() const override { return tier_->Name(); }
  bool keeps_deadlines() const override { return false; }  // a disk may hang
  RowFormat format() const override { return static_cast<RowFormat>(mark_.format); }
  int64_t num_rows() const override { return mark_.num_rows; }

  Status Read(const int64_t* keys, int64_t num_keys, const Deadline& deadline, bool* found,
              const RowPlaces& rows) const override {
    for (int64_t begin = 0; begin < num_keys; begin += kReadAtOnce) {
      if (deadline.is_over()) return Late(deadline);
      const int64_t end = std::min(begin + kReadAtOnce, num_keys);
      Status status = tier_->GetRows(id_.content, keys, begin, end, found, rows);
      if (!status.ok()) return status.In("table '" + id_.table + "', ");
    }
    return {};
  }

  Status Write(const int64_t* keys, int64_t num_keys, const char* rows, bool may_replace,
               const Deadline&) override {
    int64_t replaced = 0;
    if (may_replace) {
      Status status = Count(keys, num_keys, &replaced);
      if (!status.ok()) return status;
    }
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    for (int64_t i = 0; i < num_keys; ++i) {
      const Key key(id_.content, keys[i]);
      tier_->api().writebatch_put(batch.get(), key.bytes, sizeof(key), rows + i * row_bytes_,
                                  row_bytes_);
    }
    mark_.num_rows += num_keys - replaced;
    return tier_->Write(batch.get(), false);
  }

  Status Erase(const int64_t* keys, int64_t num_keys, const Deadline&) override {
    int64_t erased = 0;
    Status status = Count(keys, num_keys, &erased);
    if (!status.ok()) return status;
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    for (int64_t i = 0; i < num_keys; ++i) {
      const Key key(id_.content, keys[i]);
      tier_->api().writebatch_delete(batch.get(), key.bytes, sizeof(key));
    }
    mark_.num_rows -= erased;
    return tier_->Write(batch.get(), false);
  }

  Status Complete(const std::vector<char>& initial, const Deadline&) override {
    std::map<uint64_t, Mark> marks;
    Status status = tier_->Flush();
    if (status.ok()) status = tier_->Marks(id_.table, &marks);
    if (!status.ok()) return status;
    for (const auto& [content, mark] : marks) {
      mark_.sequence = std::max(mark_.sequence, mark.sequence + 1);
    }
    const Key mark(kMarks, id_.content);
    const std::string beside = std::string(mark.bytes, sizeof(mark)) + kInitial;
    std::string value(reinterpret_cast<const char*>(&mark_), sizeof(mark_));
    value += id_.table;
    Owned<RocksdbApi::WriteBatch> batch = tier_->MakeBatch();
    tier_->api().writebatch_put(batch.get(), beside.data(), beside.size(), initial.data(),
                                initial.size());
    tier_->api().writebatch_put(batch.get(), mark.bytes, sizeof(mark), value.data(), value.size());
    status = tier_->Write(batch.get(), true);
    // The content before this one may be asked for again.
    for (const auto& [content, other] : marks) {
      const bool is_old = content != id_.content && other.sequence < mark_.sequence - 1;
      if (status.ok() && is_old && !tier_->IsOpen(content)) {
        status = tier_->Remove(content);
      }
    }
    return status;
  }

  Status ReadInitial(const Deadline&, std::vector<char>* initial) const override {
    const Key mark(kMarks, id_.content);
    bool found = false;
    std::string value;
    Status status = tier_->Get(std::string(mark.bytes, sizeof(mark)) + kInitial, &found, &value);
    initial->assign(value.begin(), value.end());
    return status;
  }

 private:
  Status Late(const Deadline& deadline) const {
    return Status("rows were not read within the request's " + deadline.Text())
        .In("table '" + id_.table + "', " + tier_->Where());
  }
  // How many of the keys have rows.
  Status Count(const int64_t* keys, int64_t num_keys, int64_t* count) const {
    const std::unique_ptr<bool[]> found(new bool[num_keys]);
    std::vector<char> rows(num_keys * row_bytes_);
    Status status = Read(keys, num_keys, Deadline::Never(), found.get(), {rows.data(), row_bytes_});
    *count = std::count(found.get(), found.get() + num_keys, true);
    return status;
  }

  const std::shared_ptr<const RocksdbTier> tier_;
  const LowerRowsId id_;
  Mark mark_;
  const int64_t row_bytes_;
};

std::unique_ptr<LowerRows> RocksdbTier::Find(const LowerRowsId& id, int64_t dim, const Deadline&,
                                             Status* error) {
  std::map<uint64_t, Mark> marks;
  *error = Marks(id.table, &marks);
  const auto found = marks.find(id.content);
  if (!error->ok() || found == marks.end()) return nullptr;
  return std::make_unique<RocksdbRows>(shared_from_this(), id, found->second, dim);
}

std::unique_ptr<LowerRows> RocksdbTier::Make(const LowerRowsId& id, RowFormat format, int64_t dim) {
  Mark mark;
  mark.format = static_cast<int64_t>(format);
  return std::make_unique<RocksdbRows>(shared_from_this(), id, mark, dim);
}

}  // namespace

std::shared_ptr<LowerTier> OpenRocksdbTier(const std::string& folder, Status* error) {
  static std::mutex mutex;
  static auto* open = new std::map<std::string, std::weak_ptr<RocksdbTier>>;
  const RocksdbApi* api = LoadRocksdb(error);
  if (api == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (std::shared_ptr<RocksdbTier> tier = (*open)[folder].lock()) return tier;
  auto tier = std::make_shared<RocksdbTier>(*api, folder);
  *error = tier->Open();
  if (!error->ok()) return nullptr;
  (*open)[folder] = tier;
  return tier;
}

}  // namespace group_embedding
