// TierOptions: where the rows of keyed tables are, and what a request does that needs rows from
// below memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"
#include "core/words.h"

namespace group_embedding {

// When a row cannot be read, or not in time.
enum class OnFailure {
  kError,    // the request fails
  kDefault,  // its key reads what a key without a row does, and is counted
};

// When rows that were found below, and keys that are nowhere, come into memory.
enum class Insert {
  kAtOnce,      // before the request is answered
  kBackground,  // by another thread
  kOff,         // never: memory has the rows of deltas alone
};

inline const Words<OnFailure>& OnFailureWords() {
  static const Words<OnFailure> words = {{"error", OnFailure::kError},
                                         {"default", OnFailure::kDefault}};
  return words;
}

inline const Words<Insert>& InsertWords() {
  static const Words<Insert> words = {
      {"at_once", Insert::kAtOnce}, {"background", Insert::kBackground}, {"off", Insert::kOff}};
  return words;
}

struct TierOptions {
  int64_t hbm_bytes = 0;     // for copies of rows in a GPU's memory; 0: as many as are useful
  int64_t memory_bytes = 0;  // for rows that are cached; 0: all rows are in memory
  std::string rocksdb;       // folder; empty: none
  std::string redis;         // as ReadRedisOptions (redis/redis_options.h) reads it; empty: none
  std::optional<std::chrono::microseconds> timeout;  // from a request's start on
  OnFailure on_failure = OnFailure::kError;
  Insert insert = Insert::kAtOnce;
  std::optional<std::chrono::seconds> expire;  // after the last request that asked for a row

  bool has_lower() const { return !rocksdb.empty() || !redis.empty(); }
};

// Reads "memory=16GB,rocksdb=FOLDER" or "memory=16GB,redis=HOST:PORT[,HOST:PORT...]", and what may
// follow. Sizes: bytes, or with kB, MB, GB, KiB, MiB or GiB. Durations: with us, ms, s, min or h.
Status ReadTiers(const std::string& text, TierOptions* options);

}  // namespace group_embedding
