#include "serving/lower/rocksdb_tier.h"

#include <utility>

namespace group_embedding {
namespace {

constexpr int64_t kMemoryBytes = int64_t{256} << 20;  // of buffers and of blocks that were read

}  // namespace

RocksdbTier::RocksdbTier(const RocksdbApi& api, std::string folder)
    : api_(api),
      folder_(std::move(folder)),
      db_(nullptr, api.close),
      read_(MakeReadOptions(api)),
      unlogged_(api.writeoptions_create(), api.writeoptions_destroy),
      synced_(api.writeoptions_create(), api.writeoptions_destroy) {
  api.writeoptions_disable_WAL(unlogged_.get(), 1);
  api.writeoptions_set_sync(synced_.get(), 1);
}

RocksdbTier::~RocksdbTier() {
  if (!home_.IsHere()) db_.release();  // to close it would be to wait for threads
}

Status RocksdbTier::Open() {
  Status status;
  db_ = OpenRocksdb(api_, folder_, kMemoryBytes, Lifetime::kKept, &status);
  return status.In(Where());
}

Status RocksdbTier::Get(const std::string& key, bool* found, std::string* value) const {
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
Status RocksdbTier::GetRows(uint64_t content, const int64_t* keys, int64_t begin, int64_t end,
                            bool* found, const RowPlaces& rows) const {
  Status status = home_.Check();
  for (int64_t i = begin; i < end && status.ok(); ++i) {
    const RocksdbKey key(content, keys[i]);
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

Status RocksdbTier::Write(RocksdbApi::WriteBatch* batch, bool synced) const {
  Status status = home_.Check();
  if (!status.ok()) return status.In(Where());
  char* message = nullptr;
  api_.write(db_.get(), synced ? synced_.get() : unlogged_.get(), batch, &message);
  if (message == nullptr) return {};
  return Where() + TakeMessage(api_, message) + "; is the disk full?";
}

Status RocksdbTier::Flush() const {
  Owned<RocksdbApi::FlushOptions> options(api_.flushoptions_create(), api_.flushoptions_destroy);
  char* message = nullptr;
  api_.flush(db_.get(), options.get(), &message);
  return Status(TakeMessage(api_, message)).In(Where());
}

Status RocksdbTier::Marks(const std::string& table, std::map<uint64_t, RocksdbMark>* marks) const {
  Owned<RocksdbApi::Iterator> at(api_.create_iterator(db_.get(), read_.get()), api_.iter_destroy);
  const RocksdbKey first(kMarks, 0);
  for (api_.iter_seek(at.get(), first.bytes, sizeof(first)); api_.iter_valid(at.get());
       api_.iter_next(at.get())) {
    size_t key_bytes, value_bytes;
    const char* key = api_.iter_key(at.get(), &key_bytes);
    const char* value = api_.iter_value(at.get(), &value_bytes);
    if (std::memcmp(key, first.bytes, sizeof(uint64_t)) != 0) break;
    if (key_bytes != sizeof(RocksdbKey) || value_bytes < sizeof(RocksdbMark)) continue;
    if (std::string(value + sizeof(RocksdbMark), value_bytes - sizeof(RocksdbMark)) != table) {
      continue;
    }
    uint64_t content;
    std::memcpy(&content, key + sizeof(uint64_t), sizeof(content));
    std::memcpy(&(*marks)[__builtin_bswap64(content)], value, sizeof(RocksdbMark));
  }
  char* message = nullptr;
  api_.iter_get_error(at.get(), &message);
  return Status(TakeMessage(api_, message)).In(Where());
}

Status RocksdbTier::Remove(uint64_t content) const {
  Owned<RocksdbApi::WriteBatch> mark = MakeBatch(), rows = MakeBatch();
  const RocksdbKey begin(kMarks, content), first(content, 0), end(content + 1, 0);
  const std::string initial = std::string(begin.bytes, sizeof(begin)) + kInitial;
  api_.writebatch_delete(mark.get(), begin.bytes, sizeof(begin));
  api_.writebatch_delete(mark.get(), initial.data(), initial.size());
  api_.writebatch_delete_range(rows.get(), first.bytes, sizeof(first), end.bytes, sizeof(end));
  Status status = Write(mark.get(), true);
  if (status.ok()) status = Write(rows.get(), false);
  return status;
}

std::unique_ptr<LowerRows> RocksdbTier::Find(const LowerRowsId& id, int64_t dim, const Deadline&,
                                             Status* error) {
  std::map<uint64_t, RocksdbMark> marks;
  *error = Marks(id.table, &marks);
  const auto found = marks.find(id.content);
  if (!error->ok() || found == marks.end()) return nullptr;
  return MakeRocksdbRows(shared_from_this(), id, found->second, dim);
}

std::unique_ptr<LowerRows> RocksdbTier::Make(const LowerRowsId& id, RowFormat format, int64_t dim) {
  RocksdbMark mark;
  mark.format = static_cast<int64_t>(format);
  return MakeRocksdbRows(shared_from_this(), id, mark, dim);
}

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
