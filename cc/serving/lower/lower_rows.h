// LowerRows: the rows of one table of one base, below host memory. They never change once they are
// complete: what deltas bring stays in memory, so that a version is one version in every tier.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/row_format.h"
#include "core/status.h"
#include "serving/lower/deadline.h"
#include "serving/lower/tier_options.h"

namespace group_embedding {

// Which rows: those that files of one content had, in one format.
struct LowerRowsId {
  std::string table;     // for messages, and to find what is replaced
  uint64_t content = 0;  // of the files, and of how they are to be quantised
};

// Where rows are written: row i at [at[i], row_bytes] of an array.
struct RowPlaces {
  char* array;
  int64_t row_bytes;
  const int64_t* at = nullptr;  // null: 0, 1, ...

  char* operator[](int64_t i) const { return array + (at == nullptr ? i : at[i]) * row_bytes; }
};

class LowerRows {
 public:
  virtual ~LowerRows() = default;

  // The tier, as the user named it, without passwords: "rocksdb=/var/rows". For messages; what is
  // before '=' is a label of metrics.
  virtual std::string tier() const = 0;
  virtual RowFormat format() const = 0;
  virtual int64_t num_rows() const = 0;

  // Any number of threads. Writes found [num_keys], and the rows of those that are. An error says
  // which table and tier. A read whose deadline is over is an error if that is noticed:
  // `keeps_deadlines` says whether it always is, also where the tier hangs.
  virtual Status Read(const int64_t* keys, int64_t num_keys, const Deadline& deadline, bool* found,
                      const RowPlaces& rows) const = 0;
  virtual bool keeps_deadlines() const = 0;

  // One thread fills them, once. `may_replace`: the keys may have rows already. A tier that does
  // not keep deadlines does not end by these either.
  virtual Status Write(const int64_t* keys, int64_t num_keys, const char* rows, bool may_replace,
                       const Deadline& deadline) = 0;
  virtual Status Erase(const int64_t* keys, int64_t num_keys, const Deadline& deadline) = 0;
  // What a crash cannot take back. `initial`: initial values of keys, as trained, kept beside.
  virtual Status Complete(const std::vector<char>& initial, const Deadline& deadline) = 0;
  virtual Status ReadInitial(const Deadline& deadline, std::vector<char>* initial) const = 0;
};

// Tables below host memory, in one store.
class LowerTier {
 public:
  virtual ~LowerTier() = default;

  // The rows, if they are complete; null if they are not there, or on an error.
  virtual std::unique_ptr<LowerRows> Find(const LowerRowsId& id, int64_t dim,
                                          const Deadline& deadline, Status* error) = 0;
  // To be filled. What the table had before, but for the last content and those that are open, is
  // removed when these are complete.
  virtual std::unique_ptr<LowerRows> Make(const LowerRowsId& id, RowFormat format, int64_t dim) = 0;
};

// The tier that the options name.
std::shared_ptr<LowerTier> OpenLowerTier(const TierOptions& options, Status* error);

// RocksDB in a folder, which is made. One process at a time; models of one process share it.
std::shared_ptr<LowerTier> OpenRocksdbTier(const std::string& folder, Status* error);

// Redis, one server or a cluster, which any number of processes share. `where`: as
// ReadRedisOptions (redis/redis_options.h) reads it.
std::shared_ptr<LowerTier> OpenRedisTier(const std::string& where, Status* error);

}  // namespace group_embedding
