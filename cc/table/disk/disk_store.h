// DiskStore: records by key on disk, in RocksDB, for rows that do not fit a table's memory.
//
// It is a cache: it holds records of its table since the table was opened, and checkpoints hold
// what must survive a crash. So writes are neither logged nor synced. Reads verify a checksum.
//
// In a forked process all return an error,
// since RocksDB's threads do not exist there.
//
// Thread safety: any number of Get, Put and Erase at a time, if their keys differ. A method that is
// called exclusive must run alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"

namespace group_embedding {

struct DiskStoreOptions {
  std::string table;  // for messages and for the folder's name
  // The folder to make the store's own folder in, as of DiskFolder. Empty: where temporary files
  // go.
  std::string path;
  int64_t record_bytes = 0;
  int64_t memory_bytes = 0;  // of records to be written and of blocks read
};

// The order in which keys lie on disk, as unsigned numbers. Many keys in this order are read and
// written several times faster than in another.
inline bool IsBeforeOnDisk(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a) < static_cast<uint64_t>(b);
}

// What a store held at one instant, in the order of the disk. For one thread.
class DiskSnapshot {
 public:
  virtual ~DiskSnapshot() = default;
  virtual int64_t num_keys() const = 0;
  // Appends the next `count` keys and records; fewer at the end.
  virtual Status Next(int64_t count, std::vector<int64_t>* keys, std::vector<char>* records) = 0;
};

class DiskStore {
 public:
  virtual ~DiskStore() = default;

  virtual const std::string& path() const = 0;
  virtual int64_t record_bytes() const = 0;
  virtual int64_t num_keys() const = 0;
  virtual int64_t disk_bytes() const = 0;    // in files; not yet, of what is still in memory
  virtual int64_t memory_bytes() const = 0;  // used now

  // keys [num_keys], all different; records [num_keys, record_bytes]. All or none of them are
  // written. The keys must not be there: erase them first.
  virtual Status Put(const int64_t* keys, int64_t num_keys, const char* records) = 0;
  // Writes found [num_keys], and records [num_keys, record_bytes] of those that are.
  virtual Status Get(const int64_t* keys, int64_t num_keys, bool* found, char* records) const = 0;
  // Appends the records of `count` keys, or of all if there are fewer: in runs whose first keys are
  // evenly spaced between the smallest and the largest key.
  virtual Status Sample(int64_t count, std::vector<char>* records) const = 0;
  // The keys, all different, must be there.
  virtual Status Erase(const int64_t* keys, int64_t num_keys) = 0;
  virtual Status Clear() = 0;  // Exclusive.

  // From now on records are longer by `tail`; those that are there end with it. Exclusive.
  virtual void Extend(const std::vector<char>& tail) = 0;

  // Exclusive; takes no time. What it held keeps its place on disk until the snapshot is gone,
  // which must be before the store is.
  virtual std::unique_ptr<DiskSnapshot> TakeSnapshot() const = 0;
};

// Null where it cannot be opened, and `error` says why.
std::unique_ptr<DiskStore> OpenDiskStore(const DiskStoreOptions& options, Status* error);

}  // namespace group_embedding
