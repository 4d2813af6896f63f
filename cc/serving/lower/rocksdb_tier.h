// RocksdbTier: RocksDB below host memory.
//
//   content, key                 -> a row: both numbers in big-endian order
//   0, content                   -> the mark of complete rows: RocksdbMark, the table's name
//   0, content, "initial"        -> initial values
//
// Rows are written without a log, flushed to files, and marked last, in a write that is synced. A
// process that is killed leaves rows without a mark, which the next one writes again.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serving/lower/lower_rows.h"
#include "table/disk/rocksdb_handles.h"

namespace group_embedding {

inline constexpr uint64_t kMarks = 0;  // the content of no rows
inline constexpr char kInitial[] = "initial";

struct RocksdbMark {
  int64_t num_rows = 0;
  int64_t sequence = 0;  // rises with each content
  int64_t format = 0;
};

struct RocksdbKey {
  char bytes[16];
  RocksdbKey(uint64_t content, uint64_t key) {
    const uint64_t swapped[2] = {__builtin_bswap64(content), __builtin_bswap64(key)};
    std::memcpy(bytes, swapped, sizeof(bytes));
  }
};

class RocksdbTier : public LowerTier, public std::enable_shared_from_this<RocksdbTier> {
 public:
  RocksdbTier(const RocksdbApi& api, std::string folder);
  ~RocksdbTier() override;

  Status Open();

  std::unique_ptr<LowerRows> Find(const LowerRowsId& id, int64_t dim, const Deadline& deadline,
                                  Status* error) override;
  std::unique_ptr<LowerRows> Make(const LowerRowsId& id, RowFormat format, int64_t dim) override;

  std::string Name() const { return "rocksdb=" + folder_; }
  std::string Where() const { return "tier " + Name() + ": "; }

  // One value; false: there is none.
  Status Get(const std::string& key, bool* found, std::string* value) const;
  // The keys of [begin, end).
  Status GetRows(uint64_t content, const int64_t* keys, int64_t begin, int64_t end, bool* found,
                 const RowPlaces& rows) const;

  Owned<RocksdbApi::WriteBatch> MakeBatch() const {
    return {api_.writebatch_create(), api_.writebatch_destroy};
  }
  Status Write(RocksdbApi::WriteBatch* batch, bool synced) const;
  Status Flush() const;

  // {content: mark} of the complete rows of a table.
  Status Marks(const std::string& table, std::map<uint64_t, RocksdbMark>* marks) const;

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
  Status Remove(uint64_t content) const;

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

// The rows of a content, which has that mark.
std::unique_ptr<LowerRows> MakeRocksdbRows(std::shared_ptr<const RocksdbTier> tier,
                                           const LowerRowsId& id, const RocksdbMark& mark,
                                           int64_t dim);

}  // namespace group_embedding
