// RocksDB's objects with owners, and a database as tables of rows want it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/home_process.h"
#include "core/status.h"
#include "table/disk/rocksdb_api.h"

namespace group_embedding {

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// A message of RocksDB, which is freed.
std::string TakeMessage(const RocksdbApi& api, char* message);

// Reads verify checksums.
Owned<RocksdbApi::ReadOptions> MakeReadOptions(const RocksdbApi& api);

// Whether a database is there again when it is opened the next time.
enum class Lifetime { kKept, kUntilClosed };

// Opens the database in a folder, or makes it. `memory_bytes`: of records to be written and of
// blocks that were read. Null where it cannot be opened, and `error` says why.
Owned<RocksdbApi::Db> OpenRocksdb(const RocksdbApi& api, const std::string& path,
                                  int64_t memory_bytes, Lifetime lifetime, Status* error);

}  // namespace group_embedding
